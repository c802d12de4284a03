"""Which tokens were in memory when, and what was read, by hand. Six tokens a frame, two layers, two
heads, two frames a chunk.
"""

import json

import torch
from keepsake.kv_policies import (
    DeCoPrune,
    DeCoPruneHS,
    DirectedForcing,
    FlashForward,
    HeadMap,
    KVPolicy,
    SinkWindow,
)
from keepsake.rollout.stats import KVStats

from .. import fake


def take(policy, **options):
    """By chunk, frames that it could read, its own included; the trace."""
    trace = fake.take(policy, **options)[1]
    moments = [trace.memory_maps[0].at(row) for row in trace.rows]
    return [
        [frame for frame in range(len(kept)) if kept[frame].min() == 1] for kept in moments
    ], trace


def test_a_window_forgets_frame_by_frame():
    kept, trace = take(KVPolicy(SinkWindow(1, 5)), frames=9)
    assert kept == [[0, 1], [0, 1, 2, 3], [0, 2, 3, 4, 5], [0, 4, 5, 6, 7], [0, 6, 7, 8]]
    assert trace.memory_maps[0].dropped(trace.rows[-1]) == [
        [[], [(2, 6)], [(3, 6)], [(3, 6)], [(4, 6)], [(4, 6)], [], [], []]
    ]


def test_what_a_chunk_could_read_is_what_its_row_counts():
    heads = DeCoPruneHS(
        mode="target_keep",
        target_keep=0.5,
        head_map=HeadMap("fake", 2, ((0,), (1,))),
        static_sink_frames=1,
        static_recent_frames=2,
    )
    for policy in (KVPolicy(DeCoPrune(mode="target_keep", target_keep=0.5)), KVPolicy(heads)):
        _, trace = take(policy, frames=14)
        for row in trace.rows:
            own = row.frames * 6
            assert (
                round(float(trace.memory_maps[0].at(row).sum() - own) * fake.LAYERS * fake.HEADS)
                == row.kept_tokens
            )


def test_head_groups_have_rows_of_their_own():
    """In layer 0 all heads are dynamic; of layer 1, head 1 is static: a quarter of all heads holds
    the sink and two frames.
    """
    heads = DeCoPruneHS(
        gamma=-1.0,
        head_map=HeadMap("fake", 2, ((0,), (1,))),
        static_sink_frames=1,
        static_recent_frames=2,
    )
    _, trace = take(KVPolicy(heads), frames=8)
    kept = trace.memory_maps[0]
    assert kept.shares == (0.75, 0.25)
    dynamic, static = kept.by_group(trace.rows[-1]).float().flatten(2).mean(2).tolist()
    assert dynamic == [1] * 8 and static == [1, 0, 0, 0, 1, 1, 1, 1]
    assert kept.at(trace.rows[-1])[1].unique().tolist() == [0.75]


def test_devices_that_work_side_by_side_tell_the_same_map():
    maps = [
        fake.take(KVPolicy(schedule=FlashForward(4, 2, 2, 2, 2, 9)), 13, workers=workers)[1]
        .memory_maps[0]
        .held_until
        for workers in (0, 3)
    ]
    assert torch.equal(*maps)


def test_directed_forcing_tells_which_frames_were_read():
    """Three of a chunk's budget of five are history: one of the three sink frames, and two of the
    others, for every frame and head.
    """
    _, trace = take(KVPolicy(selection=DirectedForcing(uniform_budget=5, active_from=8)), frames=12)
    assert [len(row.reads) for row in trace.rows] == [0, 2, 4, 6, 8, 10]
    for row in trace.rows[:3]:
        assert set(row.reads) <= {1}  # not yet selecting: all is read
    for row in trace.rows[3:]:
        assert abs(sum(row.reads[:3]) - 1) < 0.001 and abs(sum(row.reads[3:]) - 2) < 0.001
    assert fake.take(KVPolicy())[1].rows[-1].reads == ()


def test_the_json_tells_when_tokens_were_dropped():
    policy = KVPolicy(SinkWindow(0, 4))
    _, trace = take(policy)
    stats = KVStats(
        policy=policy.describe(),
        geometry=fake.geometry(),
        dtype="float64",
        steps=3,
        temporal_compression=4,
        streams=1,
        chunks=tuple(trace.rows),
        seconds=1.0,
        peak_cache_bytes=0,
        memory_maps=tuple(trace.memory_maps),
    )
    result = json.loads(stats.to_json())
    assert result["dropped_by_frame"] == [
        [[[[2, 6]], [[2, 6]], [[3, 6]], [[3, 6]], [], [], [], []]]
    ]
    assert result["kept_by_frame"] == [[0, 0, 0, 0, 1, 1, 1, 1]] and result[
        "head_group_shares"
    ] == [1]
