"""The README's table of what a 1.3B model's memory needs is what the dry run says."""

import re
from pathlib import Path

import pytest
import torch
from keepsake.kv_policies import DeCoPrune, Geometry, KVPolicy, KVStorage, SinkWindow, Take
from keepsake.rollout.chunks import plan_chunks
from keepsake.rollout.estimate import estimate, peaks
from keepsake.rollout.take_plan import TakePlan

README = Path(__file__).parents[2] / "README.md"
WAN_1_3B = Geometry(
    layers=30, heads=12, head_dim=128, grid=(30, 52), chunk_frames=3, temporal_channels=44
)
SIGMAS = (1.0, 0.9375, 0.8333, 0.625, 0.0)
ROWS = {
    "Full": KVPolicy(),
    "Full, in 4 bits": KVPolicy(storage=KVStorage("int4")),
    "Full, in main memory": KVPolicy(storage=KVStorage("model", device="cpu")),
    "DeCoPrune, where 15 % of the tokens stay": KVPolicy(DeCoPrune()),
    "DeCoPrune, in 4 bits": KVPolicy(DeCoPrune(), storage=KVStorage("int4")),
    "Sink + Window, 3 + 18 frames": KVPolicy(SinkWindow(3, 21)),
}


@pytest.mark.parametrize("column, frames", [(0, 60), (1, 240)])
@pytest.mark.parametrize("row", ROWS)
def test_what_a_card_needs(row, column, frames):
    (cells,) = re.findall(rf"^\| {re.escape(row)} \| (.*) \|$", section("Which card"), re.MULTILINE)
    plan = TakePlan(
        policy=ROWS[row],
        geometry=WAN_1_3B,
        take=Take(total_frames=frames, given_frames=0, sigmas=SIGMAS, seed=0),
        chunks=plan_chunks(frames, WAN_1_3B.chunk_frames, 0),
        streams=1,
        dtype=torch.bfloat16,
        share=0.15,
    )
    simulated = estimate(plan)
    peak = peaks(simulated.expected or simulated.most)
    said = f"{peak.needed / 2**30:.1f}"
    if peak.main:
        said += f", and {peak.main / 2**30:.1f} there"
    assert cells.split(" | ")[column] == said


def section(title: str) -> str:
    text = README.read_text(encoding="utf-8")
    return text.split(f"\n## {title}\n")[1].split("\n## ")[0]
