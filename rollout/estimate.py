"""What a take will need, known before it: a dry run of the very code that makes one, over caches that have a size and nothing in them."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..kv_policies import Chunk, Forward, Geometry, KVPolicy, Pages, Storage, Take
from .loop import Model, Rollout, plan_chunks, run
from .session import Session
from .stats import ChunkRow, Trace

FORGOTTEN, KEPT = 1.0, float("nan")      # what all latents are: every prediction was right, or no score is a number and keeps its token


@dataclass(frozen=True)
class Setup:
    """All that a take's memory depends on."""

    policy: KVPolicy
    geometry: Geometry
    take: Take
    chunks: tuple[Chunk, ...]
    streams: int
    dtype: torch.dtype

    def check(self):
        """Raise ValueError, in a sentence, when the policy cannot work with this model and take."""
        self.policy.retention.check(self.geometry, self.take)
        self.policy.selection.check(self.geometry, self.take)
        self.policy.schedule.check(self.policy, self.geometry, self.take)

    def of_length(self, frames: int) -> Setup:
        """The same take in another length."""
        chunk_frames = min(self.geometry.chunk_frames, frames)
        return replace(self, geometry=replace(self.geometry, chunk_frames=chunk_frames), take=replace(self.take, total_frames=frames),
                       chunks=tuple(plan_chunks(frames, chunk_frames, self.take.given_frames)))


@dataclass(frozen=True)
class Need:
    """What a take needs while one chunk is made."""

    row: ChunkRow                    # as the trace of a run has it, but for the seconds
    copied_bytes: int                # held twice while rows move or several memories are read together, at most so far

    @property
    def nbytes(self) -> int:
        return self.row.allocated_bytes + self.copied_bytes


@dataclass(frozen=True)
class Estimate:
    """The needs of a take by chunk: the least, and the most where the policy goes by the picture; else both are the same."""

    least: tuple[Need, ...]
    most: tuple[Need, ...]
    bank_names: tuple[str, ...]

    @property
    def allocated(self) -> tuple[int, int]:
        """Most bytes allocated at one time, over the take: at least, and at most."""
        return tuple(max(need.row.allocated_bytes for need in needs) for needs in (self.least, self.most))

    @property
    def needed(self) -> tuple[int, int]:
        """The same, with what moving and joining rows holds twice."""
        return tuple(max(need.nbytes for need in needs) for needs in (self.least, self.most))


def estimate(setup: Setup) -> Estimate:
    def needs(latent: float) -> tuple[tuple[Need, ...], tuple[str, ...]]:
        trace = Trace()
        copied = list(dry_run(setup, latent, trace))
        return tuple(map(Need, trace.rows, copied)), trace.bank_names

    least, names = needs(FORGOTTEN)
    return Estimate(least, needs(KEPT)[0] if setup.policy.retention.by_content else least, names)


def dry_run(setup: Setup, latent: float, trace: Trace) -> Iterator[int]:
    """Fill the trace as a run does, and yield after each chunk how many bytes were held twice at most.

    With `latent` FORGOTTEN a policy that scores tokens keeps as few as it may, with KEPT all of them.
    """
    streams, take, copied = range(setup.streams), setup.take, 0
    session = Session(replace(setup.policy, storage=Outline(setup.policy.storage)), setup.geometry, take, setup.dtype, torch.device("meta"))
    latents = torch.full((1, 1, 1, 1, 1), latent).expand(1, 1, take.total_frames, *setup.geometry.grid)     # a number for each token

    def call(forward: Forward, x: Tensor, sigma) -> Tensor:
        nonlocal copied
        for key in streams:
            session.stream(key).forwards[forward.memory] += 1
        copied = max(copied, session.copied_bytes(forward))
        return latents[:, :, :x.shape[2]]

    model = Model(call, call, lambda number, step, like: latents[:, :, :like.shape[2]])
    rollout = Rollout(list(setup.chunks), torch.tensor(take.sigmas), latents, latents, model, session, trace, lambda *step: None)
    for _ in run(rollout, session, trace):
        yield copied


@dataclass(frozen=True)
class Outline(Storage):
    """Another storage's pages without their content: nothing is written, moved or turned."""

    of: Storage

    def pages(self, *shape) -> Pages:
        return OutlinePages(self.of.pages(*shape))


class OutlinePages(Pages):
    def __init__(self, pages: Pages):
        self.hold, self.grow, self.nbytes = pages.hold, pages.grow, pages.nbytes

    def write(self, *written): ...

    def gather(self, *moved): ...

    def turn(self, *turned): ...

    def read(self, rows: slice) -> tuple[Tensor, Tensor]:
        """Zeros of one channel, for a policy that looks at keys."""
        return (torch.zeros(1, rows.stop - rows.start, 1, 1),) * 2
