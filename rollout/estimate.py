"""What a take will need, known before it: a dry run of the very code that makes one, over caches that have a size and nothing in them."""
from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, repeat

import torch
from torch import Tensor

from ..kv_policies import Chunk, Forward, Geometry, KVPolicy, Take
from .chunks import plan_chunks
from .loop import Model, Rollout, run
from .memory_file import KVMemory, stream_name
from .outline import Outline
from .session import Session
from .stats import ChunkRow
from .timeline import prompt_frames
from .trace import Trace

FORGOTTEN, KEPT = 1.0, float("nan")      # what all latents are: every prediction was right, or no score is a number and keeps its token


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

    @property
    def made(self) -> tuple[Chunk, ...]:
        return self.memory.chunks if self.memory else ()

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


@dataclass(frozen=True)
class Need:
    """What a take needs while one chunk is made."""

    row: ChunkRow                    # as the trace of a run has it, but for the seconds
    copied_bytes: int                # held twice where the history lies while rows move, or several memories are read together, at most so far

    @property
    def device_copied_bytes(self) -> int:
        return 0 if self.row.host_bytes else self.copied_bytes

    @property
    def nbytes(self) -> int:
        """On the device."""
        return self.row.allocated_bytes - self.row.host_bytes + self.device_copied_bytes

    @property
    def host_bytes(self) -> int:
        """In main memory, by KV Storage's choice."""
        return self.row.host_bytes + self.copied_bytes - self.device_copied_bytes


@dataclass(frozen=True)
class Estimate:
    """The needs of a take by chunk: the least, and the most where the policy goes by the picture; else both are the same."""

    least: tuple[Need, ...]
    most: tuple[Need, ...]
    bank_names: tuple[str, ...]
    lane_bytes: dict[str, int]       # most bytes allocated on the device in each of the schedule's lanes, at least

    @property
    def allocated(self) -> tuple[int, int]:
        """Most bytes allocated at one time, over the take: at least, and at most."""
        return tuple(max(need.row.allocated_bytes for need in needs) for needs in (self.least, self.most))

    @property
    def needed(self) -> tuple[int, int]:
        """Of these, the most on the device, with what moving and joining rows holds twice."""
        return tuple(max(need.nbytes for need in needs) for needs in (self.least, self.most))

    @property
    def host(self) -> tuple[int, int]:
        """And in main memory."""
        return tuple(max(need.host_bytes for need in needs) for needs in (self.least, self.most))


def estimate(setup: Setup) -> Estimate:
    least = DryRun(setup, FORGOTTEN)
    needs = least.needs()
    return Estimate(needs, DryRun(setup, KEPT).needs() if setup.policy.retention.by_content else needs, least.trace.bank_names, least.lane_bytes)


def fits(setup: Setup, budget: int, ram: float = math.inf) -> bool:
    """Whether the least that a take needs is within so many bytes on the device and, of what is held there by choice, in main memory."""
    return all(need.nbytes <= budget and need.host_bytes <= ram for need in DryRun(setup, FORGOTTEN))


def longest(setup: Setup, budget: int, bound: int, ram: float = math.inf) -> int:
    """The most latent frames, up to `bound`, whose take `fits`; 0: not one new frame."""
    shortest = max(setup.take.given_frames, setup.memory.frames if setup.memory else 0) + 1
    return most_that(lambda frames: fits(setup.of_length(frames), budget, ram), shortest, bound)


def most_that(holds: Callable[[int], bool], first: int, last: int) -> int:
    """The largest number from `first` to `last` of which something holds that holds of all smaller ones; 0: of none."""
    if last >= first and holds(last):
        return last
    low, high = first - 1, last          # holds, holds not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low if low >= first else 0


class DryRun:
    """Iterate for the need of each chunk; on the way the trace is filled as by a run.

    With `latent` FORGOTTEN a policy that scores tokens keeps as few as it may, with KEPT all of them.
    """

    def __init__(self, setup: Setup, latent: float):
        self.setup, self.trace, self.copied_bytes, self.lane_bytes = setup, Trace(), 0, {}
        self.latents = torch.full((1, 1, 1, 1, 1), latent).expand(1, 1, setup.take.total_frames, *setup.geometry.grid)     # a number for each token
        self.session = Session(replace(setup.policy, storage=Outline(setup.policy.storage)), setup.geometry, setup.take, setup.dtype,
                               torch.device("meta"))

    def __iter__(self) -> Iterator[Need]:
        model = Model(self._call, self._call, lambda number, step, like: self.latents[:, :, :like.shape[2]])
        rollout = Rollout(self.setup.chunks, torch.tensor(self.setup.take.sigmas), self.latents, self.latents, model, self.session, self.trace,
                          lambda *step: None)
        rollout.pieces = [self.setup.piece or range(len(self.setup.made), len(self.setup.chunks))]
        if self.setup.memory:
            rollout.resume(self._outline(self.setup.memory), {key: stream_name(key) for key in range(self.setup.streams)})
        for _ in run(rollout, self.session, self.trace):
            yield Need(self.trace.rows[-1], self.copied_bytes)

    def _outline(self, memory: KVMemory) -> KVMemory:
        """A memory with our latents in its own ones' place."""
        return replace(memory, latents=self.latents[:, :, :memory.frames],
                       carried={name: self.latents[:, :, :x.shape[2]] for name, x in memory.carried.items()})

    def needs(self) -> tuple[Need, ...]:
        copied = [need.copied_bytes for need in self]
        return tuple(map(Need, self.trace.rows, copied))

    def _call(self, forward: Forward, x: Tensor, sigma) -> Tensor:
        session = self.session
        for key in range(self.setup.streams):
            session.stream(key).forwards[forward.memory] += 1
        self.copied_bytes = max(self.copied_bytes, session.copied_bytes(forward))
        held = Counter()
        for stream in session.streams.values():
            for memory, cache in stream.caches.items():
                held[session.policy.schedule.lane(memory)] += cache.nbytes() - cache.host_bytes()
        self.lane_bytes = {lane: max(size, self.lane_bytes.get(lane, 0)) for lane, size in held.items()}
        return self.latents[:, :, :x.shape[2]]
