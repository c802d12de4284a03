"""A take that is saved and goes on, in two or three runs, equals one run to the last bit."""

import random

import pytest
import torch
from keepsake.kv_policies import (
    SCHEDULES,
    ContextRecompute,
    DeCoPrune,
    DirectedForcing,
    FlashForward,
    HeadTable,
    KVMemoryError,
    KVPolicy,
    KVStorage,
    MonarchRT,
    RollingForcing,
    SinkWindow,
    Take,
    TaylorSeer,
)
from keepsake.rollout.memory_file import load_memory, save_memory
from keepsake.rollout.timeline import PromptStart
from keepsake.rollout.tree_file import pack

from .. import fake
from ..cases import RETENTION_CASES

FLASH = [
    FlashForward(
        anchor_stride=4,
        block_anchors=2,
        anchor_window=2,
        planner_history=1,
        stage_history=1,
        budget_frames=6,
    ),
    FlashForward(
        anchor_stride=3,
        block_anchors=1,
        anchor_window=1,
        planner_history=2,
        stage_history=2,
        budget_frames=9,
    ),
    FlashForward(anchor_window=0, budget_frames=9),
]
WITH_PARAMETERS = {
    FlashForward: FLASH,
    RollingForcing: [RollingForcing(15)],
    ContextRecompute: [ContextRecompute(5)],
}
SCHEDULED = [
    schedule
    for kind in SCHEDULES
    if kind.pauses and kind.keeps_own_history
    for schedule in WITH_PARAMETERS.get(kind, [kind()])
]
TABLE = HeadTable("fake", "drift", ((0.1, 0.9), (0.6, 0.4)))
HELD = [
    KVPolicy(
        DeCoPrune(mode="target_keep", target_keep=0.3, dense_chunks=2),
        storage=KVStorage("int4", 1, 0),
    ),
    KVPolicy(SinkWindow(2, 7, "shifted"), storage=KVStorage("model", device="cpu")),
]
POLICIES = [
    *HELD,
    *(KVPolicy(retention) for retention in RETENTION_CASES),
    *(KVPolicy(schedule=schedule) for schedule in SCHEDULED),
    KVPolicy(SinkWindow(1, 6), schedule=TaylorSeer(first_steps=1)),
    KVPolicy(SinkWindow(2, 7), DirectedForcing(uniform_budget=4), TaylorSeer(first_steps=2)),
    KVPolicy(
        RETENTION_CASES[0],
        DirectedForcing(budget_min=4, budget_max=6, active_from=5, head_table=TABLE),
    ),
    KVPolicy(SinkWindow(2, 7, "shifted"), DirectedForcing(uniform_budget=5, active_from=6)),
    KVPolicy(SinkWindow(1, 8), DirectedForcing(uniform_budget=4)),
    KVPolicy(SinkWindow(2, 7, "shifted"), MonarchRT(2)),
    KVPolicy(SinkWindow(2, 7), MonarchRT(), storage=KVStorage("int8", 1, 2)),
    KVPolicy(selection=MonarchRT(), storage=KVStorage("model", device="cpu")),
    KVPolicy(
        selection=DirectedForcing(uniform_budget=4, active_from=6), schedule=RollingForcing(15)
    ),
]


def in_runs(policy, stops, path, later=None, **options):
    """The take in several runs, each going on from the file of the one before, under the policy
    `later`: latents, and the last run's trace.
    """
    memory = None
    for stop in (*stops, 0):
        kept = []
        out, trace, _ = fake.take(
            policy, memory=memory, stop_after=stop, on_memory=kept.append, **options
        )
        save_memory(kept[0], path)
        memory, policy = load_memory(path), later or policy
    return out, trace


