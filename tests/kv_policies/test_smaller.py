"""Which smaller policies a take that does not fit may use instead."""

import pytest
from keepsake.kv_policies import (
    DeCoPrune,
    DirectedForcing,
    FlashForward,
    FullKV,
    KVPolicy,
    KVStorage,
    RandomPrune,
    SinkWindow,
)
from keepsake.kv_policies.smaller import (
    retention_is_free,
    with_pruning,
    with_smaller_storage,
    with_window,
)


def test_history_is_held_in_fewer_bits_or_in_main_memory():
    smaller = list(with_smaller_storage(KVPolicy(SinkWindow(1, 9)), same_bits=False))
    assert [change for _, change in smaller] == [
        "KV Storage with dtype int8",
        "KV Storage with dtype model and device cpu",
    ]
    assert [policy for policy, _ in smaller] == [
        KVPolicy(SinkWindow(1, 9), storage=KVStorage("int8")),
        KVPolicy(SinkWindow(1, 9), storage=KVStorage("model", device="cpu")),
    ]


def test_a_take_that_goes_on_keeps_its_bits():
    smaller = list(with_smaller_storage(KVPolicy(), same_bits=True))
    assert [policy.storage.device for policy, _ in smaller] == ["cpu"]


def test_a_storage_that_the_user_chose_stays():
    policy = KVPolicy(storage=KVStorage("fp8"))
    assert list(with_smaller_storage(policy, same_bits=False)) == []


@pytest.mark.parametrize(
    "policy, free",
    [
        (KVPolicy(), True),
        (KVPolicy(DeCoPrune()), True),
        (KVPolicy(selection=DirectedForcing()), False),
        (KVPolicy(schedule=FlashForward()), False),
    ],
    ids=["all kept", "pruned", "with a selection", "with a schedule that keeps its own history"],
)
def test_another_retention_is_proposed_only_where_no_slot_relies_on_this_one(policy, free):
    assert retention_is_free(policy) is free


def test_pruning_keeps_a_share_that_is_known_before():
    policy, change = with_pruning(KVPolicy(FullKV()))
    assert policy.retention == DeCoPrune(mode="target_keep", target_keep=0.15)
    assert change == "KV Policy: DeCoPrune in mode target_keep with target_keep 0.15"
    for retention in (DeCoPrune(), RandomPrune()):
        assert with_pruning(KVPolicy(retention)) is None


def test_a_window_has_a_sink_of_three_frames():
    policy, change = with_window(KVPolicy(), 12)
    assert policy.retention == SinkWindow(3, 12)
    assert change == "KV Policy: Sink + Window with window_frames 12 and sink_frames 3"
