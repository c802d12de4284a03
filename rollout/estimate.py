"""What a take will need, known before it: a dry run of the very code that makes one, over caches
that have a size and nothing in them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from .dry_run import FORGOTTEN, KEPT, DryRun, Need
from .setup import Setup


class PeakBytes(NamedTuple):
    """Most bytes at one time, over a take."""

    allocated: int
    # of these, on the device, with what moving and joining rows holds twice, and the latents
    needed: int
    host: int  # and in main memory


def peaks(needs: tuple[Need, ...]) -> PeakBytes:
    return PeakBytes(
        max(need.row.allocated_bytes for need in needs),
        max(need.nbytes for need in needs),
        max(need.host_bytes for need in needs),
    )


@dataclass(frozen=True)
class Estimate:
    """The needs of a take by chunk: the least, and the most where the policy goes by the picture;
    else both are the same. Between them what is expected, where the setup tells a share.
    """

    least: tuple[Need, ...]
    most: tuple[Need, ...]
    expected: tuple[Need, ...] | None
    bank_names: tuple[str, ...]
    lane_bytes: dict[
        str, int
    ]  # most bytes allocated on the device in each of the schedule's lanes, at least

    @property
    def allocated(self) -> tuple[int, int]:
        """At least, and at most; so are the next two."""
        return peaks(self.least).allocated, peaks(self.most).allocated

    @property
    def needed(self) -> tuple[int, int]:
        return peaks(self.least).needed, peaks(self.most).needed

    @property
    def host(self) -> tuple[int, int]:
        return peaks(self.least).host, peaks(self.most).host


def estimate(setup: Setup) -> Estimate:
    dry = DryRun(setup, FORGOTTEN)
    least, by_content = dry.needs(), setup.policy.retention.by_content
    most = DryRun(setup, KEPT).needs() if by_content else least
    expected = None if setup.share is None or not by_content else DryRun(setup, setup.share).needs()
    return Estimate(least, most, expected, dry.trace.bank_names, dry.lane_bytes)


def fits(setup: Setup, budget: int, ram: float = math.inf, share: float = FORGOTTEN) -> bool:
    """Whether what a take needs, when such a share stays, is within so many bytes on the device
    and, of what lies there by choice, in main memory.
    """
    return all(need.nbytes <= budget and need.host_bytes <= ram for need in DryRun(setup, share))


def longest(
    setup: Setup, budget: int, bound: int, ram: float = math.inf, share: float = FORGOTTEN
) -> int:
    """The most latent frames, up to `bound`, whose take `fits`; 0: not one new frame."""
    shortest = max(setup.take.given_frames, setup.memory.frames if setup.memory else 0) + 1
    return most_that(
        lambda frames: fits(setup.of_length(frames), budget, ram, share),
        shortest,
        bound,
        frames_in(setup, budget),
    )


def frames_in(setup: Setup, budget: int) -> int:
    """Latent frames that a budget holds when every token stays, in the model's dtype."""
    return budget // (setup.streams * setup.geometry.bytes_per_frame(setup.dtype.itemsize))


def most_that(holds: Callable[[int], bool], first: int, last: int, guess: int) -> int:
    """The largest number from `first` to `last` of which something holds that holds of all smaller
    ones; 0: of none. It is looked for at the end, then near `guess`.
    """
    if last < first or holds(last):
        return last if last >= first else 0
    low, high, step = first - 1, last, 1  # holds, holds not
    at = min(max(guess, first), last - 1)
    while high - low > 1:
        low, high = (at, high) if holds(at) else (low, at)
        at = (
            (low + high) // 2
            if low >= first and high < last
            else min(low + step, last - 1)
            if low >= first
            else max(high - step, first)
        )
        step *= 2
    return low if low >= first else 0
