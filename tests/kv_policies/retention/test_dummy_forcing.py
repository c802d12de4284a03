"""Dummy Forcing: three kinds of heads, told apart once in a take. Two layers of two heads, six
tokens a frame, two frames a chunk.
"""

import pytest
import torch
from keepsake.kv_policies import (
    Chunk,
    DummyForcing,
    KVCache,
    KVMemoryError,
    KVPolicy,
    KVStorage,
    Storage,
    Take,
)
from keepsake.kv_policies.retention.dummy_forcing import first_and_middle_mass, kinds_of
from keepsake.rollout.timeline import PromptStart

from ... import fake

POLICY = DummyForcing(num_dummy=1)


def frames_of(retention, frames=14, chunk_frames=2, **options):
    """By chunk: the frames that it could read in each bank, and the heads of the bank by layer."""
    seen = []

    def look(session, forward, x, sigma):
        banks = fake.banks(session, next(iter(session.streams)))
        if len(seen) <= forward.chunk.index:
            held = [sorted(set(bank.frame[: bank.committed].tolist())) for bank in banks]
            seen.append((held, [bank.heads for bank in banks]))

    _, trace, transformer = fake.take(
        KVPolicy(retention), frames, chunk_frames, on_forward=look, **options
    )
    return seen, trace, transformer


def test_heads_are_told_apart_after_chunk_ar_start():
    """Before, all of them hold the first frame and the latest three; then each kind its own."""
    seen, trace, _ = frames_of(POLICY)
    everyone = ((0, 1), (0, 1))
    assert [held[0] for held, _ in seen[:3]] == [[], [0, 1], [1, 2, 3]]
    assert [heads[0] for _, heads in seen[:2]] == [everyone, everyone]
    for chunk in range(2, 7):
        start = 2 * chunk
        assert seen[chunk][0] == [[start - 3, start - 2, start - 1], [0], [start - 1]]
        assert seen[chunk][1] == seen[2][1] and sum(map(len, seen[chunk][1][2])) == 1
    (note,) = trace.notes
    assert "Dummy Forcing: of 4 heads " in note and "1 the latest one." in note


def test_ar_start_counts_three_frames_of_frame_wise_models_as_one_chunk():
    seen, *_ = frames_of(POLICY, 8, 1)
    kept_together = [heads[0] == ((0, 1), (0, 1)) for _, heads in seen]
    assert kept_together == [True] * 6 + [False] * 2


def test_a_share_of_the_heads_are_dummies():
    """None, half and all of the four heads are dummies."""
    counts = []
    for share in (0.0, 0.5, 1.0):
        seen, *_ = frames_of(DummyForcing(dummy_share=share), 8)
        counts.append(sum(map(len, seen[-1][1][2])))
    assert counts == [0, 2, 4]


def test_attention_mass_by_hand():
    """Two queries of one channel over four keys, all alike but the first one, which gets 2/5 of the
    first query's attention and 1/4 of the second one's; two keys are the chunk's own.
    """
    q = torch.tensor([2.0, 0.0]).log1p()[:, None, None]
    k = (
        torch.tensor([1.0, 0, 0, 0])[:, None, None]
        * torch.tensor(2.0).log()
        / torch.tensor(3.0).log()
    )
    mass = first_and_middle_mass(q, k, 1, 2)
    torch.testing.assert_close(mass, torch.tensor([[(2 / 5 + 1 / 4) / 2, (1 / 5 + 1 / 4) / 2]]))


def test_kinds_by_hand():
    """Divided by their sums 10 and 1, the heads have 0.5 and 0.2, 0.3 and 0.4, 0.1 and 0.15, 0.1
    and 0.25. The third one's larger share is the smallest.
    """
    masses = torch.tensor([[[5.0, 0.2], [3.0, 0.4]], [[1.0, 0.15], [1.0, 0.25]]])
    assert kinds_of(masses, 1).tolist() == [[1, 0], [2, 0]]
    assert kinds_of(masses, 2).tolist() == [[1, 0], [2, 2]]
    assert kinds_of(masses, 0).tolist() == [[1, 0], [0, 0]]


