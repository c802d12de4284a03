"""A few policies of each retention and each schedule, from the lists of kv_policies, small enough
for takes of about ten latent frames. One that is new in a list is tested with its defaults.
"""

from keepsake.kv_policies import (
    RETENTIONS,
    SCHEDULES,
    ContextRecompute,
    DeCoPrune,
    DeCoPruneHS,
    DeepForcing,
    DeepSink,
    DummyForcing,
    EmaSink,
    FlashForward,
    ForcingKV,
    HeadMap,
    Hierarchical,
    InfinityRope,
    MemRope,
    RollingForcing,
    RollingSink,
    SinkWindow,
    TaylorSeer,
    TempDiff,
    WorldKV,
)

RETENTION_PARAMETERS = {
    SinkWindow: [
        dict(sink_frames=2, window_frames=7),
        dict(sink_frames=0, window_frames=5),
        dict(sink_frames=1, window_frames=6, sink_rope="shifted"),
        dict(sink_frames=0, window_frames=3, whole_chunks=False),
    ],
    InfinityRope: [dict(window_frames=5), dict(sink_frames=2, window_frames=7, cut_distance=9)],
    DeepForcing: [
        dict(sink_frames=2, budget_frames=6, recent_frames=3, window_frames=7, reuse_limit=1),
        dict(sink_frames=1, budget_frames=6, recent_frames=4, window_frames=6),
    ],
    DeepSink: [dict(sink_frames=2, window_frames=6)],
    RollingSink: [dict(window_frames=7)],
    MemRope: [
        dict(window_frames=7, sink_frames=1),
        dict(window_frames=8, sink_frames=2, adaptive=True),
    ],
    EmaSink: [
        dict(window_frames=6, sink_frames=3, sink_weight=0.5),
        dict(window_frames=7, sink_frames=2),
    ],
    WorldKV: [
        dict(sink_frames=2, retrieved_frames=3, recent_frames=3),
        dict(sink_frames=1, retrieved_frames=3, recent_frames=3, keep_ratio=1.0),
    ],
    TempDiff: [
        dict(blocks=3, sink_frames=1, recent_frames=1, reindex="off"),
        dict(sink_frames=2, recent_frames=1, virtual_length=4, reindex_recent=1),
    ],
    DeCoPrune: [
        dict(gamma=5.0),
        dict(
            mode="target_keep",
            target_keep=0.3,
            dense_chunks=1,
            reindex="periodic",
            virtual_length=4,
            reindex_recent=1,
        ),
        dict(mode="target_keep", target_keep=0.5, most_frames=3, min_keep_per_block=1),
        dict(gamma=-1.0, most_frames=4, dense_chunks=1),
        dict(mode="valley", target_keep=0.4),
        dict(mode="valley", target_keep=0.7, most_frames=5, dense_chunks=1),
    ],
    DeCoPruneHS: [
        dict(
            head_map=HeadMap("fake", 2, ((0,), (1,))),
            mode="target_keep",
            static_sink_frames=1,
            static_recent_frames=2,
            most_frames=3,
        )
    ],
    DummyForcing: [
        dict(),
        dict(num_dummy=1, ar_start=2, local_frames=2),
        dict(dummy_share=0.0, local_frames=1),
    ],
    ForcingKV: [
        dict(head_map=HeadMap("fake", 2, ((0,), (1,)))),
        dict(head_map=HeadMap("fake", 2, ((), (0,))), ar_start=0, sink_frames=0, dynamic_frames=2),
    ],
}
RETENTION_CASES = [
    kind(**parameters) for kind in RETENTIONS for parameters in RETENTION_PARAMETERS.get(kind, [{}])
]

SCHEDULE_PARAMETERS = {
    FlashForward: [
        dict(
            anchor_stride=3,
            block_anchors=2,
            anchor_window=2,
            planner_history=2,
            stage_history=2,
        ),
        dict(anchor_window=0),
    ],
    Hierarchical: [dict(window_frames=5)],
    RollingForcing: [dict(window_frames=9)],
    ContextRecompute: [dict(window_frames=5)],
    TaylorSeer: [dict(order=1, interval=5, first_steps=2), dict(order=0, first_steps=1)],
}
SCHEDULE_CASES = [
    kind(**parameters) for kind in SCHEDULES for parameters in SCHEDULE_PARAMETERS.get(kind, [{}])
]
OWN_HISTORY = [schedule for schedule in SCHEDULE_CASES if schedule.keeps_own_history]
