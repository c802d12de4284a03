"""FlashForward and HiAR: which forward runs when, and exactly what it reads."""

from collections import defaultdict

import pytest
import torch
from keepsake.kv_policies import (
    DeCoPrune,
    DirectedForcing,
    FlashForward,
    Hierarchical,
    KVPolicy,
    SinkWindow,
    Take,
)
from keepsake.kv_policies.schedule.flash_forward import Work
from keepsake.rollout.chunks import plan_chunks
from keepsake.rollout.timeline import PromptStart, plan_prompts

from ... import fake

FOUR = (1.0, 0.9, 0.8, 0.5, 0.0)


def reads_of(schedule, frames, chunk_frames, prefix=None, sigmas=(1.0, 0.5, 0.0), **options):
    """[(latent frames of the chunk, sigma, [(lane, history frames read)])] of every forward of a
    take, in order.
    """
    seen = []

    def watch(session, forward, x, sigma):
        stream = session.streams["positive"]
        own, read = stream.caches[forward.cache].banks[0], defaultdict(list)
        read[schedule.lane(forward.cache)] += own.frame[: own.committed].tolist()
        for name, first, last in forward.reads:
            bank = stream.caches[name].banks[0]
            read[schedule.lane(name)] += bank.frame[bank.rows_of(first, last)].tolist()
        read = [(lane, sorted(set(frames))) for lane, frames in read.items()]
        seen.append((list(forward.span.numbers), round(float(sigma), 2), read))

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


SMALL = FlashForward(
    anchor_stride=4,
    block_anchors=2,
    anchor_window=2,
    planner_history=1,
    stage_history=1,
    budget_frames=6,
)


def test_81_frames_in_chunks_of_3_with_4_steps_take_123_forwards():
    seen, *_ = reads_of(FlashForward(), 81, 3, sigmas=FOUR)
    assert len(seen) == 123


def test_each_forward_reads_exactly_this():
    """13 frames in chunks of 2, two steps; anchors 0, 4, 8, 12 in blocks of two; a chunk reads two
    anchors and one chunk at its own step.
    """
    seen, *_ = reads_of(SMALL, 13, 2)
    s0, s1, a = "stage 0", "stage 1", "anchors"
    assert seen == [
        ([0, 4], 1.0, [(a, [])]),
        ([0, 4], 0.5, [(a, [])]),
        ([0, 4], 0.0, [(a, [])]),
        ([0, 1], 1.0, [(s0, []), (a, [0, 4])]),
        ([0, 1], 0.5, [(s1, []), (a, [0, 4])]),
        ([2, 3], 1.0, [(s0, [0, 1]), (a, [0, 4])]),
        ([2, 3], 0.5, [(s1, [0, 1]), (a, [0, 4])]),
        ([8, 12], 1.0, [(a, [0, 4])]),
        ([8, 12], 0.5, [(a, [0, 4])]),
        ([8, 12], 0.0, [(a, [0, 4])]),
        ([4, 5], 1.0, [(s0, [2, 3]), (a, [4, 8])]),
        ([4, 5], 0.5, [(s1, [2, 3]), (a, [4, 8])]),
        ([6, 7], 1.0, [(s0, [4, 5]), (a, [4, 8])]),
        ([6, 7], 0.5, [(s1, [4, 5]), (a, [4, 8])]),
        ([8, 9], 1.0, [(s0, [6, 7]), (a, [8, 12])]),
        ([8, 9], 0.5, [(s1, [6, 7]), (a, [8, 12])]),
        ([10, 11], 1.0, [(s0, [8, 9]), (a, [8, 12])]),
        ([10, 11], 0.5, [(s1, [8, 9]), (a, [8, 12])]),
        ([12], 1.0, [(s0, [10, 11]), (a, [8, 12])]),
        ([12], 0.5, [(s1, [10, 11]), (a, [8, 12])]),
    ]


