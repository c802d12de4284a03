"""What holds for every retention."""

import copy

import pytest
import torch
from keepsake.kv_policies import KVPolicy, Take

from ... import fake
from ...cases import RETENTION_CASES


def bytes_of(plan, geometry, element_size):
    """Of a bank at its largest: its keys and values, and the unmoved copies of its keys, or of
    both.
    """
    heads = sum(map(len, plan.heads_by_layer(geometry)))
    frames = 2 * plan.most_frames + (1 + plan.holds_values) * plan.held_frames
    return frames * geometry.tokens_per_frame * heads * geometry.head_dim * element_size


@pytest.mark.parametrize("retention", RETENTION_CASES, ids=repr)
@pytest.mark.parametrize("chunk_frames", [1, 2, 3])
def test_a_run_is_bounded_repeatable_and_leaves_nothing_on_the_policy(retention, chunk_frames):
    policy, before = KVPolicy(retention), copy.deepcopy(retention)
    plans = retention.banks(fake.geometry(chunk_frames), Take(10, 0, (1.0, 0.8, 0.5, 0.0), 1))

    def on_chunk(session, chunk):
        for stream in session.streams:
            for bank, plan in zip(fake.banks(session, stream), plans, strict=True):
                assert bank.length <= bank.capacity <= 6 * plan.most_frames
                token = bank.frame[..., : bank.length] * 6 + bank.cell[..., : bank.length]
                assert (token.diff() > 0).all()  # ascending and unique

    first, trace, _ = fake.take(policy, 10, chunk_frames, on_chunk=on_chunk)
    second, *_ = fake.take(policy, 10, chunk_frames)
    assert torch.equal(first, second)
    assert retention == before and hash(retention) == hash(before)
    most = sum(bytes_of(plan, fake.geometry(), 8) for plan in plans)
    assert trace.peak_cache_bytes <= most


@pytest.mark.parametrize("retention", RETENTION_CASES, ids=repr)
def test_streams_do_not_disturb_each_other(retention):
    alone, *_ = fake.take(KVPolicy(retention))
    beside, trace, _ = fake.take(KVPolicy(retention), streams=("positive", "negative"))
    assert torch.equal(alone, beside) and trace.streams == 2
