"""Krea's recompute: which frames each forward works on, where in time they stand, and exactly what
they read.
"""

import pytest
import torch
from keepsake.kv_policies import ContextRecompute, DirectedForcing, KVPolicy, SinkWindow, Take
from keepsake.rollout.timeline import PromptStart

from ... import fake
from .any_length import LENGTHS, check_any_length

ONE = (1.0, 0.0)


def forwards(schedule, frames, chunk_frames, prefix=None, sigmas=ONE):
    """[(latent frames, their positions, sigma, frames read, and their positions)] of every forward,
    in order.
    """
    seen = []

    def watch(session, forward, x, sigma):
        bank, tokens = session.streams["positive"].caches[forward.cache].banks[0], 6
        read = [
            list(map(int, names[: bank.committed : tokens]))
            for names in (bank.frame, bank.position)
        ]
        seen.append((list(forward.span.numbers), list(forward.span.positions), float(sigma), *read))

    out, trace, _ = fake.take(
        KVPolicy(schedule=schedule), frames, chunk_frames, prefix, sigmas, on_forward=watch
    )
    return seen, out, trace


def test_each_forward_stands_here_and_reads_exactly_this():
    seen, _, trace = forwards(ContextRecompute(4), 7, 2)
    assert seen == [
        ([0, 1], [0, 1], 1.0, [], []),
        ([0, 1], [0, 1], 0.0, [], []),
        ([2, 3], [2, 3], 1.0, [0, 1], [0, 1]),
        ([0, 3], [0, 1], 0.0, [], []),
        ([4, 5], [2, 3], 1.0, [0, 3], [0, 1]),
        ([0, 5], [0, 1], 0.0, [], []),
        ([6], [2], 1.0, [0, 5], [0, 1]),
    ]
    assert [row.bank_tokens for row in trace.rows] == [(0,), (12,), (12,), (12,)]
    kept = trace.memory_maps[0].at(trace.rows[-1])
    assert [frame for frame in range(7) if kept[frame].min() == 1] == [0, 5, 6]


def test_more_context_than_a_chunk_goes_in_parts():
    seen, *_ = forwards(ContextRecompute(7), 10, 2)
    assert seen[-4:] == [
        ([0, 4], [0, 1], 0.0, [], []),
        ([5, 6], [2, 3], 0.0, [0, 4], [0, 1]),
        ([7], [4], 0.0, [0, 4, 5, 6], [0, 1, 2, 3]),
        ([8, 9], [5, 6], 1.0, [0, 4, 5, 6, 7], [0, 1, 2, 3, 4]),
    ]


def test_given_frames_are_context():
    prefix = fake.noise_of(3, seed=9)
    seen, out, trace = forwards(ContextRecompute(5), 5, 2, prefix)
    assert torch.equal(out[:, :, :3], prefix) and [row.given for row in trace.rows] == [
        True,
        True,
        False,
    ]
    assert seen == [
        ([0, 1], [0, 1], 0.0, [], []),
        ([2], [2], 0.0, [0, 1], [0, 1]),
        ([3, 4], [3, 4], 1.0, [0, 1, 2], [0, 1, 2]),
    ]


@pytest.mark.parametrize("mode", ["swap", "recache"])
def test_the_whole_context_hears_the_chunks_prompt(mode):
    _, _, transformer = fake.take(
        KVPolicy(schedule=ContextRecompute(4)), 6, 2, sigmas=ONE, starts=[PromptStart(4, mode)]
    )
    assert [(frame, prompt) for frame, prompt, _ in transformer.reads] == [
        (0, 0),
        (0, 0),
        (2, 0),
        (0, 1),
        (4, 1),
    ]


@pytest.mark.parametrize(
    "window, reads",
    [
        (4, [[0, 1], [0, 3], [6, 7], [6, 9]]),
        (6, [[0, 1], [0, 1], [0, 1, 2, 3], [6, 7], [6, 7], [6, 7, 8, 9]]),
    ],
)
def test_a_cut_begins_a_context_of_its_own(window, reads):
    _, _, transformer = fake.take(
        KVPolicy(schedule=ContextRecompute(window)),
        12,
        2,
        sigmas=ONE,
        starts=[PromptStart(6, "cut")],
    )
    assert [read for frame, _, read in transformer.reads if read] == reads


@pytest.mark.parametrize("frames, given", LENGTHS)
@pytest.mark.parametrize("chunk_frames", [1, 2, 3])
def test_any_length_repeats_and_counts_its_steps(frames, chunk_frames, given):
    check_any_length(KVPolicy(schedule=ContextRecompute(6)), frames, chunk_frames, given)


def test_two_streams_do_not_disturb_each_other():
    policy = KVPolicy(schedule=ContextRecompute(5))
    beside, trace, _ = fake.take(policy, 13, streams=("positive", "negative"))
    assert torch.equal(fake.take(policy, 13)[0], beside) and trace.streams == 2


def test_a_window_without_context_is_refused():
    with pytest.raises(
        ValueError,
        match="window_frames is 3, and a chunk alone has 3 latent frames. Use at least 4",
    ):
        ContextRecompute(3).check(fake.geometry(chunk_frames=3), Take(9, 0, ONE, 0))


@pytest.mark.parametrize(
    "policy", [dict(retention=SinkWindow()), dict(selection=DirectedForcing())], ids=str
)
def test_slots_that_would_do_nothing_are_refused(policy):
    with pytest.raises(ValueError, match="Krea Recompute keeps a history of its own"):
        KVPolicy(schedule=ContextRecompute(), **policy).check(fake.geometry(), Take(9, 0, ONE, 0))