def test_a_chunk_without_history_decides_nothing():
    take = Take(12, 0, (1.0, 0.8, 0.5, 0.0), 1)
    run = POLICY.start(fake.geometry(), take)
    plans = POLICY.banks(fake.geometry(), take)
    cache = KVCache(fake.geometry(), plans, Storage(), torch.float32, torch.device("cpu"))
    chunk = Chunk(4, 8, 2)
    cache.reserve(chunk.span)
    for layer in range(2):
        run.observe(layer, chunk, 3, torch.zeros(1, 12, 2, 8), cache.banks[0])
    cache.commit()
    run.after_clean(cache, chunk, torch.zeros(1, 4, 2, 4, 6))
    assert run.kinds == [] and cache.banks[0].heads == ((0, 1), (0, 1))


def test_rows_are_drawn_from_the_take_and_from_nothing_else():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    heads = [frames_of(POLICY)[0][-1][1] for _ in range(2)]
    assert heads[0] == heads[1] and torch.equal(torch.get_rng_state(), before)


def test_a_take_that_goes_on_decides_nothing_again():
    """Stopped after the decision: its first chunk has the heads of the take in one run."""
    whole, *_ = frames_of(POLICY)
    kept = []
    fake.take(KVPolicy(POLICY), 14, stop_after=6, on_memory=kept.append)
    state = kept[0].streams["prompt 0"]["retention"]
    assert sorted({kind for layer in state["kinds"] for kind in layer} - {2}) != []
    seen = []

    def look(session, forward, x, sigma):
        seen.append([bank.heads for bank in fake.banks(session)])

    fake.take(KVPolicy(POLICY), 14, memory=kept[0], on_forward=look)
    assert seen[0] == whole[-1][1]


@pytest.mark.parametrize("kinds", [[[0, 1]], [[0, 1], [0, 3]], [[0, 1], [0]], "no list"])
def test_a_memory_with_other_heads_is_refused(kinds):
    run = POLICY.start(fake.geometry(), Take(8, 0, (1.0, 0.0), 1))
    with pytest.raises(KVMemoryError, match="must be|has"):
        run.restore({"kinds": kinds, "first_frame": 0})


def test_a_cut_keeps_the_kinds_and_begins_with_its_own_first_frame():
    seen, *_ = frames_of(POLICY, starts=(PromptStart(8, "cut"),))
    assert seen[4][0] == [[], [], []] and seen[4][1] == seen[3][1]
    assert seen[6][0] == [[9, 10, 11], [8], [11]]


def test_a_recache_runs_its_frames_together_and_begins_with_the_first_of_them():
    """As LongLive's authors' code with Dummy Forcing does: frames 4 to 7 read each other alone."""
    starts = (PromptStart(8, "recache", recache_frames=4),)
    seen, _, transformer = frames_of(POLICY, starts=starts, together=True)
    assert (4, 4, 0.0) in transformer.calls
    assert seen[4][0] == [[5, 6, 7], [4], [7]] and seen[6][0] == [[9, 10, 11], [4], [11]]


def test_a_storage_in_fewer_bits_is_refused():
    policy = KVPolicy(POLICY, storage=KVStorage("int8"))
    with pytest.raises(ValueError, match="Dummy Forcing tells heads apart in mid-take"):
        policy.check(fake.geometry(), Take(8, 0, (1.0, 0.0), 1))
    KVPolicy(POLICY, storage=KVStorage("model", device="cpu")).check(
        fake.geometry(), Take(8, 0, (1.0, 0.0), 1)
    )


def test_what_cannot_work_is_refused_in_a_sentence():
    with pytest.raises(ValueError, match="ar_start is 0. Use at least 1"):
        DummyForcing(ar_start=0)
    with pytest.raises(ValueError, match="dummy_share is 2. Use a number from 0 to 1"):
        DummyForcing(dummy_share=2)
    with pytest.raises(ValueError, match="num_dummy is 5, and this model has 4 heads. Use at most"):
        DummyForcing(num_dummy=5).check(fake.geometry(), Take(8, 0, (1.0, 0.0), 1))