def draw_take(policy, draw, most_frames=14):
    """A take of the policy, as `fake.take` has it. ValueError where the policy cannot make it."""
    frames = draw.randint(6, most_frames)
    options = dict(
        frames=frames,
        chunk_frames=draw.randint(1, 3),
        streams=draw.choice([("a",), ("a", "b")]),
        sigmas=draw.choice([(1.0, 0.5, 0.0), (1.0, 0.8, 0.5, 0.0), (1.0, 0.95, 0.9, 0.5, 0.0)]),
        starts=draw.choice(
            [
                (),
                (),
                (
                    PromptStart(
                        frames // 3, draw.choice(["swap", "recache", "cut"]), recache_frames=4
                    ),
                    PromptStart(
                        2 * frames // 3, draw.choice(["swap", "recache"]), recache_frames=6
                    ),
                ),
            ]
        ),
        prefix=draw.choice([None, fake.noise_of(draw.randint(1, 3), seed=9)]),
    )
    if any(start.mode not in policy.schedule.switches for start in options["starts"]):
        options["starts"] = (PromptStart(frames // 2),) * ("swap" in policy.schedule.switches)
    if policy.schedule.forecast_steps(4):
        options["sigmas"] = (1.0, 0.95, 0.9, 0.5, 0.0)
    given = 0 if options["prefix"] is None else options["prefix"].shape[2]
    policy.check(fake.geometry(options["chunk_frames"]), Take(frames, given, options["sigmas"], 1))
    return options


def compare(policy, draw, options, path, later=None):
    """The take in one run, and in two or three at drawn stops, those after the first under the
    policy `later`.
    """
    frames, given = (
        options["frames"],
        0 if options["prefix"] is None else options["prefix"].shape[2],
    )
    stops = sorted(draw.sample(range(given + 1, frames), draw.choice([1, 2])))
    straight, trace, _ = fake.take(policy, **options)
    made = [row.start_frame for row in trace.rows]
    # A stop in the chunk in which the one before it ended, or in the last one, would leave nothing
    # to make.
    reached = [sum(start < stop for start in made) for stop in stops]
    stops = [
        stop
        for i, stop in enumerate(stops)
        if reached[i] < len(made) and reached[i] not in reached[:i]
    ]
    resumed, again = in_runs(policy, stops, path, later, **options)
    last = again.rows[0].start_frame
    assert torch.equal(resumed, straight), options | {"stops": stops}
    assert [(row.start_frame, row.kept_tokens) for row in again.rows] == [
        (row.start_frame, row.kept_tokens) for row in trace.rows if row.start_frame >= last
    ]
    assert torch.equal(*(one.memory_maps[0].at(one.rows[-1]) for one in (again, trace))), (
        options | {"stops": stops}
    )


@pytest.mark.parametrize(
    "policy",
    POLICIES,
    ids=lambda policy: f"{policy.retention} {policy.selection} {policy.schedule} {policy.storage}",
)
def test_resumed_equals_straight(policy, tmp_path):
    draw = random.Random(repr(policy))
    for _ in range(5):
        compare(policy, draw, draw_take(policy, draw), tmp_path / "memory.safetensors")


@pytest.mark.parametrize("retention", [SinkWindow(1, 7), DeCoPrune(gamma=5.0)], ids=repr)
def test_one_branch_of_a_memory_leaves_the_other_as_it_is(retention):
    """Out of one memory, not its file: a new shot, then the take as it was."""
    kept = []
    straight, trace, _ = fake.take(KVPolicy(retention), 16, 2)
    fake.take(KVPolicy(retention), 16, 2, stop_after=8, on_memory=kept.append)
    fake.take(KVPolicy(retention), 16, 2, memory=kept[0], starts=(PromptStart(8, "cut"),))
    again, resumed, _ = fake.take(KVPolicy(retention), 16, 2, memory=kept[0])
    assert torch.equal(again, straight) and resumed.scores == trace.scores


def test_a_take_can_be_extended_and_its_short_last_chunk_stays(tmp_path):
    kept = []
    first, *_ = fake.take(KVPolicy(), 5, 2, on_memory=kept.append)
    longer, trace, _ = fake.take(KVPolicy(), 9, 2, memory=kept[0])
    assert torch.equal(longer[:, :, :5], first) and longer.shape[2] == 9
    assert [(row.start_frame, row.frames) for row in trace.rows] == [(5, 2), (7, 2)]
    assert (
        trace.rows[0].kept_tokens == 5 * 6 * fake.LAYERS * fake.HEADS
    )  # the short chunk is history too


def test_keeping_a_memory_changes_nothing_and_shares_nothing():
    kept = []
    assert torch.equal(fake.take(KVPolicy(), on_memory=kept.append)[0], fake.take(KVPolicy())[0])
    before = (
        kept[0].streams["prompt 0"]["memories"]["history"]["banks"][0]["layers"][0]["k"].clone()
    )
    for _ in range(2):
        fake.take(KVPolicy(), 12, 2, memory=kept[0])
    assert torch.equal(
        kept[0].streams["prompt 0"]["memories"]["history"]["banks"][0]["layers"][0]["k"], before
    )


@pytest.mark.parametrize(
    "policy", [KVPolicy(DeCoPrune(mode="target_keep", most_frames=3)), *HELD], ids=repr
)
def test_a_memory_does_not_change_while_its_take_goes_on(policy):
    def tensors(memory):
        found = {}
        pack(memory.parts(), "", found)
        return found

    kept = []
    fake.take(
        policy,
        16,
        every=2,
        on_memory=lambda memory: kept.append(
            (memory, {name: x.clone() for name, x in tensors(memory).items()})
        ),
    )
    assert len(kept) == 4
    for memory, before in kept:
        assert all(torch.equal(x, before[name]) for name, x in tensors(memory).items())


def test_a_sink_that_stood_elsewhere_before_a_cut_is_not_in_the_memory(tmp_path):
    """The new shot's sink has not moved yet when the take is saved; what was held of the old one
    made the memory a damaged one.
    """
    options = dict(frames=12, starts=[PromptStart(8, "cut")])
    for policy in (
        KVPolicy(SinkWindow(2, 4, "shifted")),
        KVPolicy(SinkWindow(2, 4, "shifted"), storage=KVStorage("int8", 1, 2)),
        HELD[1],
    ):
        straight, *_ = fake.take(policy, **options)
        assert torch.equal(
            in_runs(policy, [10], tmp_path / "memory.safetensors", **options)[0], straight
        )


def test_a_memory_of_another_policy_is_refused_whole():
    kept = []
    fake.take(KVPolicy(), on_memory=kept.append, stop_after=4)
    with pytest.raises(KVMemoryError, match="'starts' is NoneType and must be list"):
        fake.take(KVPolicy(SinkWindow(2, 6)), memory=kept[0])


def test_workers_side_by_side_stop_where_one_device_stops(tmp_path):
    policy = KVPolicy(schedule=FLASH[0])
    straight, *_ = fake.take(policy, 12, 2)
    resumed, _ = in_runs(
        policy, [4, 8], tmp_path / "memory.safetensors", frames=12, chunk_frames=2, workers=2
    )
    assert torch.equal(resumed, straight)
