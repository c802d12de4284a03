"""dev/bench field: rows come from the pack's lists and from files, and names cover no point."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from keepsake.kv_policies import (
    RETENTIONS,
    SCHEDULES,
    SELECTIONS,
    DeCoPruneHS,
    SinkWindow,
)

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "dev/recipes/field_policy.py"


@pytest.fixture
def benches(monkeypatch):
    """Imports a file of dev/benches anew, and forgets it after the test."""
    monkeypatch.syspath_prepend(ROOT / "dev/benches")
    before = set(sys.modules)
    yield lambda name: __import__(name)
    for name in set(sys.modules) - before:
        if Path(getattr(sys.modules[name], "__file__", None) or "").parent.name == "benches":
            del sys.modules[name]


def test_every_kind_of_the_pack_has_a_row(benches):
    rows = benches("policies").POLICIES.values()
    kinds = {type(part) for row in rows for part in (row.retention, row.selection, row.schedule)}
    assert {*RETENTIONS, *SELECTIONS, *SCHEDULES} <= kinds


def test_a_kind_that_needs_no_parameters_takes_part_by_itself(benches):
    alone = benches("policies").completed({}, (DeCoPruneHS, SinkWindow))
    assert alone == {"sink_window": SinkWindow()}


def test_a_file_adds_its_rows_once(benches):
    policies = benches("policies")
    policies.add([str(EXAMPLE)])
    assert policies.chosen(["first_frames"], []) == ["first_frames"]
    with pytest.raises(SystemExit, match="names first_frames, which is taken"):
        policies.add([str(EXAMPLE)])


def test_a_file_without_rows_is_refused(benches, tmp_path):
    (tmp_path / "empty.py").write_text("POLICIES = {}\n")
    with pytest.raises(SystemExit, match="has no POLICIES"):
        benches("policies").add([str(tmp_path / "empty.py")])


def test_one_run_from_the_command_to_the_row(tmp_path):
    """Of two policies, one from a file; then once more, from what is finished."""
    command = [sys.executable, ROOT / "dev/benches/field.py", "--quick", "--only", "speed"]
    command += ["--policy", "first_frames", "--add", EXAMPLE, "--out", tmp_path]
    outputs = [
        subprocess.run(command, capture_output=True, text=True, timeout=300) for _ in range(2)
    ]
    assert not any(done.returncode for done in outputs), outputs[0].stderr
    first, second = (json.loads(done.stdout.splitlines()[-1])["rows"] for done in outputs)
    assert [row["policy"] for row in first] == ["full", "first_frames"] and first == second
    assert first[0]["speedup"] == 1 and first[1]["speedup"] > 0 and first[1]["recall"] is None
    assert "| first frames |" in (tmp_path / "field.md").read_text()


def test_names_lie_beside_points_and_not_on_each_other(benches):
    plot = benches("field_plot")
    points = [(100, 100), (100, 101), (104, 100), (300, 100), (399, 199)]
    frame = plot.Box(0, 0, 400, 200)
    boxes = plot.placed(points, [(80, 12)] * len(points), frame)
    for number, box in enumerate(boxes):
        assert box.inside(frame)
        assert not any(box.meets(other) for other in boxes[:number])
        assert not any(box.left < x < box.right and box.bottom < y < box.top for x, y in points)
    assert boxes[3].left == 300 + plot.RADII[0]  # one with room stands right of its point
