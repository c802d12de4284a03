"""A dry run of the code that makes a take, over caches that only have a size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from ..kv_policies import MODULES, Forward, Storage
from .chunk_bytes import ChunkBytes
from .chunk_row import ChunkRow
from .loop import run
from .memory_file import KVMemory, stream_name
from .rollout import Model, Rollout
from .session import Session
from .size_only import SizeOnly
from .take_plan import TakePlan
from .trace import Trace

# Shares of the tokens whose keeping depends on the picture: the fewest possible stay, or all.
FORGOTTEN = 0.0
KEPT = 1.0


def merged_rows(plan: TakePlan) -> tuple[int, int]:
    """How many tokens of a frame, and how many layers, a dry run may merge into one row: the bytes
    stay the same, and there are far fewer rows to simulate.
    """
    policy = plan.policy
    geometry = plan.geometry
    # 1. A saved memory counts single tokens, and coded rows come in groups of tokens: no merging.
    if plan.memory or policy.storage.has_fewer_bits:
        return 1, 1
    # 2. Tokens merge wherever the history lies.
    tokens = policy.retention.grain(geometry, {chunk.frames for chunk in plan.chunks})
    # 3. Layers merge where all are alike. With the history in main memory they are not: two of them
    # at a time are on the device.
    is_on_device = policy.storage == Storage()
    caches = policy.schedule.caches(policy.retention, geometry, plan.take)
    banks_have_all_heads = all(bank.heads is None for banks in caches.values() for bank in banks)
    layers = geometry.layers if is_on_device and banks_have_all_heads else 1
    return tokens, layers


class DryRun:
    """Iterate for the bytes of each chunk; the trace is filled on the way, as by a real run."""

    def __init__(self, plan: TakePlan, share: float):
        """`share` of the tokens whose keeping depends on the picture stays."""
        policy = replace(plan.policy, retention=plan.policy.retention.at_share(share))
        self.plan = replace(plan, policy=policy)
        self.trace = Trace(watches=False)
        self.copied_bytes = 0
        self.lane_bytes: dict[str, int] = {}  # peak bytes on the device of each lane
        self.tokens, self.layers = merged_rows(self.plan)
        full = plan.geometry
        grid = full.grid if self.tokens == 1 else (1, full.tokens_per_frame // self.tokens)
        # The longer head gives a merged row the bytes of all tokens and layers it stands for.
        geometry = replace(
            full,
            layers=full.layers // self.layers,
            head_dim=full.head_dim * self.tokens * self.layers,
            grid=grid,
        )
        # One number for each token stands for all latents.
        number = torch.ones(1, 1, 1, 1, 1)
        self.latents = number.expand(1, 1, plan.take.total_frames, *grid)
        self.session = Session(
            replace(policy, storage=SizeOnly(policy.storage)),
            geometry,
            plan.take,
            plan.dtype,
            torch.device("meta"),
        )

    def __iter__(self) -> Iterator[ChunkBytes]:
        rollout = self._rollout()
        for _ in run(rollout):
            self.plan.on_chunk()
            yield self._chunk_bytes(self.trace.rows[-1], self.copied_bytes)

    def chunks(self) -> tuple[ChunkBytes, ...]:
        """The bytes of all chunks, with the rows as they are at the end of the run: only then does
        the trace know the banks of chunks that were given before the first forward.
        """
        copied = [chunk.copied_bytes for chunk in self]
        return tuple(
            self._chunk_bytes(row, copied_bytes)
            for row, copied_bytes in zip(self.trace.rows, copied)
        )

    def _rollout(self) -> Rollout:
        plan = self.plan

        def noise(number: int, step: int, like: Tensor) -> Tensor:
            return self.latents[:, :, : like.shape[2]]

        return Rollout(
            chunks=plan.chunks,
            sigmas=torch.tensor(plan.take.sigmas),
            noise=self.latents,
            prefix=self.latents,
            model=Model(self._forward, self._forward, noise),
            session=self.session,
            trace=self.trace,
            pieces=[plan.piece or range(len(plan.finished_chunks), len(plan.chunks))],
            memory=self._with_our_latents(plan.memory) if plan.memory else None,
            names={key: stream_name(key) for key in range(plan.streams)},
        )

    def _with_our_latents(self, memory: KVMemory) -> KVMemory:
        """The memory with its latents replaced by placeholders."""
        return replace(
            memory,
            latents=self.latents[:, :, : memory.frames],
            carried={name: self.latents[:, :, : x.shape[2]] for name, x in memory.carried.items()},
        )

    def _chunk_bytes(self, row: ChunkRow, copied_bytes: int) -> ChunkBytes:
        """Of a row of the simulation, counted in the take's own tokens and layers."""
        row = replace(
            row,
            kept_tokens=row.kept_tokens * self.tokens * self.layers,
            full_tokens=row.full_tokens * self.tokens * self.layers,
            bank_tokens=tuple(count * self.tokens for count in row.bank_tokens),
        )
        return ChunkBytes(row, copied_bytes, self.plan.latent_bytes)

    def _see_features(self, forward: Forward):
        """What the modules of all layers give, as one output."""
        session, geometry = self.session, self.session.geometry
        keys = range(self.plan.streams)
        if session.can_forecast(forward, keys, MODULES):
            session.forecast_output(forward, keys, MODULES)
        else:
            tokens = len(forward.span) * geometry.tokens_per_frame
            width = len(MODULES) * geometry.layers * geometry.heads * geometry.head_dim
            shape = (len(keys), tokens, width)
            output = torch.empty(shape, dtype=session.dtype, device=session.device)
            session.hold_output(forward, keys, MODULES, output)

    def _forward(self, forward: Forward, x: Tensor, sigma) -> Tensor:
        """A model call: counts what is in use, and returns placeholders."""
        session = self.session
        for key in range(self.plan.streams):
            session.stream(key).forwards[forward.cache] += 1
        if forward.features:
            self._see_features(forward)
        # Rows move layer by layer, and a row of the simulation holds all of them.
        copied_bytes = session.copied_bytes(forward) // self.layers
        self.copied_bytes = max(self.copied_bytes, copied_bytes)
        in_use = Counter()
        for stream in session.streams.values():
            for name, cache in stream.caches.items():
                lane = session.policy.schedule.lane(name)
                in_use[lane] += cache.nbytes() - cache.main_bytes()
        self.lane_bytes = {
            lane: max(nbytes, self.lane_bytes.get(lane, 0)) for lane, nbytes in in_use.items()
        }
        return self.latents[:, :, : x.shape[2]]
