"""A dry run of the very code that makes a take, over caches that have a size and nothing in them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..kv_policies import Forward, Storage
from .chunk_row import ChunkRow
from .loop import run
from .memory_file import KVMemory, stream_name
from .outline import Outline
from .rollout import Model, Rollout
from .session import Session
from .setup import Setup
from .trace import Trace

FORGOTTEN, KEPT = 0.0, 1.0  # shares of what the picture decides: as little as may be stays, or all


@dataclass(frozen=True)
class Need:
    """What a take needs while one chunk is made."""

    row: ChunkRow  # as the trace of a run has it, but for the seconds
    # held twice where the history lies while rows move, or several memories are read together, at
    # most so far
    copied_bytes: int
    latent_bytes: int  # of the whole take's latents, see `Setup`

    @property
    def device_copied_bytes(self) -> int:
        return 0 if self.row.host_bytes else self.copied_bytes

    @property
    def nbytes(self) -> int:
        """On the device."""
        return (
            self.row.allocated_bytes
            - self.row.host_bytes
            + self.device_copied_bytes
            + self.latent_bytes
        )

    @property
    def host_bytes(self) -> int:
        """In main memory, by KV Storage's choice."""
        return self.row.host_bytes + self.copied_bytes - self.device_copied_bytes


def in_one_row(setup: Setup) -> tuple[int, int]:
    """How many tokens of a frame, and how many layers, a dry run may hold in one row: as many
    bytes, in far fewer rows.
    """
    policy, geometry = setup.policy, setup.geometry
    if (
        setup.memory or policy.storage.anywhere() != Storage()
    ):  # its rows are single tokens; codes come in groups of them
        return 1, 1
    caches = policy.schedule.caches(policy.retention, geometry, setup.take)
    alike = policy.storage == Storage() and all(
        plan.heads is None for plans in caches.values() for plan in plans
    )
    return policy.retention.grain(
        geometry, {chunk.frames for chunk in setup.chunks}
    ), geometry.layers if alike else 1


class DryRun:
    """Iterate for the need of each chunk; on the way the trace is filled as by a run.

    Of the tokens that the picture decides on `share` stays.
    """

    def __init__(self, setup: Setup, share: float):
        policy = replace(setup.policy, retention=setup.policy.retention.at_share(share))
        self.setup = setup = replace(setup, policy=policy)
        self.trace, self.copied_bytes, self.lane_bytes = Trace(watches=False), 0, {}
        self.tokens, self.layers = in_one_row(setup)
        g = setup.geometry
        geometry = replace(
            g,
            layers=g.layers // self.layers,
            head_dim=g.head_dim * self.tokens * self.layers,
            grid=g.grid if self.tokens == 1 else (1, g.tokens_per_frame // self.tokens),
        )
        self.latents = torch.ones(1, 1, 1, 1, 1).expand(
            1, 1, setup.take.total_frames, *geometry.grid
        )  # a number for each token
        self.session = Session(
            replace(policy, storage=Outline(policy.storage)),
            geometry,
            setup.take,
            setup.dtype,
            torch.device("meta"),
        )

    def __iter__(self) -> Iterator[Need]:
        model = Model(
            self._call, self._call, lambda number, step, like: self.latents[:, :, : like.shape[2]]
        )
        rollout = Rollout(
            chunks=self.setup.chunks,
            sigmas=torch.tensor(self.setup.take.sigmas),
            noise=self.latents,
            prefix=self.latents,
            model=model,
            session=self.session,
            trace=self.trace,
            pieces=[self.setup.piece or range(len(self.setup.made), len(self.setup.chunks))],
            memory=self.setup.memory and self._outline(self.setup.memory),
            names={key: stream_name(key) for key in range(self.setup.streams)},
        )
        for _ in run(rollout):
            self.setup.on_chunk()
            yield Need(
                self._counted(self.trace.rows[-1]), self.copied_bytes, self.setup.latent_bytes
            )

    def _counted(self, row: ChunkRow) -> ChunkRow:
        """In the take's own tokens and layers."""
        return replace(
            row,
            kept_tokens=row.kept_tokens * self.tokens * self.layers,
            full_tokens=row.full_tokens * self.tokens * self.layers,
            bank_tokens=tuple(count * self.tokens for count in row.bank_tokens),
        )

    def _outline(self, memory: KVMemory) -> KVMemory:
        """A memory with our latents in its own ones' place."""
        return replace(
            memory,
            latents=self.latents[:, :, : memory.frames],
            carried={name: self.latents[:, :, : x.shape[2]] for name, x in memory.carried.items()},
        )

    def needs(self) -> tuple[Need, ...]:
        copied = [need.copied_bytes for need in self]
        return tuple(
            Need(self._counted(row), held_twice, self.setup.latent_bytes)
            for row, held_twice in zip(self.trace.rows, copied)
        )

    def _call(self, forward: Forward, x: Tensor, sigma) -> Tensor:
        session = self.session
        for key in range(self.setup.streams):
            session.stream(key).forwards[forward.cache] += 1
        self.copied_bytes = max(
            self.copied_bytes, session.copied_bytes(forward) // self.layers
        )  # of one layer
        held = Counter()
        for stream in session.streams.values():
            for name, cache in stream.caches.items():
                held[session.policy.schedule.lane(name)] += cache.nbytes() - cache.host_bytes()
        self.lane_bytes = {
            lane: max(size, self.lane_bytes.get(lane, 0)) for lane, size in held.items()
        }
        return self.latents[:, :, : x.shape[2]]
