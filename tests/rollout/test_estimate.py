"""The estimate against what a run's trace measures, row by row."""

from dataclasses import replace

import pytest
import torch
from keepsake.kv_policies import (
    HISTORY,
    Bank,
    DeCoPrune,
    FlashForward,
    ForcingKV,
    FullKV,
    HeadMap,
    KVPolicy,
    KVStorage,
    RandomPrune,
    SinkWindow,
    Take,
    TaylorSeer,
    TempDiffPrune,
)
from keepsake.kv_policies.selection.masked_head import MaskedHead
from keepsake.rollout.chunks import plan_chunks
from keepsake.rollout.estimate import (
    FORGOTTEN,
    KEPT,
    DryRun,
    estimate,
    fits,
    largest_that,
    longest_take,
)
from keepsake.rollout.take_plan import TakePlan
from keepsake.rollout.timeline import PromptStart, plan_prompts, prompt_frames

from .. import fake
from ..cases import OWN_HISTORY, RETENTION_CASES

SIGMAS = (1.0, 0.8, 0.5, 0.0)
HELD = [
    KVPolicy(SinkWindow(1, 7), storage=KVStorage("int4", full_chunks=1, sink_frames=1)),
    KVPolicy(storage=KVStorage("fp8", 1, 0)),
    KVPolicy(DeCoPrune(mode="target_keep", dense_chunks=1), storage=KVStorage("int8", 1, 2)),
    KVPolicy(
        DeCoPrune(mode="target_keep", target_keep=0.3, dense_chunks=3),
        storage=KVStorage("int8", 1, 0),
    ),
    KVPolicy(storage=KVStorage("model", device="cpu")),
    KVPolicy(
        ForcingKV(head_map=HeadMap("fake", 2, ((), (0,)))), storage=KVStorage("model", device="cpu")
    ),
    KVPolicy(SinkWindow(1, 7, "shifted"), storage=KVStorage("model", device="cpu")),
]
FIXED = (
    HELD
    + [KVPolicy(retention) for retention in RETENTION_CASES if not retention.by_content]
    + [KVPolicy(schedule=schedule) for schedule in OWN_HISTORY]
    + [
        KVPolicy(schedule=TaylorSeer(first_steps=1)),
        KVPolicy(
            SinkWindow(1, 7),
            schedule=TaylorSeer(first_steps=2),
            storage=KVStorage("int8", 1, 0),
        ),
    ]
)
TAKES = [
    dict(frames=8, streams=2),
    dict(frames=11, chunk_frames=3),
    dict(frames=9, given=3),
    dict(frames=7, given=4, chunk_frames=1),
]


def plan(policy, frames=8, chunk_frames=2, given=0, streams=1, starts=(), memory=None) -> TakePlan:
    chunks, *_ = plan_prompts(
        plan_chunks(frames, chunk_frames, given, memory.chunks if memory else ()),
        [[PromptStart(0), *starts]],
        4,
    )
    take = Take(frames, given, SIGMAS, 1, prompt_frames(chunks))
    return TakePlan(
        policy=policy,
        geometry=fake.geometry(chunk_frames),
        take=take,
        chunks=chunks,
        streams=streams,
        dtype=torch.float64,
        memory=memory,
    )


def measured(policy, frames=8, chunk_frames=2, given=0, streams=1, **more) -> list:
    prefix = fake.noise_of(given, seed=9) if given else None
    _, trace, _ = fake.take(
        policy,
        frames,
        chunk_frames,
        prefix,
        SIGMAS,
        [f"stream {i}" for i in range(streams)],
        **more,
    )
    return untimed(trace.rows)


def untimed(rows) -> list:
    """Without what a dry run does not look at."""
    return [replace(row, seconds=0, seconds_by_phase={}, reads=()) for row in rows]


@pytest.mark.parametrize("take", TAKES, ids=repr)
@pytest.mark.parametrize("policy", FIXED, ids=repr)
def test_the_estimate_is_what_a_run_measures(policy, take):
    result = estimate(plan(policy, **take))
    assert untimed(chunk.row for chunk in result.least) == measured(policy, **take)
    assert result.most is result.least


@pytest.mark.parametrize("take", TAKES, ids=repr)
@pytest.mark.parametrize(
    "retention",
    [case for case in RETENTION_CASES if case.by_content]
    + [DeCoPrune(gamma=2.0, score="cosine distance", min_keep_per_block=1)],
    ids=repr,
)
def test_a_policy_that_looks_at_the_picture_stays_within_its_range(retention, take):
    result = estimate(plan(KVPolicy(retention), **take))
    for least, row, most in zip(
        result.least, measured(KVPolicy(retention), **take), result.most, strict=True
    ):
        for what in ("kept_tokens", "bank_tokens", "bank_bytes", "allocated_bytes"):
            assert getattr(least.row, what) <= getattr(row, what) <= getattr(most.row, what)


