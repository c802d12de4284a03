"""Infinity-RoPE: hand cases of which frames a chunk reads, and where in time they stand."""

import pytest
import torch
from keepsake.kv_policies import InfinityRope, KVPolicy, KVStorage, SinkWindow, Take
from keepsake.rollout.timeline import PromptStart

from ... import fake
from .test_sink_window import history


def test_the_first_frame_and_the_latest_two_stand_right_before_the_chunk():
    """As in the paper: window 6, chunks of 3, positions 0 to 5 within the window."""
    seen, positions = history(InfinityRope(), 12, 3)
    assert seen == {0: [], 3: [0, 1, 2], 6: [0, 4, 5], 9: [0, 7, 8]}
    assert positions == {0: [], 3: [0, 1, 2], 6: [3, 4, 5], 9: [6, 7, 8]}


def test_frame_by_frame_the_latest_four_stay():
    seen, positions = history(InfinityRope(), 8, 1)
    assert seen[5] == positions[5] == [0, 1, 2, 3, 4]
    assert seen[7] == [0, 3, 4, 5, 6] and positions[7] == [2, 3, 4, 5, 6]


def test_a_window_as_long_as_the_take_equals_keeping_everything():
    full, *_ = fake.take(KVPolicy())
    windowed, *_ = fake.take(KVPolicy(InfinityRope(window_frames=8)))
    assert torch.equal(full, windowed)


def test_at_a_cut_the_same_frames_stand_45_frames_back_for_one_chunk():
    starts = [PromptStart(9, "cut")]
    seen, positions = history(InfinityRope(), 15, 3, starts=starts)
    assert seen[9] == [0, 7, 8] and positions[9] == [9 - 45, 10 - 45, 11 - 45]
    assert seen[12] == [0, 10, 11] and positions[12] == [9, 10, 11]


def test_frames_that_a_cut_has_moved_come_back():
    starts = [PromptStart(6, "cut")]
    seen, positions = history(InfinityRope(), 8, 1, starts=starts)
    assert seen[6] == [0, 2, 3, 4, 5] and positions[6] == [-39, -38, -37, -36, -35]
    assert seen[7] == [0, 3, 4, 5, 6] and positions[7] == [2, 3, 4, 5, 6]


def test_a_cut_before_the_sink_is_whole_moves_what_there_is():
    starts = [PromptStart(2, "cut")]
    seen, positions = history(InfinityRope(sink_frames=3), 8, 1, starts=starts)
    assert seen[2] == [0, 1] and positions[2] == [-43, -42]
    assert positions[3] == [0, 1, 2] and positions[7] == [2, 3, 4, 5, 6]


@pytest.mark.parametrize("mode", ["swap", "recache"])
def test_another_prompt_alone_leaves_the_memory_as_the_next_chunk_would(mode):
    seen, positions = history(InfinityRope(), 12, 3, starts=[PromptStart(9, mode)])
    assert seen[9] == [0, 7, 8] and positions[9] == [6, 7, 8]


def test_a_key_that_a_cut_moved_and_brought_back_is_the_one_it_was():
    """The sink's to the last bit: it is turned from its keys as they were written."""
    keys = []

    def look(session, forward, x, sigma):
        if forward.chunk.start_frame == 12:
            keys.append(fake.bank(session).read(1)[0][:, :6].clone())

    for starts in ([], [PromptStart(6, "cut")]):
        fake.take(KVPolicy(InfinityRope()), 15, 3, on_forward=look, starts=starts)
    # The take after the cut is another one, but frame 0 was written before it.
    assert torch.equal(keys[0], keys[-1])


def test_what_cannot_be_a_window_is_refused_in_words():
    take = Take(9, 0, (1.0, 0.0), 0)
    with pytest.raises(ValueError, match="are 4 latent frames. Use window_frames of at least 4"):
        InfinityRope(window_frames=3).check(fake.geometry(3), take)
    with pytest.raises(ValueError, match="sink_frames is 6 and window_frames 6"):
        InfinityRope(sink_frames=6)
    with pytest.raises(ValueError, match="use a cut_distance of at least 6"):
        InfinityRope(cut_distance=5)


def test_a_sink_in_fewer_bits_is_refused():
    policy = KVPolicy(InfinityRope(), storage=KVStorage(sink_frames=0))
    with pytest.raises(ValueError, match="Infinity-RoPE turns the keys of 1 latent frames"):
        policy.check(fake.geometry(3), Take(9, 0, (1.0, 0.0), 0))


@pytest.mark.parametrize("chunk_frames", [1, 2, 3])
def test_without_cuts_it_is_a_shifted_window_of_single_frames(chunk_frames):
    window = SinkWindow(1, 6, "shifted", whole_chunks=False)
    takes = [fake.take(KVPolicy(kind), 14, chunk_frames)[0] for kind in (InfinityRope(), window)]
    assert torch.equal(*takes)
