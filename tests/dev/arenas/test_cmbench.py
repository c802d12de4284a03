"""dev/bench cmbench from the data to the table, with the demo world."""

import json
import os
import shlex
import subprocess
import sys
from argparse import Namespace

import av
import pytest
import torch
from arenas.cmbench import command
from arenas.cmbench.flags import FLAGS
from arenas.cmbench.scores import DIRECT, OWN
from arenas.cmbench.table import table
from safetensors.torch import load_file, save_file
from support.pack import ROOT

from .cmbench_data import TASKS, write_data
from .tiny_models import dino, owl, sam

WINDOW = "sinkwindow:window_frames=6,sink_frames=3"
WINDOW_ROW = "sinkwindow_window_frames=6,sink_frames=3"
CONTEXT, NEW = 6, 4  # latent frames: each context of the data fills two chunks of three
# The window holds six latent frames, the chunk in work among them; FullKV has 6 and 9 before it,
# and of both the first chunk's three stay.
PRUNED = 1 - (3 + 3) / (6 + 9)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("cmbench"))


def flags(folder, out, **changes) -> Namespace:
    values = {name: options.get("default", False) for name, options in FLAGS.items()}
    values |= {
        "data": str(folder),
        "out": str(out),
        "checkpoint": "demo",
        "seeds": "2",
        "size": "32x64",
    }
    return Namespace(**{**values, "quick": False, "frames": NEW, **changes})


@pytest.fixture(scope="module")
def finished(data, tmp_path_factory):
    """All six tasks under two policies: the folder, the table, and what was said."""
    out, said = tmp_path_factory.mktemp("takes"), []
    kinds = {"dino": dino, "owl": owl, "sam": sam}
    folders = {name: str(save(out / "models" / name)) for name, save in kinds.items()}
    rows, failed = command.run(
        flags(
            data,
            out,
            policy=["full", WINDOW],
            **folders,
            export=str(out / "export"),
        ),
        said.append,
    )
    assert not failed
    return out, rows, said


def test_each_task_and_seed_has_a_video_and_its_record(finished):
    out, _, said = finished
    for row in ("full", WINDOW_ROW):
        for name, *_ in TASKS:
            record = json.loads((out / row / f"seed2/{name}.json").read_text())
            assert (record["task_id"], record["seed"]) == (name, 2)
            given, new = record["context_latent_frames"], record["output_latent_frames"]
            assert (given, new) == (CONTEXT, NEW)
            assert record["versions"]["keepsake"] and record["measured"]["frames_per_second"] > 0
            with av.open(str(out / row / f"seed2/{name}.mp4")) as video:
                stream = video.streams.video[0]
                assert (stream.frames, stream.average_rate) == (4 * NEW, 16)
                assert (stream.height, stream.width) == (32, 64)
    assert sum("left, about" in line for line in said) == 2 * len(TASKS) - 1


def test_the_prune_ratio_is_the_stats_and_the_hand_count(finished):
    out, rows, _ = finished
    full, window = rows
    assert full["prune_ratio"] == 0 and window["prune_ratio"] == pytest.approx(PRUNED)
    record = json.loads((out / WINDOW_ROW / "seed2/real_001_revisit_01.json").read_text())
    assert record["prune_ratio"] == pytest.approx(PRUNED)
    assert 1 - record["kept_tokens"] / record["full_tokens"] == record["prune_ratio"]


def test_the_table_has_what_was_measured(finished):
    full, window = finished[1]
    assert (full["tasks"], full["takes"], full["speedup"]) == (6, 6, 1)
    assert window["speedup"] == pytest.approx(window["fps"] / full["fps"])
    assert window["cache_gib"] < full["cache_gib"]
    for measure in (DIRECT, OWN):
        assert -1 <= full[measure] <= 1 and full[f"{measure} ci95"] >= 0


def test_intervals_are_over_tasks():
    """Two tasks, a seed twice: the mean of 0 and 1, and half the width of 0 to 1."""

    def record(ratio):
        measured = {"continuation_seconds": 2.0, "frames_per_second": 8.0}
        return {"prune_ratio": ratio, "peak_cache_bytes": 2**30, "measured": measured}

    (row,) = table({"full": {"a": [record(0.0)] * 2, "b": [record(0.5), record(1.5)]}})
    assert (row["prune_ratio"], row["prune_ratio ci95"]) == (0.5, 0.5)
    assert (row["tasks"], row["takes"], row["fps"], row["cache_gib"]) == (2, 4, 8, 1)


def timeless(file) -> bytes | dict:
    """A file, without what a clock says and what a measure has added."""
    if file.suffix != ".json":
        return file.read_bytes()
    record = json.loads(file.read_text())
    return {key: value for key, value in record.items() if key not in ("measured", "scores")}


