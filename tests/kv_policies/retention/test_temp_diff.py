"""TempDiff as the paper runs it, by hand: which blocks of the given frames stay."""

import pytest
import torch
from keepsake.kv_policies import (
    BankPlan,
    Chunk,
    DirectedForcing,
    KVCache,
    KVPolicy,
    KVStorage,
    Storage,
    Take,
    TempDiff,
)
from keepsake.kv_policies.retention.temp_diff import Blocks
from keepsake.rollout.timeline import PromptStart

from ... import fake

SMALL = dict(sink_frames=1, recent_frames=1, reindex="off")


def given_cache(frames: int, turned: list[tuple[int, int]], grid=fake.GRID) -> KVCache:
    """A history of frames whose keys are equal, but for tokens (frame, cell) that point elsewhere
    from that frame on. Layer 0 holds nothing but noise.
    """
    geometry = fake.geometry(1, grid=grid)
    plans = [BankPlan(frames, frames)]
    cache = KVCache(geometry, plans, Storage(), torch.float32, torch.device("cpu"))
    cells = grid[0] * grid[1]
    now = torch.ones(1, cells, fake.HEADS, fake.DIM)
    for frame in range(frames):
        for at, cell in turned:
            if at == frame:
                now[:, cell] *= -1
        cache.reserve(Chunk(frame, frame, 1).span)
        noise = torch.randn(now.shape, generator=torch.Generator().manual_seed(frame))
        for layer, k in enumerate((noise, now)):
            cache.banks[0].write(layer, k, k)
        cache.commit()
    return cache


def kept(policy: TempDiff, frames: int, turned: list[tuple[int, int]], grid=fake.GRID) -> list:
    """Ids of the tokens that stay of that history."""
    cache = given_cache(frames, turned, grid)
    take = Take(frames + 2, frames, (1.0, 0.0), 0)
    run = policy.start(cache.geometry, take)
    run.begin_chunk(cache, Chunk(frames, frames, 1))
    return cache.banks[0].token_ids().tolist()


def test_the_tokens_stay_that_are_about_to_change():
    """Frame 2, cell 4 changes in frame 3: what stays is how it was before."""
    ids = kept(TempDiff(blocks=1, **SMALL), 5, [(3, 4)])
    assert ids == [*range(6), 2 * 6 + 4, *range(24, 30)]


def test_a_change_into_the_latest_frames_counts_and_one_inside_the_sink_does_not():
    """Four frames: sink 0, latest 3; the pairs are (1, 2) and (2, 3)."""
    assert kept(TempDiff(blocks=1, **SMALL), 4, [(1, 0), (3, 5)])[6:-6] == [2 * 6 + 5]


def test_of_equal_blocks_the_earlier_stay():
    assert kept(TempDiff(blocks=2, **SMALL), 4, [])[6:-6] == [6, 7]


def test_blocks_are_a_6x13_grid_of_the_frame_at_most():
    assert Blocks.of((30, 52)) == ((30, 52), (5, 4)) and Blocks.of((30, 52)).shape == (6, 13)
    blocks = Blocks.of((22, 40))  # 704x1280 at 16 pixels a latent, two latents a token
    assert blocks.size == (4, 4) and blocks.shape == (6, 10) and blocks.tokens_in(60) == 880


def test_a_block_is_chosen_as_a_whole():
    """12x26 tokens: 6x13 blocks of 2x2. One token changes, and its block stays."""
    ids = kept(TempDiff(blocks=1, **SMALL), 3, [(2, 3 * 26 + 5)], grid=(12, 26))
    tokens = 12 * 26
    assert [i - tokens for i in ids[tokens:-tokens]] == [2 * 26 + 4, 2 * 26 + 5, 82, 83]


def test_the_papers_count_at_the_papers_size_and_the_same_share_elsewhere():
    assert TempDiff().kept_blocks(232 * 78) == 1657
    assert TempDiff().kept_blocks(32 * 78) == 229  # 40 frames
    assert TempDiff(blocks=1657).kept_blocks(1000) == 1000


