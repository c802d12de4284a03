"""dev/ARENAS.md: its tables are what a dry run says, and its sums beside the papers' are right."""

from argparse import Namespace

import pytest
from arenas.cmbench.dry import TASKS, dry_row
from arenas.cmbench.takes import Protocol
from arenas.flags import FLAGS
from arenas.graphs import rows_of
from arenas.maker import Maker
from arenas.node_run import NodeRun
from arenas.sizes import DECODE, forecasts_of, model_of, operations_of, plan_of
from keepsake.rollout.dry_run import DryRun
from support.pack import ROOT

PAGE = (ROOT / "dev/ARENAS.md").read_text(encoding="utf-8")
TEXT = " ".join(PAGE.split())
LINGBOT = "lingbot-world-v2-14b-causal-fast/part.safetensors"
PROMPTS = 128


def rows(heading: str) -> list[list[str]]:
    """Cells of the table whose first column is `row`, under a heading."""
    section = PAGE.split(heading, 1)[1]
    lines = section.split("| row |", 1)[1].splitlines()[2:]
    table = lines[: next(n for n, line in enumerate(lines) if not line.startswith("|"))]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


def maker_of(checkpoint: str, chain: str, profile: str = "from file") -> Maker:
    values = {name: options["default"] for name, options in FLAGS.items()}
    values |= {"checkpoint": checkpoint, "profile": profile, "policy": [chain]}
    return Maker(rows_of(Namespace(**values))[0], NodeRun())


@pytest.mark.parametrize("cells", rows("## CMBench"), ids=lambda cells: cells[0])
def test_cmbench(cells):
    _, chain, cache, pruned, hours, _ = cells
    maker = maker_of(LINGBOT, chain.strip("`"), "LingBot-World v2 (CMBench)")
    row = dry_row(maker, [], 3, Protocol(), 400)
    assert row["takes"] == 3 * TASKS
    assert row["cache_gib"] == pytest.approx(float(cache), abs=0.05)
    assert row["prune_ratio"] == pytest.approx(float(pruned), abs=0.001)
    assert row["hours"] == pytest.approx(float(hours), abs=0.05)


@pytest.mark.parametrize("cells", rows("## VBench"), ids=lambda cells: cells[0])
def test_vbench(cells):
    _, chain, frames, cache, hours, slower = cells
    maker = maker_of("self_forcing_dmd.safetensors", chain.strip("`"))
    model = model_of(maker.row, maker, Protocol().size)
    policy = maker.policy or model.profile.policy()
    forecast = forecasts_of(plan_of(model, policy, 0, int(frames)), model.shape).expected
    work = PROMPTS * (forecast.operations + DECODE * int(frames)) / 1e12 / 3600
    assert forecast.cache_bytes / 2**30 == pytest.approx(float(cache), abs=0.05)
    assert (work / 400, work / 66) == pytest.approx((float(hours), float(slower)), abs=0.05)
    if cells[0] == "Self-Forcing, 31 s":
        assert f"the count at 400 says {work / 400 * 3600 / PROMPTS:.0f}." in TEXT


def test_the_paper_beside_the_count():
    """FullKV's continuation behind 244 latent frames: 4 chunks of 4, in 4 steps and a clean pass.
    The paper: 64 pixel frames at 1.568 a second, on four GPUs.
    """
    maker = maker_of(LINGBOT, "full", "LingBot-World v2 (CMBench)")
    model = model_of(maker.row, maker, Protocol().size)
    chunks = DryRun(plan_of(model, maker.policy, 244, 16), 0.0).chunks()
    new = [chunk.row for chunk in chunks if not chunk.row.given]
    work = sum(operations_of(model.geometry, model.shape, row, [4] * 5) for row in new)
    assert len(new) == 4
    assert f"which is {64 / 1.568 * 4:.0f} GPU seconds" in TEXT
    assert f"the count says {work / 400e12:.0f}." in TEXT