def test_given_frames_are_anchors_too_and_enter_the_stages_as_noisy_as_they_are_there():
    prefix = fake.noise_of(6, seed=9)
    seen, out, trace = reads_of(SMALL, 10, 2, prefix)
    assert torch.equal(out[:, :, :6], prefix)
    assert seen[:4] == [
        ([0, 4], 0.0, [("anchors", [])]),
        ([8], 1.0, [("anchors", [0, 4])]),
        ([8], 0.5, [("anchors", [0, 4])]),
        ([8], 0.0, [("anchors", [0, 4])]),
    ]
    assert seen[4:8] == [
        ([4, 5], 1.0, [("stage 0", []), ("anchors", [4, 8])]),
        ([4, 5], 0.5, [("stage 1", []), ("anchors", [4, 8])]),
        ([6, 7], 1.0, [("stage 0", [4, 5]), ("anchors", [4, 8])]),
        ([6, 7], 0.5, [("stage 1", [4, 5]), ("anchors", [4, 8])]),
    ]
    assert [row.given for row in trace.rows] == [True, True, True, False, False]


@pytest.mark.parametrize(
    "schedule, levels",
    [(SMALL, (1.0, 0.5)), (Hierarchical(4), (0.0, 0.0))],
    ids=["FlashForward", "HiAR"],
)
def test_given_chunks_are_noised_for_flash_forward_and_clean_for_hiar(schedule, levels):
    prefix, noise, seen = fake.noise_of(4, seed=9), fake.noise_of(8), []

    def watch(session, forward, x, sigma):
        if forward.span.numbers == (2, 3) and forward.chunk.given:
            seen.append((float(sigma), x))

    fake.take(KVPolicy(schedule=schedule), 8, 2, prefix, (1.0, 0.5, 0.0), on_forward=watch)
    assert [sigma for sigma, _ in seen] == list(levels)
    for sigma, x in seen:
        assert torch.allclose(x, (1 - sigma) * prefix[:, :, 2:4] + sigma * noise[:, :, 2:4])


def test_a_window_over_blocks_that_prompts_cut_short_finds_each_in_a_memory_of_its_own():
    starts = [PromptStart(frame) for frame in (0, 2, 4, 6)]
    chunks, *_ = plan_prompts(plan_chunks(12, 2), [starts], 4)
    layout = FlashForward(
        anchor_stride=2, block_anchors=4, anchor_window=4, planner_history=1
    ).layout(chunks, 2)
    reads = [
        [layout.anchor_cache(block) for block in layout.anchors_of(chunk.index)] for chunk in chunks
    ]
    assert max(map(len, reads)) == 4 and all(
        len(set(memories)) == len(memories) for memories in reads
    )


def test_chunks_that_are_all_short_are_remembered_within_the_budget():
    """Given frames and the rest, both shorter than a chunk: with 10 frames for history and chunk,
    one such chunk is history, and no whole one could be.
    """
    seen, *_ = reads_of(
        FlashForward(anchor_window=3, budget_frames=13), 10, 8, fake.noise_of(5, seed=9)
    )
    assert seen[-1][2][0] == ("stage 1", [0, 1, 2, 3, 4])


def test_without_anchors_history_alone_is_read():
    seen, *_ = reads_of(FlashForward(anchor_window=0, stage_history=1), 5, 2)
    s0, s1 = "stage 0", "stage 1"
    assert seen == [
        ([0, 1], 1.0, [(s0, [])]),
        ([0, 1], 0.5, [(s1, [])]),
        ([2, 3], 1.0, [(s0, [0, 1])]),
        ([2, 3], 0.5, [(s1, [0, 1])]),
        ([4], 1.0, [(s0, [2, 3])]),
        ([4], 0.5, [(s1, [2, 3])]),
    ]


def test_the_graph_says_what_each_forward_waits_for():
    graph = SMALL.layout(plan_chunks(13, 2), 2).graph()
    assert graph[Work("render", 2, 1)] == (Work("render", 2, 0), Work("render", 1, 1))
    assert graph[Work("render", 2, 0)] == (
        Work("render", 1, 0),
        Work("anchor", 0, 0),
        Work("anchor", 1, 0),
    )
    assert graph[Work("plan", 1, 0)] == (Work("anchor", 0, 0),) and graph[Work("anchor", 0, 0)] == (
        Work("plan", 0, 1),
    )
    done = set()
    for work, needs in graph.items():
        assert set(needs) <= done
        done.add(work)


