"""When Directed Forcing selects: from the first chunk on whose window is full, in whole chunks."""

import pytest
import torch
from keepsake.kv_policies import DeCoPrune, DirectedForcing, FullKV, KVPolicy, SinkWindow
from keepsake.kv_policies.selection.activation import Activation
from keepsake.rollout.timeline import PromptStart

from ... import fake

STEPS = (1.0, 0.5, 0.0)


def take(retention, frames, chunk_frames, active_from=0, **options):
    """Each chunk may read two latent frames of its history: first frames of the chunks that did so,
    and the notes.
    """
    budget = chunk_frames + 2
    selection = DirectedForcing(uniform_budget=budget, active_from=active_from)
    policy = KVPolicy(retention, selection)
    _, trace, _ = fake.take(policy, frames, chunk_frames, sigmas=STEPS, **options)
    selecting = [
        row.start_frame
        for row in trace.rows
        if row.start_frame > 2 and abs(sum(row.reads) - (budget - row.frames)) < 0.01
    ]
    return selecting, trace.notes


@pytest.mark.parametrize(
    "window, chunk, first",
    [
        (20, 3, 15),  # 6 chunks of 3, and 18 frames, in a window of 20
        (21, 3, 18),
        (22, 3, 18),  # 7 chunks: 21 of 22
        (20, 4, 16),
        (21, 4, 16),  # 5 chunks: 20 of 21; then the sink and 4 chunks, 19 frames
        (22, 4, 16),
        (21, 5, 15),  # 4 chunks: 20 of 21; then 18
        (22, 5, 15),
        (21, 8, 8),  # 2 chunks: 16 of 21; then 19
        (22, 8, 8),
    ],
)
def test_it_selects_from_the_first_full_window_to_the_end(window, chunk, first):
    """The last chunk is short, and has fewer frames in reach than those before it."""
    frames = first + 3 * chunk + 1
    selecting, notes = take(SinkWindow(3, window, "shifted"), frames, chunk)
    assert selecting == list(range(first, frames, chunk))
    assert "ragged attention by" in notes[-1]


def test_the_note_says_with_how_many_frames_in_reach_selection_began():
    """Window 21, sink 3: 5 chunks of 4 fit while nothing has left, 4 and the sink (19) later."""
    _, notes = take(SinkWindow(3, 21, "shifted"), 29, 4)
    assert "from 20 latent frames in reach on" in notes[-1]


@pytest.mark.parametrize("chunk, first", [(1, 20), (3, 18), (4, 16), (5, 15), (8, 8), (24, 24)])
@pytest.mark.parametrize("retention", [FullKV(), DeCoPrune(gamma=-1.0)], ids=repr)
def test_without_a_window_the_published_21_frames_count_in_whole_chunks(retention, chunk, first):
    """A chunk of 24 is more than that: from the first one on that has a history."""
    frames = first + chunk + 1
    assert take(retention, frames, chunk)[0] == list(range(first, frames, chunk))


@pytest.mark.parametrize("given", [1, 2])
@pytest.mark.parametrize("window, chunk", [(21, 3), (20, 3), (21, 4), (21, 8)])
def test_a_short_first_chunk_does_not_keep_the_window_from_filling(given, window, chunk):
    prefix = fake.noise_of(given, seed=9)
    selecting, _ = take(SinkWindow(3, window), 30, chunk, prefix=prefix)
    assert selecting and selecting == list(range(selecting[0], 30, chunk))


def test_one_given_frame_leaves_the_published_setup_as_it_was():
    """The sink (0 to 2), 5 chunks of 3 and the own one are 21: first at frame 19."""
    prefix = fake.noise_of(1, seed=9)
    assert take(SinkWindow(3, 21, "shifted"), 26, 3, prefix=prefix)[0] == [19, 22, 25]


def test_active_from_counts_latent_frames_in_reach_and_holds():
    """Window 9, sink 2, chunks of 2: 2, 4, 6, 8, 8 ... in reach, and 7 for the last, short one."""
    assert take(SinkWindow(2, 9), 15, 2, active_from=8)[0] == [6, 8, 10, 12, 14]


def test_a_new_shot_reads_everything_until_its_own_window_is_full():
    """Chunks of 2, window 8: full at the fourth chunk of a shot. Each has two history frames."""
    selecting, _ = take(SinkWindow(2, 8), 24, 2, starts=[PromptStart(12, "cut")])
    assert selecting == [6, 8, 10, 14, 18, 20, 22]  # chunk 14 has two history frames and reads both


def test_a_recache_reads_each_chunk_as_at_first(monkeypatch):
    """Chunks 4 to 10 are run again before chunk 12; the window was full from chunk 6 on."""
    seen, is_active = [], Activation.is_active

    def watch(activation, bank, chunk, reach):
        active = is_active(activation, bank, chunk, reach)
        seen.append((chunk.start_frame, active))
        return active

    monkeypatch.setattr(Activation, "is_active", watch)
    starts = [PromptStart(12, "recache", recache_frames=8)]
    take(FullKV(), 16, 2, active_from=8, starts=starts)
    starts_seen = [start for start, _ in seen]
    back = next(i for i in range(1, len(seen)) if starts_seen[i] < starts_seen[i - 1])
    again = {each for each in seen[back:] if each[0] < 12}
    assert again == {(4, False), (6, True), (8, True), (10, True)}
    assert {active for start, active in seen if start >= 6} == {True}


def test_a_take_that_never_fills_its_window_says_so():
    _, (note,) = take(SinkWindow(3, 21), 17, 3)
    assert note == (
        "Directed Forcing never selected: it begins at 21 latent frames in reach, and no chunk had "
        "more than 17, so each read all of them. Use a longer take, a smaller window or a smaller "
        "active_from."
    )
    _, (note,) = take(SinkWindow(3, 12), 30, 3, active_from=13)
    assert "begins at 13 latent frames in reach, and no chunk had more than 12" in note


def test_budgets_that_reach_everything_are_told():
    policy = KVPolicy(SinkWindow(2, 8), DirectedForcing(uniform_budget=8))
    _, trace, _ = fake.take(policy, 14, 2, sigmas=STEPS)
    assert trace.notes == [
        "Directed Forcing never selected: no chunk had more than 8 latent frames in reach, and "
        "each head may read as many. Use smaller budgets."
    ]


@pytest.mark.parametrize("stop", [8, 12, 14])
def test_a_resumed_take_stays_active(stop):
    """The run that goes on at frame 14 makes the short last chunk alone, with 7 frames in reach."""
    policy, kept = KVPolicy(SinkWindow(2, 9), DirectedForcing(uniform_budget=4)), []
    options = dict(frames=15, chunk_frames=2, sigmas=STEPS)
    straight, trace, _ = fake.take(policy, **options)
    fake.take(policy, stop_after=stop, on_memory=kept.append, **options)
    resumed, again, _ = fake.take(policy, memory=kept[0], **options)
    assert torch.equal(resumed, straight) and again.notes == trace.notes


def test_a_resumed_take_that_was_never_active_tells_of_the_whole_take():
    policy, kept = KVPolicy(FullKV(), DirectedForcing(uniform_budget=4)), []
    fake.take(policy, 10, 2, stop_after=8, on_memory=kept.append)
    _, trace, _ = fake.take(policy, 10, 2, memory=kept[0])
    assert "no chunk had more than 10" in trace.notes[0]