@pytest.mark.parametrize("kind", [DeCoPrune, RandomPrune, TempDiffPrune])
def test_the_range_is_reached(kind):
    """A threshold that nothing passes, and one that everything does."""
    for gamma, content in ((1e9, FORGOTTEN), (-1.0, KEPT)):
        pruning = DeCoPrune(gamma=gamma)
        retention = pruning if kind is DeCoPrune else kind(pruning)
        chunks = DryRun(plan(KVPolicy(kind()), frames=14), content).chunks()
        assert untimed(chunk.row for chunk in chunks) == measured(KVPolicy(retention), frames=14)


@pytest.mark.parametrize(
    "policy, most",
    [
        (KVPolicy(), 200),
        (KVPolicy(SinkWindow(2, 90)), 90),
        (KVPolicy(DeCoPrune()), 200),
        (KVPolicy(DeCoPrune(mode="target_keep", target_keep=0.25)), 200 * 4),
    ],
    ids=repr,
)
def test_a_dry_run_is_small_however_large_the_picture(policy, most):
    """A row stands for a frame's tokens in all layers, or for those of them that stay together."""
    of_many = replace(plan(policy, 200), geometry=fake.geometry(grid=(40, 60)))
    dry = DryRun(of_many, KEPT)
    next(iter(dry))
    (bank,) = dry.session.stream(0).caches[HISTORY].banks
    assert bank.most <= most and len(bank.pages) == 1


def test_a_dry_run_can_be_ended_at_any_chunk():
    class Enough(Exception):
        pass

    def after(chunks: int) -> TakePlan:
        left = iter(range(chunks))

        def on_chunk():
            if next(left, None) is None:
                raise Enough

        return replace(plan(KVPolicy(), 40), on_chunk=on_chunk)

    for run in (estimate, lambda plan: longest_take(plan, 10**9, 100)):
        with pytest.raises(Enough):
            run(after(5))
    estimate(after(20))


@pytest.mark.parametrize("limit", [0, 1, 7, 63, 99, 100, 400])
@pytest.mark.parametrize("guess", [-5, 1, 63, 64, 100, 10**9])
def test_the_last_number_is_found_from_any_guess(limit, guess):
    asked = []
    assert largest_that(
        lambda number: asked.append(number) or number <= limit, 1, 100, guess
    ) == min(limit, 100)
    assert len(asked) <= 2 * 7 + 3 and all(1 <= number <= 100 for number in asked)


def test_a_threshold_that_nothing_passes_allocates_no_more_for_a_longer_take():
    policy = KVPolicy(DeCoPrune(gamma=1e9))
    short, long = (measured(policy, frames)[-1] for frames in (40, 240))
    assert long.allocated_bytes == short.allocated_bytes <= 3 * sum(long.bank_bytes)


def test_growing_copies_each_row_a_few_times_in_all(monkeypatch):
    copied, grow = [], Bank._grow
    monkeypatch.setattr(
        Bank, "_grow", lambda bank, capacity: copied.append(bank.length) or grow(bank, capacity)
    )
    kept = DryRun(plan(KVPolicy(DeCoPrune()), 1200), KEPT)
    last = kept.chunks()[-1].row
    assert (
        copied
        and sum(copied) <= 5 * 1200
        and last.allocated_bytes <= 1200 * fake.geometry().bytes_per_frame(8)
    )


def test_what_is_held_twice_is_counted():
    tokens, row = 6, 2 * 8 * 8  # six tokens a frame; two heads of eight fp64 numbers a row
    full, window = (
        estimate(plan(KVPolicy(retention))) for retention in (FullKV(), SinkWindow(0, 4))
    )
    assert full.needed == full.allocated  # nothing moves
    assert (
        window.needed[0] - window.allocated[0] == 2 * tokens * row
    )  # two of the four frames move to the front, one layer's keys at a time
    grown = estimate(plan(KVPolicy(DeCoPrune(gamma=1e9, sink_chunks=0, dense_chunks=1)), 14))
    assert (
        grown.most[-1].copied_bytes >= grown.most[0].row.allocated_bytes // 4
    )  # of two layers, the keys or the values of one


def test_memories_that_are_read_together_are_held_twice():
    """A chunk's own two frames, two of the chunk before, and an anchor: keys and values of one
    layer.
    """
    anchors = FlashForward(
        anchor_stride=4, block_anchors=1, anchor_window=1, planner_history=1, stage_history=1
    )
    assert (
        estimate(plan(KVPolicy(schedule=anchors), 4)).least[-1].copied_bytes
        == 2 * (2 + 2 + 1) * 6 * 2 * 8 * 8
    )