def test_interrupted_and_restarted_gives_the_same_files(data, finished, tmp_path, monkeypatch):
    asked = flags(data, tmp_path, policy=["full"], tasks="real*")
    take_of, made = command.take_of, []

    def counted(maker, task, *rest):
        if len(made) == 1:
            raise KeyboardInterrupt
        made.append(task.name)
        return take_of(maker, task, *rest)

    monkeypatch.setattr(command, "take_of", counted)
    with pytest.raises(KeyboardInterrupt):
        command.run(asked, lambda line: None)
    before = {file: file.read_bytes() for file in tmp_path.rglob("*real*.*")}
    assert len(before) == 2 and not list(tmp_path.rglob("*.part"))
    monkeypatch.setattr(command, "take_of", take_of)
    said = []
    command.run(asked, said.append)
    assert said[0] == "1 of 2 takes are there already."
    assert all(file.read_bytes() == content for file, content in before.items())
    for file in tmp_path.rglob("*real*.*"):
        assert timeless(file) == timeless(finished[0] / file.relative_to(tmp_path))


def test_one_broken_task_stops_no_other(data, tmp_path, monkeypatch):
    pictures = torch.zeros(4, 64, 128, 3, dtype=torch.uint8)

    def stub(maker, task, seed, *rest):
        if task.name.startswith("syn_002"):
            raise RuntimeError("out of luck")
        measured = {"continuation_seconds": 1.0, "frames_per_second": 4.0}
        record = {"prune_ratio": 0.0, "peak_cache_bytes": 1, "measured": measured}
        return pictures, 16, record

    monkeypatch.setattr(command, "take_of", stub)
    rows, failed = command.run(flags(data, tmp_path, policy=["full"]), lambda line: None)
    assert failed == ["full/seed2/syn_002_reappear_01"] and rows[0]["tasks"] == 5


def test_a_dry_run_knows_the_prune_ratio(data, finished):
    """Of the same takes, without making them; and hours as those there took."""
    out, made, _ = finished
    asked = flags(data, out, policy=["full", WINDOW], dry_run=True)
    rows, _ = command.run(asked, lambda line: None)
    for row, was in zip(rows, made):
        assert row["prune_ratio"] == pytest.approx(was["prune_ratio"])
        assert row["prune_ratio_least"] == row["prune_ratio_most"]
        assert row["cache_gib"] == pytest.approx(was["cache_gib"])
        assert row["hours_as_measured"] > 0


def test_a_dry_run_of_a_checkpoint_that_is_not_there(tmp_path):
    """LingBot-World v2 behind a minute: 61 chunks of 4 latent frames are given and 4 are new."""
    window = "sinkwindow:window_frames=18,sink_frames=6"
    asked = flags(
        "",
        tmp_path,
        checkpoint="lingbot-world-v2-14b-causal-fast/part.safetensors",
        policy=["full", window, "decoprune:mode=threshold,gamma=0.1"],
        frames=16,
        size="",
        dry_run=True,
    )
    (full, short, pruned), _ = command.run(asked, lambda line: None)
    frame = 2 * 40 * 5120 * 1560 * 2 / 2**30  # keys and values of a latent frame in bfloat16
    assert full["cache_gib"] == pytest.approx(260 * frame)
    # The window's 18 hold 14 of the 244, 248, 252 and 256 latent frames before a new chunk.
    assert short["prune_ratio"] == pytest.approx(1 - 4 * 14 / 1000)
    assert short["cache_gib"] == pytest.approx(18 * frame)
    assert pruned["prune_ratio_least"] == 0 < pruned["prune_ratio"] < pruned["prune_ratio_most"]
    assert full["hours"] > pruned["hours"] > short["hours"]


def test_the_authors_evaluator_gets_boxes_in_pixels(data, finished):
    out, _, said = finished
    inputs = (out / "export/inputs/annotations.jsonl").read_text().splitlines()
    row = json.loads(inputs[1])
    assert row["case_id"] == "syn_001_revisit_01" and row["memory_level"] == "scene"
    by_time, given = row["references"]
    # 0.1, 0.2, 0.3, 0.9 of 128x64: 12.8 and 12.8 down, 38.4 and 57.6 up.
    assert given["bbox_xyxy"] == [12, 12, 39, 58] and given["frame"] == 12
    assert by_time["bbox_xyxy"] == [0, 0, 128, 64] and by_time["frame"] == 7
    case = out / "export/full/seed2/syn_001_revisit_01"
    about = json.loads((case / "metadata.json").read_text())
    assert (about["case_id"], about["method"]) == ("syn_001_revisit_01", "full")
    assert about["output_pixel_frames"] == 4 * NEW and (case / "continuation.mp4").is_file()
    script = out / "export/evaluate.sh"
    assert f"For the authors' evaluator (2 calls): fill in {script}." in said
    call = shlex.split(script.read_text().splitlines()[-1])
    assert call[call.index("--benchmark-root") + 1] == str(data)
    assert [part for part in call if part.endswith("/seed2/syn_001_revisit_01")] == [
        str(out / "export" / WINDOW_ROW / "seed2/syn_001_revisit_01")
    ]
    assert call[call.index("--scoring-path") + 1] == "owl_sam_dino"


