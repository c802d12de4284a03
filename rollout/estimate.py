"""The bytes that a take will need, from a dry run of the code that makes it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from .chunk_bytes import ChunkBytes
from .dry_run import FORGOTTEN, KEPT, DryRun
from .take_plan import TakePlan


class PeakBytes(NamedTuple):
    """Most bytes at one time, over a take."""

    allocated: int  # by caches, wherever they lie
    needed: int  # on the device: caches there, temporary copies and the take's latents
    main: int  # in main memory


def peaks(chunks: tuple[ChunkBytes, ...]) -> PeakBytes:
    return PeakBytes(
        max(chunk.row.allocated_bytes for chunk in chunks),
        max(chunk.nbytes for chunk in chunks),
        max(chunk.main_bytes for chunk in chunks),
    )


@dataclass(frozen=True)
class Estimate:
    """Bytes by chunk: at least, and at most. The two differ where what stays depends on the
    picture; then `expected` lies between them, if the plan has a share.
    """

    least: tuple[ChunkBytes, ...]
    most: tuple[ChunkBytes, ...]
    expected: tuple[ChunkBytes, ...] | None
    bank_names: tuple[str, ...]
    lane_bytes: dict[str, int]  # least peak on the device of each of the schedule's lanes

    @property
    def allocated(self) -> tuple[int, int]:
        """At least and at most, see PeakBytes; so are the next two."""
        return peaks(self.least).allocated, peaks(self.most).allocated

    @property
    def needed(self) -> tuple[int, int]:
        return peaks(self.least).needed, peaks(self.most).needed

    @property
    def main(self) -> tuple[int, int]:
        return peaks(self.least).main, peaks(self.most).main


def estimate(plan: TakePlan) -> Estimate:
    """One dry run for each share of tokens that is needed."""
    dry_run = DryRun(plan, FORGOTTEN)
    least = dry_run.chunks()
    most = least
    expected = None
    if plan.policy.retention.by_content:
        most = DryRun(plan, KEPT).chunks()
        if plan.share is not None:
            expected = DryRun(plan, plan.share).chunks()
    return Estimate(least, most, expected, dry_run.trace.bank_names, dry_run.lane_bytes)


def fits(
    plan: TakePlan, device_bytes: int, main_bytes: float = math.inf, share: float = FORGOTTEN
) -> bool:
    """Whether a take of which `share` stays needs at most these bytes of the device and of main
    memory. The dry run ends with the first chunk that does not fit.
    """
    return all(
        chunk.nbytes <= device_bytes and chunk.main_bytes <= main_bytes
        for chunk in DryRun(plan, share)
    )


def longest_take(
    plan: TakePlan,
    device_bytes: int,
    bound: int,
    main_bytes: float = math.inf,
    share: float = FORGOTTEN,
) -> int:
    """The most latent frames, up to `bound`, whose take `fits`; 0: not one new frame does."""
    finished_frames = plan.memory.frames if plan.memory else 0
    shortest = max(plan.take.given_frames, finished_frames) + 1

    def fits_at(frames: int) -> bool:
        return fits(plan.of_length(frames), device_bytes, main_bytes, share)

    return largest_that(fits_at, shortest, bound, guess=frames_in(plan, device_bytes))


def frames_in(plan: TakePlan, nbytes: int) -> int:
    """Latent frames whose keys and values take so many bytes, where every token stays in the
    model's dtype.
    """
    return nbytes // (plan.streams * plan.geometry.bytes_per_frame(plan.dtype.itemsize))


def largest_that(holds: Callable[[int], bool], first: int, last: int, guess: int) -> int:
    """The largest number from `first` to `last` for which `holds` is true; 0: there is none.

    `holds` must be true up to some number and false from there on; asking is slow, so a good
    `guess` is asked early.
    """
    # 1. All of them: the commonest answer.
    if last < first:
        return 0
    if holds(last):
        return last
    # 2. From the guess on in steps that double, until one number holds and a larger one does not.
    low = first - 1  # holds, or lies before the first number
    high = last  # does not hold
    asked = min(max(guess, first), last - 1)
    step = 1
    while high - low > 1:
        if holds(asked):
            low = asked
        else:
            high = asked
        if first <= low and high < last:
            break
        asked = min(low + step, last - 1) if first <= low else max(high - step, first)
        step *= 2
    # 3. Halve what lies between.
    while high - low > 1:
        middle = (low + high) // 2
        if holds(middle):
            low = middle
        else:
            high = middle
    return low if first <= low else 0