def test_a_selection_that_reads_less_holds_no_less():
    masked = estimate(plan(KVPolicy(selection=MaskedHead(0, 0))))
    assert masked.allocated == estimate(plan(KVPolicy())).allocated


def test_another_length_is_planned_anew():
    short = plan(KVPolicy(), frames=8, given=2).of_length(3)
    assert [chunk.frames for chunk in short.chunks] == [2, 1] and short.take.total_frames == 3
    assert estimate(short).allocated[0] == 3 * fake.geometry().bytes_per_frame(8)


@pytest.mark.parametrize(
    "policy", [*FIXED, *(KVPolicy(case) for case in RETENTION_CASES if case.by_content)], ids=repr
)
def test_a_take_that_goes_on_is_estimated_from_its_memory_on(policy):
    if not policy.schedule.pauses:
        pytest.skip("made in one run")
    kept, options = [], dict(frames=12, given=1, streams=2)
    measured(policy, **options, stop_after=6, on_memory=kept.append)
    result, rows = (
        estimate(plan(policy, **options, memory=kept[0])),
        measured(policy, **options, memory=kept[0]),
    )
    assert rows[0].start_frame == kept[0].frames
    assert (
        untimed(chunks[0].row for chunks in (result.least, result.most)) == rows[:1] * 2
    )  # what the memory holds is known, and not a range
    if result.most is result.least:
        assert untimed(chunk.row for chunk in result.least) == rows
    for least, row, most in zip(result.least, rows, result.most, strict=True):
        for what in ("kept_tokens", "bank_tokens", "bank_bytes", "allocated_bytes"):
            assert getattr(least.row, what) <= getattr(row, what) <= getattr(most.row, what)


def test_what_a_memory_brings_is_counted():
    """Of a take in which nothing new need stay, one with a full memory needs more than one from the
    start.
    """
    policy, kept = KVPolicy(DeCoPrune(gamma=-1.0)), []  # everything passes
    measured(policy, 14, stop_after=10, on_memory=kept.append)
    nothing = replace(policy, retention=DeCoPrune(gamma=1e9))
    assert (
        estimate(plan(nothing, 14, memory=kept[0])).needed[0]
        > estimate(plan(nothing, 14)).needed[0]
    )
    assert longest_take(plan(policy, 14, memory=kept[0]), 10**9, 9) == 0  # it holds 10 frames


@pytest.mark.parametrize(
    "policy",
    [KVPolicy(), KVPolicy(SinkWindow(2, 6)), KVPolicy(schedule=OWN_HISTORY[0]), HELD[0]],
    ids=repr,
)
def test_prompts_in_time_are_estimated_in_every_length(policy):
    starts = (
        [PromptStart(4, "swap"), PromptStart(8, "cut")]
        if "cut" in policy.schedule.switches
        else [PromptStart(4), PromptStart(8)]
    )
    for frames in (3, 7, 9, 10, 16):
        result = plan(policy, 10, given=1, starts=starts).of_length(frames)
        afresh = plan(policy, frames, given=1, starts=starts)
        assert (result.chunks, result.take) == (afresh.chunks, afresh.take)
        assert untimed(chunk.row for chunk in estimate(result).least) == measured(
            policy, frames, given=1, starts=starts
        )


def test_groups_that_lose_tokens_take_no_more_room():
    """Which tokens go is by the picture, and with that how many of a chunk that is in codes only in
    part; all else is known.
    """
    chunk_bytes = 2 * fake.geometry().bytes_per_frame(8)
    policy = KVPolicy(
        DeCoPrune(mode="target_keep", target_keep=0.3, dense_chunks=4),
        storage=KVStorage("int8", 1, 0),
    )
    for chunk, row in zip(estimate(plan(policy, 40)).least, measured(policy, 40), strict=True):
        assert abs(chunk.row.bank_bytes[0] - row.bank_bytes[0]) < chunk_bytes
        assert replace(chunk.row, bank_bytes=(), seconds_by_phase={}, seconds=0) == replace(
            row, bank_bytes=()
        )


def test_the_longest_take_is_the_last_that_fits():
    frame = fake.geometry().bytes_per_frame(8)
    full = plan(KVPolicy(), given=2)
    assert longest_take(full, 11 * frame + 5, 100) == 11
    assert fits(full.of_length(11), 11 * frame + 5) and not fits(full.of_length(12), 11 * frame + 5)
    assert longest_take(full, 2 * frame, 100) == 0  # the given frames alone fill it
    assert (
        longest_take(plan(KVPolicy(SinkWindow(0, 4))), 5 * frame, 40) == 40
    )  # whatever the length


def test_lanes_share_out_what_is_allocated():
    result = estimate(plan(KVPolicy(schedule=OWN_HISTORY[0])))
    assert (
        set(result.lane_bytes) == set(result.bank_names)
        and sum(result.lane_bytes.values()) == result.allocated[0]
    )