def test_an_export_is_refused_before_any_take(data, tmp_path):
    (tmp_path / "file").touch()
    asked = flags(data, tmp_path / "takes", policy=["full"], export=str(tmp_path / "file/x"))
    with pytest.raises(ValueError, match=r"--export is .*, where nothing can be written \("):
        command.run(asked, pytest.fail)
    assert not (tmp_path / "takes").exists()


def test_a_measure_by_other_models_is_made_anew(data, tmp_path):
    def measured(folder) -> float:
        asked = flags(data, tmp_path, policy=["full"], tasks="syn_002*", dino=str(folder))
        ((row,), _) = command.run(asked, lambda line: None)
        return row[DIRECT]

    first, second = (dino(save) for save in (tmp_path / "a", tmp_path / "b"))
    was = measured(first)
    state = load_file(second / "model.safetensors")
    save_file(
        {k: v.flip(0) for k, v in state.items()}, second / "model.safetensors", {"format": "pt"}
    )
    assert measured(second) != was and measured(first) == was


def test_a_take_that_cannot_be_measured_stops_no_other(data, tmp_path, monkeypatch):
    def stub(results, name, task, folders):
        if task.name.startswith("syn_002"):
            raise RuntimeError("out of memory")
        record = results.read(name)
        results.amend(name, record | {"scores": {DIRECT: {"score": 0.5}}})

    monkeypatch.setattr(command, "score", stub)
    said = []
    ((row,), failed) = command.run(flags(data, tmp_path, policy=["full"]), said.append)
    assert row["tasks"] == 6 and not failed and DIRECT not in row
    (line,) = [line for line in said if "NOT MEASURED" in line]
    assert line.startswith("full/seed2/syn_002_reappear_01 is NOT MEASURED (RuntimeError: out of")


def test_a_folder_of_another_model_is_refused_before_any_take(data, tmp_path):
    folder = dino(tmp_path / "dino")
    (folder / "model.safetensors").unlink()
    asked = flags(data, tmp_path / "takes", policy=["full"], dino=str(folder))
    with pytest.raises(ValueError, match=r"The folder of DINOv2, .*, cannot be loaded \("):
        command.run(asked, pytest.fail)
    (folder / "config.json").write_text("[]")
    with pytest.raises(ValueError, match=r"config\.json is no model's config \("):
        command.run(asked, pytest.fail)
    assert not (tmp_path / "takes").exists()


@pytest.mark.parametrize(
    "changes, says",
    [
        (dict(data=""), "--data is not given"),
        (dict(tasks="moon*"), "--tasks is 'moon*', which none of the 6 tasks matches"),
        (dict(seeds="2,2"), "--seeds is '2,2'"),
        (dict(size="480"), "--size is '480'"),
        (dict(frames=0), "--frames is 0"),
        (dict(camera="up"), "--camera is 'up': no path"),
        (dict(owl="somewhere"), "--owl and --sam belong together"),
        (dict(dino="/no/folder"), "--dino is /no/folder, which is no folder"),
        (
            dict(checkpoint="/no/file.safetensors"),
            "Model in folder 'diffusion_models' with filename",
        ),
        (dict(policy=["headless"]), "--policy names 'headless'"),
        (dict(policy=["rollingforcing:window_frames=3"]), "window_frames is 3, and the chunks"),
    ],
)
def test_what_is_wrong_is_said_before_any_work(data, tmp_path, changes, says):
    with pytest.raises(ValueError) as refused:
        command.run(flags(data, tmp_path, **changes), lambda line: None)
    assert str(refused.value).startswith(says)


def test_the_module_runs_in_an_environment_of_ones_own():
    """As the help says; `python -m` puts the checkout itself on the path, whose nodes/ would hide
    the host's.
    """
    command_line = [sys.executable, "-m", "dev.arenas", "cmbench", "--dry-run"]
    command_line += ["--profile", "LongLive 1.3B", "--checkpoint", "none.safetensors"]
    done = subprocess.run(
        [*command_line, "--policy", "profile"],
        cwd=ROOT,
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout.splitlines()[-1])["rows"]
    # Its window of 12 and the chunk of 3 in work: 9 of 243, 246 ... 258 latent frames.
    assert row["prune_ratio"] == pytest.approx(1 - 6 * 9 / sum(range(243, 259, 3)))
