"""Start latents and changing prompts against every retention, selection and schedule: it works, or
it is refused before sampling.
"""

import re

import pytest
import torch
from keepsake.host.forward.prompts import add_prompt
from keepsake.kv_policies import (
    RETENTIONS,
    SCHEDULES,
    SELECTIONS,
    DeCoPrune,
    DeCoPruneHS,
    DeepForcing,
    DeepSink,
    DirectedForcing,
    EmaSink,
    FlashForward,
    ForcingKV,
    HeadMap,
    Hierarchical,
    KVPolicy,
    MemRope,
    MonarchRT,
    RandomPrune,
    ReversePrune,
    RollingForcing,
    RollingSink,
    SinkWindow,
    TaylorSeer,
    TempDiff,
    TempDiffPrune,
)
from keepsake.kv_policies.words import title_of
from support import tiny

FRAMES, CHUNK, SWITCH = 12, 3, 6
PRUNING = dict(
    mode="target_keep",
    target_keep=0.3,
    dense_chunks=1,
    reindex="periodic",
    virtual_length=6,
    reindex_recent=3,
)
CONTROLS = (RandomPrune, ReversePrune, TempDiffPrune)
PARAMETERS = {
    **dict.fromkeys(CONTROLS, dict(of=DeCoPrune(**PRUNING))),
    DeCoPrune: PRUNING,
    SinkWindow: dict(sink_frames=2, window_frames=9, sink_rope="shifted"),
    DeepForcing: dict(sink_frames=2, budget_frames=6, recent_frames=3, window_frames=8),
    DeepSink: dict(sink_frames=2, window_frames=7),
    TempDiff: dict(blocks=2, sink_frames=1, recent_frames=1),
    MonarchRT: dict(h_reduce=2),
    DeCoPruneHS: dict(
        **PRUNING,
        head_map=HeadMap("tiny", 4, ((0, 1),) * 2),
        static_sink_frames=1,
        static_recent_frames=2,
    ),
    RollingSink: dict(window_frames=7),
    MemRope: dict(window_frames=8, sink_frames=1),
    EmaSink: dict(window_frames=7, sink_frames=2, sink_weight=0.5),
    ForcingKV: dict(head_map=HeadMap("tiny", 4, ((0, 1),) * 2)),
    DirectedForcing: dict(uniform_budget=5, active_from=6),
    FlashForward: dict(
        anchor_stride=4, block_anchors=2, anchor_window=2, planner_history=2, stage_history=1
    ),
    Hierarchical: dict(window_frames=9),
    RollingForcing: dict(window_frames=12),
    TaylorSeer: dict(first_steps=2),
}


WHOLE = SinkWindow(**PARAMETERS[SinkWindow])


def with_parameters(kinds) -> dict:
    """One policy of each kind, by its name."""
    return {kind.__name__: kind(**PARAMETERS.get(kind, {})) for kind in kinds}


POLICIES = {
    **{
        name: KVPolicy(retention)
        for name, retention in with_parameters(RETENTIONS).items()
        if not retention.needs_poses  # a camera model's, see test_worldkv.py
    },
    **{
        name: KVPolicy(WHOLE if selection.needs_whole_frames else DeCoPrune(**PRUNING), selection)
        for name, selection in with_parameters(SELECTIONS).items()
    },
    **{name: KVPolicy(schedule=schedule) for name, schedule in with_parameters(SCHEDULES).items()},
}
SWITCHES = {
    "none": None,
    "swap": ("swap", 0),
    "recache": ("recache", 0),
    "cut": ("cut", 0),
    "blend": ("recache", 5),
}


def is_refused(policy: KVPolicy, switch: str) -> bool:
    """Whether the policy's schedule cannot change prompts in this way."""
    return SWITCHES[switch] is not None and SWITCHES[switch][0] not in policy.schedule.switches


def test_which_ways_the_schedules_refuse():
    refused = {name: [w for w in SWITCHES if is_refused(p, w)] for name, p in POLICIES.items()}
    assert refused["CleanPass"] == []
    assert refused["FlashForward"] == refused["RollingForcing"] == ["recache", "cut", "blend"]
    assert refused["Hierarchical"] == ["recache", "blend"]


def prompts(mode, blend=0, at=SWITCH, recache_frames=12, to=4):
    return add_prompt(tiny.prompt(1), tiny.prompt(to), at, mode, blend, recache_frames)


def take(model, policy, positive=None, prefix=None, frames=FRAMES, **options):
    stats = []
    fewest = 4 if policy.schedule.forecast_steps(4) else 2
    out = tiny.ours(
        model,
        tiny.noise_of(frames, 4, 4),
        CHUNK,
        policy,
        prefix,
        positive=positive,
        steps=options.pop("steps", fewest),
        on_stats=stats.append,
        **options,
    )
    return out, stats[0]


@pytest.mark.parametrize("switch", SWITCHES)
@pytest.mark.parametrize("given", [0, 1, 4])
@pytest.mark.parametrize("name", POLICIES)
def test_every_input_works_with_every_policy_or_is_refused_before_sampling(
    model, name, given, switch
):
    prefix = tiny.noise_of(given, 4, 4, seed=8) if given else None
    positive, steps = prompts(*SWITCHES[switch]) if SWITCHES[switch] else None, []
    if is_refused(POLICIES[name], switch):
        schedule = re.escape(title_of(POLICIES[name].schedule))
        with pytest.raises(
            ValueError, match=f"{SWITCHES[switch][0]}, which {schedule} cannot do. Use swap"
        ):
            take(
                model,
                POLICIES[name],
                positive,
                prefix,
                callback=lambda *progress: steps.append(progress),
            )
        assert not steps
        return
    out, stats = take(model, POLICIES[name], positive, prefix)
    assert torch.isfinite(out).all()
    if given == 4:
        assert torch.equal(out, take(model, POLICIES[name], positive, prefix)[0])
    if given:
        assert torch.allclose(out[:, :, :given], prefix, atol=1e-6)
    assert stats.given_frames == given and 0 <= stats.prune_ratio <= 1
    assert all(row.kept_tokens <= row.full_tokens for row in stats.chunks)
    progress = " ".join(stats.notes)
    assert ("the prompt changes" in progress) == (switch != "none")
    assert ("run again" in progress) == (
        switch in ("recache", "blend") and name != "ContextRecompute"
    )  # where it is what every chunk does
