"""What holds for every retention."""
import copy

import pytest
import torch
from keepsake.kv_policies import RETENTIONS, KVPolicy, SinkWindow

from .. import fake

PARAMETERS = {SinkWindow: [dict(sink_frames=2, window_frames=7), dict(sink_frames=0, window_frames=5),
                           dict(sink_frames=1, window_frames=6, sink_rope="shifted")]}
CASES = [kind(**values) for kind in RETENTIONS for values in PARAMETERS.get(kind, [{}])]


@pytest.mark.parametrize("retention", CASES, ids=repr)
@pytest.mark.parametrize("chunk_frames", [1, 2, 3])
def test_a_run_is_bounded_repeatable_and_leaves_nothing_on_the_policy(retention, chunk_frames):
    policy, before = KVPolicy(retention), copy.deepcopy(retention)
    capacity = retention.capacity_frames(10, chunk_frames) * 6

    def on_chunk(session, finished):
        for stream in session.streams.values():
            for bank in stream.cache.banks:
                assert bank.length <= capacity == bank.capacity
                token = bank.frame[:bank.length] * 6 + bank.cell[:bank.length]
                assert (token.diff() > 0).all()                       # ascending and unique

    first, trace, _ = fake.take(policy, 10, chunk_frames, on_chunk=on_chunk)
    second, *_ = fake.take(policy, 10, chunk_frames)
    assert torch.equal(first, second)
    assert retention == before and hash(retention) == hash(before)
    assert trace.peak_cache_bytes <= (retention.capacity_frames(10, chunk_frames) + 2) * fake.geometry().bytes_per_frame(8)


@pytest.mark.parametrize("retention", CASES, ids=repr)
def test_streams_do_not_disturb_each_other(retention):
    alone, *_ = fake.take(KVPolicy(retention))
    beside, trace, _ = fake.take(KVPolicy(retention), streams=("positive", "negative"))
    assert torch.equal(alone, beside) and trace.streams == 2