@pytest.mark.parametrize("frames", [1, 4, 13, 30])
@pytest.mark.parametrize("chunk_frames", [1, 2, 3])
@pytest.mark.parametrize(
    "schedule", [SMALL, FlashForward(), Hierarchical(6)], ids=["small", "published", "HiAR"]
)
def test_any_length_repeats_and_stays_in_its_banks(schedule, frames, chunk_frames):
    steps = []
    first, trace, _ = fake.take(
        KVPolicy(schedule=schedule), frames, chunk_frames, on_step=lambda *a: steps.append(a)
    )
    assert (
        torch.equal(first, fake.take(KVPolicy(schedule=schedule), frames, chunk_frames)[0])
        and torch.isfinite(first).all()
    )
    assert len(steps) == schedule.reports(
        plan_chunks(frames, chunk_frames), 3, range(-(-frames // chunk_frames))
    )
    assert [row.start_frame for row in trace.rows] == list(range(0, frames, chunk_frames))


def test_two_streams_do_not_disturb_each_other():
    alone, *_ = fake.take(KVPolicy(schedule=SMALL), 13)
    beside, trace, _ = fake.take(KVPolicy(schedule=SMALL), 13, streams=("positive", "negative"))
    assert torch.equal(alone, beside) and trace.streams == 2


def test_stage_banks_are_bounded_and_told_apart_in_the_stats():
    _, trace, _ = fake.take(KVPolicy(schedule=SMALL), 60, 2)
    assert (
        max(max(row.bank_tokens[1:]) for row in trace.rows) == 2 * 12
        and max(row.bank_tokens[0] for row in trace.rows) <= 8 * 6
    )
    assert (
        trace.rows[11].kept_tokens == 2 * 6 * 4
    )  # frames 20 and 21: anchor 20 is in the stage's memory too, anchor 24 lies ahead
    assert all(row.kept_tokens <= row.full_tokens for row in trace.rows)


def test_the_last_chunk_is_in_the_memory_map_in_every_order():
    for schedule in (SMALL, Hierarchical(4)):
        _, trace, _ = fake.take(KVPolicy(schedule=schedule), 13, 2)
        kept = trace.memory_maps[0].at(trace.rows[-1])
        assert kept[12].min() == 1 and kept.max() == 1


def test_an_error_in_mid_take_leaves_the_next_run_equal():
    whole, calls = fake.take(KVPolicy(schedule=SMALL), 13)[0], []

    def stop(*a):
        calls.append(a)
        if len(calls) == 9:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        fake.take(KVPolicy(schedule=SMALL), 13, on_step=stop)
    assert torch.equal(fake.take(KVPolicy(schedule=SMALL), 13)[0], whole)


def test_hiar_81_frames_take_212_forwards():
    seen, *_ = reads_of(Hierarchical(), 81, 3, sigmas=FOUR)
    assert len(seen) == 212


def test_hiar_goes_step_by_step_and_reads_history_of_the_same_step():
    seen, *_ = reads_of(Hierarchical(4), 6, 2)
    level = "matched noise"
    assert seen == [
        ([0, 1], 1.0, [(level, [])]),
        ([0, 1], 0.5, [(level, [])]),
        ([2, 3], 1.0, [(level, [0, 1])]),
        ([2, 3], 0.5, [(level, [0, 1])]),
        ([4, 5], 1.0, [(level, [2, 3])]),
        ([0, 1], 0.5, [(level, [])]),
        ([0, 1], 0.0, [(level, [])]),
        ([2, 3], 0.5, [(level, [0, 1])]),
        ([2, 3], 0.0, [(level, [0, 1])]),
        ([4, 5], 0.5, [(level, [2, 3])]),
    ]


@pytest.mark.parametrize(
    "schedule", [FlashForward(), Hierarchical()], ids=["FlashForward", "Hierarchical"]
)
@pytest.mark.parametrize(
    "policy",
    [dict(retention=SinkWindow()), dict(retention=DeCoPrune()), dict(selection=DirectedForcing())],
    ids=str,
)
def test_slots_that_would_do_nothing_are_refused(schedule, policy):
    with pytest.raises(
        ValueError,
        match="keeps a history of its own, and the (retention|selection) .* would have nothing to "
        "act on",
    ):
        KVPolicy(schedule=schedule, **policy).check(fake.geometry(), Take(9, 0, FOUR, 0))


def test_a_budget_that_is_too_small_is_refused():
    with pytest.raises(
        ValueError,
        match="budget_frames is 5, and the anchor window .3. with the chunk in work .3. needs 6",
    ):
        FlashForward(budget_frames=5).check(fake.geometry(chunk_frames=3), Take(9, 0, FOUR, 0))
