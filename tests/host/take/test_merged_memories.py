"""Memories of merged rows in the host: two streams, a batch, main memory, and saved ones, each to
the last bit what it should equal.
"""

from dataclasses import replace

import pytest
import torch
from keepsake.kv_policies import EmaSink, KVPolicy, KVStorage, MemRope, RollingSink
from support import tiny

POLICIES = [
    KVPolicy(retention)
    for retention in (RollingSink(7), MemRope(8, 1), MemRope(8, 1, adaptive=True), EmaSink(7, 2))
]
NOISE = tiny.noise_of(18, 4, 4)


def take(policy, noise=NOISE, on_memory=None, **request):
    made_by = tiny.sampler(policy, 3, on_memory=on_memory, **request)
    return tiny.guide(tiny.prepared(tiny.tiny_model()), made_by, noise, cfg=3.0, steps=2)


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: repr(policy.retention))
def test_it_goes_on_from_main_memory_and_from_a_saved_memory_to_the_last_bit(policy):
    whole, kept = take(policy), []
    in_main = replace(policy, storage=KVStorage("model", device="cpu"))
    assert torch.equal(take(in_main, stop_after=12, on_memory=kept.append), whole[:, :, :12])
    assert torch.equal(take(policy, memory=kept[0]), whole)


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: repr(policy.retention))
def test_takes_of_a_batch_are_those_made_alone(policy):
    both = take(policy, tiny.noise_of(18, 4, 4, batch=2))
    first = take(policy, tiny.noise_of(18, 4, 4, batch=2)[:1])
    assert torch.equal(both[:1], first)
