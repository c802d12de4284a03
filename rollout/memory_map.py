"""Which tokens of a take were in memory when: one number for each token tells it for every chunk."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from .chunk_row import ChunkRow
from .stream import Stream


@dataclass(frozen=True, eq=False)
class MemoryMap:
    """One item's take. A head group is the heads that share a bank: they hold the same tokens."""

    # int32 [groups, T, h, w]: number of the last chunk that could read a token; -1: none of this
    # run
    held_until: Tensor
    shares: tuple[float, ...]  # of all heads and layers, in each group

    def by_group(self, row: ChunkRow) -> Tensor:
        """Bool `[groups, frames so far, h, w]`: what a chunk could read, its own tokens included."""
        return self.held_until[:, : row.start_frame + row.frames] >= row.index

    def at(self, row: ChunkRow) -> Tensor:
        """`[frames so far, h, w]`, 0 to 1: the share of layers and heads in which a chunk could
        read each token.
        """
        return torch.einsum(
            "g,gthw->thw", torch.tensor(self.shares), self.by_group(row).float()
        ).clamp(max=1)

    def dropped(self, last: ChunkRow) -> list[list[list[tuple[int, int]]]]:
        """By group and frame: chunks that could no longer read some of its tokens, and how many
        those are. `last` is the take's last chunk.
        """
        groups, frames, moments = *self.held_until.shape[:2], last.index + 2
        frame = torch.arange(groups * frames)[:, None] * moments
        counts = torch.bincount(
            (self.held_until.flatten(0, 1).flatten(1) + 1 + frame).flatten(),
            minlength=groups * frames * moments,
        )
        told: list = [[[] for _ in range(frames)] for _ in range(groups)]
        for place in counts.nonzero()[:, 0].tolist():
            group_frame, chunk = divmod(place, moments)
            if chunk <= last.index:
                told[group_frame // frames][group_frame % frames].append(
                    (chunk, int(counts[place]))
                )
        return told


class MemoryWatch:
    """Fills the map of one take while it runs."""

    def __init__(self, stream: Stream, memory: str, frames: int):
        cache = stream.caches[memory]
        self.geometry, banks = cache.geometry, cache.banks
        self.shares = tuple(
            sum(map(len, bank.heads)) / (self.geometry.layers * self.geometry.heads)
            for bank in banks
        )
        self.held = torch.full(
            (len(banks), frames * self.geometry.tokens_per_frame), -1, dtype=torch.int32
        )

    def see(self, chunk: int, parts: Iterable[tuple[int, Tensor]]):
        """A chunk can read these tokens: head group and names. Chunks may come out of order, where
        several devices work.
        """
        for group, names in parts:
            held = self.held[group]
            held.index_copy_(
                0, names, held.index_select(0, names).clamp_(min=chunk)
            )  # four times as fast as held[names] = ...

    def map(self, rows: Iterable[ChunkRow]) -> MemoryMap:
        """Of a take whose chunks are these: every chunk reads itself."""
        held = self.held.view(len(self.held), -1, *self.geometry.grid)
        end = 0
        for row in rows:
            end = row.start_frame + row.frames
            held[:, row.start_frame : end].clamp_(min=row.index)
        return MemoryMap(held[:, :end].clone(), self.shares)
