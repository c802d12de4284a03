"""Policies that hold less than another one: what a take that does not fit may use instead."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from .policy import KVPolicy
from .retention.decoprune import DeCoPrune
from .retention.other_choice import OtherChoice
from .retention.sink_window import SinkWindow
from .retention.token_prune import TokenPrune
from .selection.selection import ReadAll
from .storage.kv_storage import KVStorage
from .storage.storage import Storage

SINK_FRAMES = 3
PRUNED = DeCoPrune(mode="target_keep", target_keep=0.15)
STORAGES = (
    (KVStorage("int8"), "dtype int8"),
    (KVStorage("model", device="cpu"), "dtype model and device cpu"),
)


class SmallerPolicy(NamedTuple):
    policy: KVPolicy
    change: str  # the node and its values that make it of the other policy


def with_smaller_storage(policy: KVPolicy, same_bits: bool) -> Iterator[SmallerPolicy]:
    """The policy with its history in fewer bits or in main memory, unless it has a storage of its
    own. With `same_bits`, as for a take that goes on from a saved memory, only in main memory.
    """
    if policy.storage != Storage():
        return
    for storage, values in STORAGES:
        if not same_bits or storage.anywhere() == policy.storage:
            yield SmallerPolicy(replace(policy, storage=storage), f"KV Storage with {values}")


def retention_is_free(policy: KVPolicy) -> bool:
    """Whether any retention works in the policy: no other slot relies on the one it has."""
    return not policy.schedule.keeps_own_history and isinstance(policy.selection, ReadAll)


def with_pruning(policy: KVPolicy) -> SmallerPolicy | None:
    """The policy with DeCoPrune at a share that is known before; None where it prunes already."""
    if isinstance(policy.retention, (TokenPrune, OtherChoice)):
        return None
    return SmallerPolicy(
        replace(policy, retention=PRUNED),
        f"KV Policy: DeCoPrune in mode {PRUNED.mode} with target_keep {PRUNED.target_keep:g}",
    )


def with_window(policy: KVPolicy, window_frames: int) -> SmallerPolicy:
    """The policy with a sink of `SINK_FRAMES` and a window."""
    return SmallerPolicy(
        replace(policy, retention=SinkWindow(SINK_FRAMES, window_frames)),
        f"KV Policy: Sink + Window with window_frames {window_frames} and "
        f"sink_frames {SINK_FRAMES}",
    )
