"""What a take will need, known before it: a dry run of the very code that makes one, over caches that have a size and nothing in them."""
from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import chain, repeat
from typing import NamedTuple

import torch

from ..kv_policies import Chunk, Geometry, KVPolicy, Take
from .chunks import plan_chunks
from .dry_run import FORGOTTEN, KEPT, DryRun, Need
from .memory_file import KVMemory
from .timeline import prompt_frames


@dataclass(frozen=True)
class Setup:
    """All that a take's memory depends on."""

    policy: KVPolicy
    geometry: Geometry
    take: Take
    chunks: list[Chunk]
    streams: int
    dtype: torch.dtype
    memory: KVMemory | None = None   # from which the take goes on
    piece: range | None = None       # numbers of the chunks that are made; None: of all that are not made yet
    token_bytes: int = 0             # in which the sampling call holds the latents of one token on the device
    share: float | None = None       # of the tokens that the picture decides on, what is expected to stay, if that is known
    on_chunk: Callable[[], None] = field(default=lambda: None, repr=False, compare=False)    # called while it is looked into; may raise, to end that

    @property
    def made(self) -> tuple[Chunk, ...]:
        return self.memory.chunks if self.memory else ()

    @property
    def latent_bytes(self) -> int:
        """Of the whole take, from its beginning to its end."""
        return self.token_bytes * self.geometry.tokens_per_frame * self.take.total_frames

    def check(self):
        """Raise ValueError, in a sentence, when the policy cannot work with this model and take."""
        self.policy.check(self.geometry, self.take)

    def of_length(self, frames: int) -> Setup:
        """The same take in another length, made to its end, with the prompts that come in before."""
        chunk_frames = min(self.geometry.chunk_frames, frames)
        of_prompts = chain(self.chunks, repeat(replace(self.chunks[-1], switch=None)))
        chunks = [replace(chunk, prompt=same.prompt, switch=same.switch, shot=same.shot)
                  for chunk, same in zip(plan_chunks(frames, chunk_frames, self.take.given_frames, self.made), of_prompts)]
        return replace(self, geometry=replace(self.geometry, chunk_frames=chunk_frames), chunks=chunks, piece=None,
                       take=replace(self.take, total_frames=frames, prompt_frames=prompt_frames(chunks)))


class PeakBytes(NamedTuple):
    """Most bytes at one time, over a take."""

    allocated: int
    needed: int                      # of these, on the device, with what moving and joining rows holds twice, and the latents
    host: int                        # and in main memory


def peaks(needs: tuple[Need, ...]) -> PeakBytes:
    return PeakBytes(max(need.row.allocated_bytes for need in needs), max(need.nbytes for need in needs), max(need.host_bytes for need in needs))


@dataclass(frozen=True)
class Estimate:
    """The needs of a take by chunk: the least, and the most where the policy goes by the picture; else both are the same. Between them what is
    expected, where the setup tells a share."""

    least: tuple[Need, ...]
    most: tuple[Need, ...]
    expected: tuple[Need, ...] | None
    bank_names: tuple[str, ...]
    lane_bytes: dict[str, int]       # most bytes allocated on the device in each of the schedule's lanes, at least

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
    """Whether what a take needs, when such a share stays, is within so many bytes on the device and, of what lies there by choice, in main memory."""
    return all(need.nbytes <= budget and need.host_bytes <= ram for need in DryRun(setup, share))


def longest(setup: Setup, budget: int, bound: int, ram: float = math.inf, share: float = FORGOTTEN) -> int:
    """The most latent frames, up to `bound`, whose take `fits`; 0: not one new frame."""
    shortest = max(setup.take.given_frames, setup.memory.frames if setup.memory else 0) + 1
    return most_that(lambda frames: fits(setup.of_length(frames), budget, ram, share), shortest, bound, frames_in(setup, budget))


def frames_in(setup: Setup, budget: int) -> int:
    """Latent frames that a budget holds when every token stays, in the model's dtype."""
    return budget // (setup.streams * setup.geometry.bytes_per_frame(setup.dtype.itemsize))


def most_that(holds: Callable[[int], bool], first: int, last: int, guess: int) -> int:
    """The largest number from `first` to `last` of which something holds that holds of all smaller ones; 0: of none. It is looked for at the end,
    then near `guess`."""
    if last < first or holds(last):
        return last if last >= first else 0
    low, high, step = first - 1, last, 1         # holds, holds not
    at = min(max(guess, first), last - 1)
    while high - low > 1:
        low, high = (at, high) if holds(at) else (low, at)
        at = (low + high) // 2 if low >= first and high < last else min(low + step, last - 1) if low >= first else max(high - step, first)
        step *= 2
    return low if low >= first else 0