def test_it_chooses_once_and_what_is_made_stays():
    seen = {}

    def look(session, forward, x, sigma):
        bank = fake.bank(session)
        seen[forward.chunk.start_frame] = bank.frame[: bank.committed].bincount().tolist()

    policy = KVPolicy(TempDiff(blocks=5, **SMALL))
    _, trace, _ = fake.take(policy, 12, prefix=fake.noise_of(6, seed=9), on_forward=look)
    assert seen[4] == [6, 6, 6, 6]
    assert sum(seen[6]) == 6 + 5 + 6 and seen[6][0] == seen[6][5] == 6
    assert seen[10] == seen[6] + [6] * 4
    assert "TempDiff kept 5 of 24 blocks" in " ".join(trace.notes)


def test_the_re_index_comes_after_the_choice():
    policy = TempDiff(blocks=1, sink_frames=1, recent_frames=1, virtual_length=4, reindex_recent=1)
    cache = given_cache(9, [])
    run = policy.start(cache.geometry, Take(12, 9, (1.0, 0.0), 0))
    run.begin_chunk(cache, Chunk(9, 9, 1))
    bank = cache.banks[0]
    # Frames 0, 1 and 8 of 9 are 9, 8 and 1 frames back: 4, 1 + 7 * 3 / 8 and 1 when squeezed.
    assert bank.position[[0, 6, 7]].tolist() == [5, 9 - (1 + 7 * 3 / 8), 8]


def test_without_given_frames_everything_stays_and_the_report_says_so():
    out, trace, _ = fake.take(KVPolicy(TempDiff()))
    assert torch.equal(out, fake.take(KVPolicy())[0])
    assert "TempDiff chose nothing, for no frames were given" in " ".join(trace.notes)


def test_a_cut_where_generation_begins_leaves_nothing_to_choose():
    policy, prefix = KVPolicy(TempDiff(blocks=1, **SMALL)), fake.noise_of(6, seed=9)
    _, trace, _ = fake.take(policy, 12, prefix=prefix, starts=[PromptStart(6, "cut")])
    assert trace.rows[-1].kept_tokens == trace.rows[-1].full_tokens


def test_from_coded_tokens_it_chooses_as_many_and_makes_nearly_the_same_take():
    options = dict(frames=18, prefix=fake.noise_of(12, seed=9))
    policy = TempDiff(blocks=40, **SMALL)
    plain, trace, _ = fake.take(KVPolicy(policy), **options)
    coded, less, _ = fake.take(KVPolicy(policy, storage=KVStorage("int8", 1, 1)), **options)
    assert 0 < (plain - coded).abs().mean() < 0.1 * plain.abs().mean()
    kept = [[row.kept_tokens for row in rows] for rows in (trace.rows, less.rows)]
    assert kept[0] == kept[1] and kept[0][6] == (6 + 40 + 6) * fake.LAYERS * fake.HEADS


def test_directed_forcing_reads_a_part_of_what_it_kept():
    policy = KVPolicy(TempDiff(blocks=5, **SMALL), DirectedForcing(uniform_budget=4, active_from=4))
    out, trace, _ = fake.take(policy, 12, prefix=fake.noise_of(6, seed=9))
    assert torch.isfinite(out).all() and "the mean head read" in " ".join(trace.notes)


@pytest.mark.parametrize("stop", [4, 6, 8])
def test_saved_before_or_after_the_choice_it_goes_on_to_the_last_bit(stop):
    kept, options = [], dict(frames=12, prefix=fake.noise_of(6, seed=9))
    policy = KVPolicy(
        TempDiff(blocks=5, sink_frames=1, recent_frames=1, virtual_length=4, reindex_recent=1)
    )
    whole, trace, _ = fake.take(policy, **options)
    fake.take(policy, stop_after=stop, on_memory=kept.append, **options)
    on, later, _ = fake.take(policy, memory=kept[0], **options)
    assert torch.equal(whole, on) and trace.notes == later.notes


def test_impossible_values_are_refused():
    for wrong, sentence in (
        (dict(blocks=-1), "blocks is -1. Use at least 0"),
        (dict(recent_frames=0), "recent_frames is 0. Use at least 1"),
        (dict(reindex_recent=17), "Use a reindex_recent below"),
    ):
        with pytest.raises(ValueError, match=sentence):
            TempDiff(**wrong)
