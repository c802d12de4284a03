"""What holds for every retention."""

import copy

import pytest
import torch
from keepsake.kv_policies import (
    RETENTIONS,
    DeCoPrune,
    DeCoPruneHS,
    HeadMap,
    KVPolicy,
    SinkWindow,
    Take,
)

from ... import fake

PARAMETERS = {
    SinkWindow: [
        dict(sink_frames=2, window_frames=7),
        dict(sink_frames=0, window_frames=5),
        dict(sink_frames=1, window_frames=6, sink_rope="shifted"),
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
}
CASES = [kind(**values) for kind in RETENTIONS for values in PARAMETERS.get(kind, [{}])]


def bytes_of(plan, geometry, element_size):
    """Of a bank at its largest: its keys and values, and the unmoved copies of its keys."""
    heads = sum(map(len, plan.heads_by_layer(geometry)))
    frames = 2 * plan.most_frames + plan.held_frames
    return frames * geometry.tokens_per_frame * heads * geometry.head_dim * element_size


@pytest.mark.parametrize("retention", CASES, ids=repr)
@pytest.mark.parametrize("chunk_frames", [1, 2, 3])
def test_a_run_is_bounded_repeatable_and_leaves_nothing_on_the_policy(retention, chunk_frames):
    policy, before = KVPolicy(retention), copy.deepcopy(retention)
    plans = retention.banks(fake.geometry(chunk_frames), Take(10, 0, (1.0, 0.8, 0.5, 0.0), 1))

    def on_chunk(session, chunk):
        for stream in session.streams:
            for bank, plan in zip(fake.banks(session, stream), plans, strict=True):
                assert bank.length <= bank.capacity <= 6 * plan.most_frames
                token = bank.frame[: bank.length] * 6 + bank.cell[: bank.length]
                assert (token.diff() > 0).all()  # ascending and unique

    first, trace, _ = fake.take(policy, 10, chunk_frames, on_chunk=on_chunk)
    second, *_ = fake.take(policy, 10, chunk_frames)
    assert torch.equal(first, second)
    assert retention == before and hash(retention) == hash(before)
    most = sum(bytes_of(plan, fake.geometry(), 8) for plan in plans)
    assert trace.peak_cache_bytes <= most


@pytest.mark.parametrize("retention", CASES, ids=repr)
def test_streams_do_not_disturb_each_other(retention):
    alone, *_ = fake.take(KVPolicy(retention))
    beside, trace, _ = fake.take(KVPolicy(retention), streams=("positive", "negative"))
    assert torch.equal(alone, beside) and trace.streams == 2
