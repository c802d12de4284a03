"""DeCoPrune's and TempDiff's parts beside the authors' own functions (DeCoPrune/CMBench), on random
input.

`cmbench.safetensors` holds what those gave; its header names the commit. None of that code is here.
"""

from pathlib import Path

import pytest
import torch
from keepsake.kv_policies import BankPlan, Chunk, DeCoPrune, KVCache, Storage, Take, TempDiff
from keepsake.kv_policies.retention.reindex import virtual_frames
from keepsake.kv_policies.retention.scores import token_scores
from safetensors.torch import load_file

from ... import fake

AUTHORS = load_file(Path(__file__).with_name("cmbench.safetensors"))
GRID, FRAMES = (6, 10), 3  # of the scored chunk


def draw(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    "ours, theirs",
    [
        ("mse", "mse"),
        ("mse / token energy", "normalized_mse"),
        ("mse / chunk energy", "chunk_normalized_mse"),
        ("cosine distance", "cosine"),
    ],
)
def test_scores(ours, theirs):
    predicted, final = (draw(1, 16, FRAMES, 12, 20, seed=seed) for seed in (1, 2))
    expected = AUTHORS[f"scores_{theirs}"]
    if theirs == "cosine":  # what changed most has the lowest cosine there, the highest score here
        expected = 1 - expected
    torch.testing.assert_close(token_scores(ours, predicted, final, GRID), expected)


@pytest.mark.parametrize("least, floor, name", [(0, -1, "0_none"), (2, -1, "2_none"), (2, 2.2, "")])
def test_which_tokens_stay_with_and_without_a_spatial_floor(least, floor, name):
    policy = DeCoPrune(gamma=2.1, min_keep_per_block=least, floor_threshold=floor)
    geometry = fake.geometry(FRAMES, grid=GRID)
    run = policy.start(geometry, Take(9, 0, (1.0, 0.8, 0.5, 0.0), 0))
    keep = run.keep(AUTHORS["scores_mse"])
    assert torch.equal(keep, AUTHORS[f"mask_{name or '2_2.2'}"])
    assert 0 < keep.sum() < len(keep)


def test_where_a_history_of_40_frames_stands_after_the_re_index():
    ours = virtual_frames(torch.arange(40), 40, 17, 8)
    torch.testing.assert_close(ours, AUTHORS["positions_40"])


def test_which_blocks_of_30x52_tokens_temp_diff_keeps():
    """14 frames: of the 468 blocks of 5x4 tokens between the first and the latest four, 100."""
    tokens, frames = 30 * 52, 14
    geometry = fake.geometry(1, grid=(30, 52), heads=1, head_dim=4)
    plans = [BankPlan(frames, frames)]
    cache = KVCache(geometry, plans, Storage(), torch.float32, torch.device("cpu"))
    k = draw(1, frames * tokens, 1, 4, seed=3).split(tokens, 1)
    before = None
    for frame, now in enumerate(k):
        if frame:  # like the frame before, by a share that varies over the picture
            generator = torch.Generator().manual_seed(100 + frame)
            share = torch.rand(tokens, generator=generator)[None, :, None, None]
            now = share * before + (1 - share) * now
        cache.reserve(Chunk(frame, frame, 1).span)
        for layer in range(2):
            cache.banks[0].write(layer, now, now)
        cache.commit()
        before = now

    run = TempDiff(blocks=100).start(geometry, Take(18, frames, (1.0, 0.0), 0))
    run.begin_chunk(cache, Chunk(frames, frames, 1))
    ids = cache.banks[0].token_ids()
    assert len(ids) == 8 * tokens + 100 * 20
    assert torch.equal(ids[4 * tokens : -4 * tokens].int(), AUTHORS["temp_diff_ids"])
