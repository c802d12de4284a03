"""Rolling Forcing: which frames each forward works on, at which noise, and exactly what it reads,
and where in time the sink stands then.
"""

import pytest
import torch
from keepsake.kv_policies import KVPolicy, RollingForcing, SinkWindow, Take
from keepsake.rollout.timeline import PromptStart

from ... import fake
from .any_length import LENGTHS, check_any_length

SMALL = RollingForcing(window_frames=8)
TWO = (1.0, 0.5, 0.0)


def forwards(schedule, frames, chunk_frames, prefix=None, sigmas=TWO, **options):
    """[(latent frames, their sigmas, frames read of the past, position of the sink)] of every
    forward, in order.
    """
    seen = []

    def watch(session, forward, x, sigma):
        caches = session.streams["positive"].caches
        own = caches[forward.cache].banks[0]
        read, sink = own.frame[: own.committed].tolist(), None
        for name, first, last in forward.reads:
            bank = caches[name].banks[0]
            rows = bank.rows_of(first, last)
            read += bank.frame[rows].tolist()
            sink = float(bank.position[0]) if name == "sink" else sink
        levels = torch.as_tensor(sigma).reshape(-1).expand(len(forward.span))
        seen.append(
            (
                list(forward.span.numbers),
                [round(float(s), 2) for s in levels],
                sorted(set(read)),
                sink,
            )
        )

    out, trace, _ = fake.take(
        KVPolicy(schedule=schedule),
        frames,
        chunk_frames,
        prefix,
        sigmas,
        on_forward=watch,
        **options,
    )
    return seen, out, trace


def test_each_forward_works_on_this_and_reads_exactly_this():
    """12 frames in chunks of 2, two steps, window 8: 4 frames in flight, a sink of 2, so 2 finished
    frames beside them.
    """
    seen, *_ = forwards(SMALL, 12, 2)
    assert seen == [
        ([0, 1], [1.0, 1.0], [], None),
        ([0, 1, 2, 3], [0.5, 0.5, 1.0, 1.0], [], None),
        ([0, 1], [0.0, 0.0], [], None),
        ([2, 3, 4, 5], [0.5, 0.5, 1.0, 1.0], [0, 1], 0.0),
        ([2, 3], [0.0, 0.0], [0, 1], 0.0),
        ([4, 5, 6, 7], [0.5, 0.5, 1.0, 1.0], [0, 1, 2, 3], 0.0),
        ([4, 5], [0.0, 0.0], [0, 1, 2, 3], 0.0),
        ([6, 7, 8, 9], [0.5, 0.5, 1.0, 1.0], [0, 1, 4, 5], 2.0),
        ([6, 7], [0.0, 0.0], [0, 1, 2, 3, 4, 5], 0.0),
        ([8, 9, 10, 11], [0.5, 0.5, 1.0, 1.0], [0, 1, 6, 7], 4.0),
        ([8, 9], [0.0, 0.0], [2, 3, 4, 5, 6, 7], None),
        (
            [10, 11],
            [0.5, 0.5],
            [0, 1, 6, 7, 8, 9],
            4.0,
        ),  # nothing joins any more: room for more of the past
    ]


def test_given_frames_are_finished_chunks():
    prefix = fake.noise_of(4, seed=9)
    seen, out, trace = forwards(SMALL, 8, 2, prefix)
    assert torch.equal(out[:, :, :4], prefix) and [row.given for row in trace.rows] == [
        True,
        True,
        False,
        False,
    ]
    assert seen == [
        ([0, 1], [0.0, 0.0], [], None),
        ([2, 3], [0.0, 0.0], [0, 1], 0.0),
        ([4, 5], [1.0, 1.0], [0, 1, 2, 3], 0.0),
        ([4, 5, 6, 7], [0.5, 0.5, 1.0, 1.0], [0, 1, 2, 3], 0.0),
        ([4, 5], [0.0, 0.0], [0, 1, 2, 3], 0.0),
        ([6, 7], [0.5, 0.5], [0, 1, 2, 3, 4, 5], 0.0),
    ]


def test_what_is_in_flight_hears_the_prompt_of_the_newest_chunk():
    _, _, transformer = fake.take(
        KVPolicy(schedule=SMALL), 8, 2, sigmas=TWO, starts=[PromptStart(4)]
    )
    assert [(frame, prompt) for frame, prompt, _ in transformer.reads] == [
        (0, 0),
        (0, 0),
        (0, 0),
        (2, 1),
        (2, 0),
        (4, 1),
        (4, 1),
        (6, 1),
    ]


@pytest.mark.parametrize("frames, given", LENGTHS)
@pytest.mark.parametrize("chunk_frames", [1, 2, 3])
def test_any_length_repeats_and_counts_its_steps(frames, chunk_frames, given):
    check_any_length(KVPolicy(schedule=RollingForcing(15)), frames, chunk_frames, given)


def test_one_step_is_a_chunk_after_the_other():
    """With one chunk in flight and room for all, history is all that was finished: the clean-pass
    loop over a full cache.
    """
    rolling = fake.take(KVPolicy(schedule=RollingForcing(30)), 8, 2, sigmas=(1.0, 0.0))[0]
    assert torch.allclose(rolling, fake.take(KVPolicy(), 8, 2, sigmas=(1.0, 0.0))[0], atol=1e-12)


def test_memory_is_bounded():
    _, trace, _ = fake.take(KVPolicy(schedule=SMALL), 60, 2, sigmas=TWO)
    assert {row.allocated_bytes for row in trace.rows[5:]} == {
        max(row.allocated_bytes for row in trace.rows)
    }
    assert trace.bank_names == ("sink", "finished", "in flight")
    kept = trace.memory_maps[0].at(trace.rows[-1])
    assert kept[59].min() == 1 and kept[0].min() == 1 and kept[30].max() == 0


def test_two_streams_do_not_disturb_each_other():
    alone = fake.take(KVPolicy(schedule=SMALL), 13, sigmas=TWO)[0]
    beside, trace, _ = fake.take(
        KVPolicy(schedule=SMALL), 13, sigmas=TWO, streams=("positive", "negative")
    )
    assert torch.equal(alone, beside) and trace.streams == 2


def test_an_error_in_mid_take_leaves_the_next_run_equal():
    whole, calls = fake.take(KVPolicy(schedule=SMALL), 13, sigmas=TWO)[0], []

    def stop(*a):
        calls.append(a)
        if len(calls) == 5:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        fake.take(KVPolicy(schedule=SMALL), 13, sigmas=TWO, on_step=stop)
    assert torch.equal(fake.take(KVPolicy(schedule=SMALL), 13, sigmas=TWO)[0], whole)


def test_a_window_that_cannot_hold_what_is_in_flight_is_refused():
    take = Take(40, 0, (1.0, 0.9, 0.8, 0.7, 0.6, 0.0), 0)
    with pytest.raises(
        ValueError,
        match=r"window_frames is 17, and the chunks in flight \(15 latent frames in 5 steps\) "
        r"with the sink \(3\) need 18",
    ):
        RollingForcing(17).check(fake.geometry(chunk_frames=3), take)
    RollingForcing(18).check(fake.geometry(chunk_frames=3), take)


def test_a_retention_would_do_nothing_and_is_refused():
    with pytest.raises(ValueError, match="Rolling Forcing keeps a history of its own"):
        KVPolicy(SinkWindow(), schedule=RollingForcing()).check(fake.geometry(), Take(9, 0, TWO, 0))
