"""Rolling Sink: hand cases of what is replayed when, and where in time it stands."""

import pytest
import torch
from keepsake.kv_policies import DirectedForcing, KVPolicy, RollingSink, Take
from keepsake.kv_policies.retention.rolling_sink import replayed
from keepsake.rollout.timeline import PromptStart

from ... import fake
from .numbered import history, rotated

TAKE = Take(9, 0, (1.0, 0.0), 0)


def test_the_beginning_is_walked_to_its_end_and_back():
    assert replayed(torch.arange(14), 4).tolist() == [0, 1, 2, 3, 3, 2, 1, 0, 0, 1, 2, 3, 3, 2]


def test_a_chunk_reads_the_latest_one_and_a_replay_of_the_first_five_frames():
    """Window 7, chunks of 2: the first 5 frames, and which of them stand where, by hand."""
    seen = history(RollingSink(7), 18, 2)
    values = {start: values for start, (values, *_) in seen.items()}
    assert values == {
        0: [],
        2: [0, 1],
        4: [0, 1, 2, 3],
        6: [1, 2, 3, 4, 5],
        8: [3, 4, 4, 6, 7],  # frame 5's place: 4
        10: [4, 3, 2, 8, 9],  # those of 5, 6, 7
        12: [2, 1, 0, 10, 11],
        14: [0, 0, 1, 12, 13],  # those of 9, 10, 11: turned around once more
        16: [1, 2, 3, 14, 15],
    }
    for start, (values, positions, _) in seen.items():
        assert positions == list(range(start - len(values), start))


def test_a_replayed_key_is_the_first_one_turned_to_its_new_place():
    """Keys of frame f are f + 1 before they are rotated."""

    def bare(frame, cell):
        return (frame + 1.0)[None, :, None, None].expand(1, -1, fake.HEADS, fake.DIM)

    values, positions, state = history(RollingSink(7), 18, 2, bare)[12]
    source, cell = state["source"] // 6, state["cell"]
    assert source[::6].tolist() == values == [2, 1, 0, 10, 11]
    expected = rotated(bare(source, cell), state["position"], cell, fake.geometry(2))
    assert torch.allclose(state["layers"][1]["k"], expected, atol=1e-5)


def test_a_replayed_frame_counts_as_remembered_in_the_memory_map():
    _, trace, _ = fake.take(KVPolicy(RollingSink(7)), 14)
    row = trace.rows[-1]
    (kept,) = trace.memory_maps[0].by_group(row).flatten(2).all(-1).tolist()
    assert [frame for frame, is_kept in enumerate(kept) if is_kept] == [0, 1, 2, 10, 11, 12, 13]


def test_a_window_as_long_as_the_take_equals_keeping_everything():
    assert torch.equal(fake.take(KVPolicy(RollingSink(8)))[0], fake.take(KVPolicy())[0])


def test_a_cut_replays_the_new_shots_beginning():
    _, trace, _ = fake.take(KVPolicy(RollingSink(7)), 20, starts=[PromptStart(6, "cut")])
    row = trace.rows[-1]
    (kept,) = trace.memory_maps[0].by_group(row).flatten(2).all(-1).tolist()
    # As frames 0, 1, 2 and 10 to 13 of a take of 14, in the test above.
    assert [n - 6 for n, is_kept in enumerate(kept) if is_kept] == [0, 1, 2, 10, 11, 12, 13]


def test_a_recache_leaves_the_replay_and_runs_the_latest_chunk_again():
    _, trace, _ = fake.take(
        KVPolicy(RollingSink(7)), 16, starts=[PromptStart(12, "recache", recache_frames=12)]
    )
    assert any("latent frames 10 to 11 were run again" in note for note in trace.notes)


def test_what_cannot_be_a_window_is_refused_in_words():
    with pytest.raises(ValueError, match="are 7 latent frames. Use window_frames of at least 7"):
        RollingSink(6).check(fake.geometry(3), TAKE)
    with pytest.raises(ValueError, match="changes its RoPE"):
        RollingSink().check(fake.geometry(3, temporal_angles=()), TAKE)


def test_a_selection_of_frames_is_refused():
    policy = KVPolicy(RollingSink(), DirectedForcing())
    with pytest.raises(ValueError, match="rows are a replay or a mean of others"):
        policy.check(fake.geometry(3), TAKE)
