"""Sink + window: hand cases of which frames a chunk can read."""

import pytest
import torch
from keepsake.kv_policies import KVPolicy, SinkWindow, Take
from keepsake.rollout.timeline import PromptStart

from ... import fake


def history(policy, frames, chunk_frames, prefix=None, starts=()):
    """Frames in the cache beside a chunk's own, while it is made: {start frame: [frames]}, and the
    positions of their tokens.
    """
    seen, positions = {}, {}

    def look(session, forward, x, sigma):
        bank = fake.bank(session)
        start = forward.chunk.start_frame
        seen[start] = sorted(set(bank.frame[: bank.committed].tolist()))
        positions[start] = bank.position[: bank.committed : 6].tolist()

    fake.take(KVPolicy(policy), frames, chunk_frames, prefix, on_forward=look, starts=starts)
    return seen, positions


def test_sliding_window_keeps_the_latest_whole_chunks():
    seen, _ = history(SinkWindow(0, 6), 10, 2)
    assert seen == {0: [], 2: [0, 1], 4: [0, 1, 2, 3], 6: [2, 3, 4, 5], 8: [4, 5, 6, 7]}


def test_sink_frames_stay_and_count_in_the_window():
    seen, _ = history(SinkWindow(2, 6), 12, 2)
    assert seen == {
        0: [],
        2: [0, 1],
        4: [0, 1, 2, 3],
        6: [0, 1, 4, 5],
        8: [0, 1, 6, 7],
        10: [0, 1, 8, 9],
    }


def test_a_window_that_is_no_multiple_of_the_chunk_keeps_whole_chunks():
    seen, _ = history(SinkWindow(0, 7), 12, 3)
    assert seen == {0: [], 3: [0, 1, 2], 6: [3, 4, 5], 9: [6, 7, 8]}


def test_a_window_of_single_frames_is_always_full():
    seen, _ = history(SinkWindow(0, 4, whole_chunks=False), 12, 3)
    assert seen == {0: [], 3: [2], 6: [5], 9: [8]}
    seen, _ = history(SinkWindow(1, 6, whole_chunks=False), 10, 2)
    assert seen == {0: [], 2: [0, 1], 4: [0, 1, 2, 3], 6: [0, 3, 4, 5], 8: [0, 5, 6, 7]}


def test_a_sink_can_be_a_part_of_the_first_chunk():
    seen, _ = history(SinkWindow(1, 7), 12, 3)
    assert seen[9] == [0, 6, 7, 8]


def test_a_window_of_one_chunk_reads_nothing():
    seen, _ = history(SinkWindow(0, 2), 6, 2)
    assert seen == {0: [], 2: [], 4: []}


def test_a_short_last_chunk_leaves_room_for_no_more_than_whole_chunks():
    seen, _ = history(SinkWindow(0, 4), 7, 2)
    assert seen[6] == [4, 5]


def test_a_prefix_fills_the_sink():
    seen, _ = history(SinkWindow(2, 6), 10, 2, prefix=fake.noise_of(4))
    assert seen == {0: [], 2: [0, 1], 4: [0, 1, 2, 3], 6: [0, 1, 4, 5], 8: [0, 1, 6, 7]}


def test_a_shifted_sink_stands_just_before_the_window():
    seen, positions = history(SinkWindow(2, 6, "shifted"), 12, 2)
    assert positions[4] == [0, 1, 2, 3]
    assert seen[8] == [0, 1, 6, 7] and positions[8] == [4, 5, 6, 7]
    assert seen[10] == [0, 1, 8, 9] and positions[10] == [6, 7, 8, 9]


def test_after_a_cut_a_shifted_sink_stays_put_until_a_gap_opens_in_the_new_shot():
    seen, positions = history(SinkWindow(2, 6, "shifted"), 14, 2, starts=[PromptStart(6, "cut")])
    assert (seen[8], seen[10]) == (positions[8], positions[10]) == ([6, 7], [6, 7, 8, 9])
    assert seen[12] == [6, 7, 10, 11] and positions[12] == [8, 9, 10, 11]


def test_a_shifted_sink_in_an_empty_window_stands_just_before_the_chunk():
    _, positions = history(SinkWindow(2, 4, "shifted"), 8, 2)
    assert positions[6] == [4, 5]


def test_a_sink_of_several_frame_wise_chunks_stays_put_until_a_gap_opens():
    seen, positions = history(SinkWindow(3, 6, "shifted"), 9, 1)
    for chunk in range(6):
        assert positions[chunk] == seen[chunk] == list(range(chunk))
    assert seen[7] == [0, 1, 2, 5, 6] and positions[7] == [2, 3, 4, 5, 6]


def test_a_window_smaller_than_sink_and_chunk_is_refused_in_words():
    with pytest.raises(
        ValueError,
        match="window_frames = 4 cannot hold sink_frames = 2 and the chunk in work .3 frames.. "
        "Use .* at least 5, or smaller chunks",
    ):
        SinkWindow(2, 4).check(fake.geometry(chunk_frames=3), Take(9, 0, (1.0, 0.0), 0))


@pytest.mark.parametrize(
    "values", [dict(sink_frames=-1), dict(window_frames=0), dict(sink_rope="round")]
)
def test_impossible_values_are_refused(values):
    with pytest.raises(ValueError):
        SinkWindow(**values)


def test_a_window_as_long_as_the_take_equals_keeping_everything():
    full, *_ = fake.take(KVPolicy())
    windowed, *_ = fake.take(KVPolicy(SinkWindow(0, 8)))
    assert torch.equal(full, windowed)
