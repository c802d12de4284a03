"""Which tokens of a take were in memory when: for each token the number of the last chunk that
could read it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from .chunk_row import ChunkRow
from .stream import Stream


@dataclass(frozen=True, eq=False)
class MemoryMap:
    """One take of a batch. A head group is the heads of one bank, or of one layer of a bank by
    layer, which hold the same tokens.
    """

    # int32 [groups, T, h, w]: number of the last chunk that could read a token; -1 where no chunk
    # of this run could
    held_until: Tensor
    shares: tuple[float, ...]  # of each group: its share of all layers and heads

    def by_group(self, row: ChunkRow) -> Tensor:
        """Bool `[groups, frames so far, h, w]`: what a chunk could read, its own tokens too."""
        return self.held_until[:, : row.start_frame + row.frames] >= row.index

    def at(self, row: ChunkRow) -> Tensor:
        """`[frames so far, h, w]`, 0 to 1: the share of layers and heads in which a chunk could
        read each token.
        """
        held = self.by_group(row).float()
        return torch.einsum("g,gthw->thw", torch.tensor(self.shares), held).clamp(max=1)

    def dropped(self, last: ChunkRow) -> list[list[list[tuple[int, int]]]]:
        """By group and frame, pairs (chunk, tokens): the first chunk that could no longer read so
        many of the frame's tokens. `last` is the take's last chunk.
        """
        groups, frames = self.held_until.shape[:2]
        # A token that chunk c could read last was dropped before chunk c + 1, so there are
        # last.index + 2 moments: before each chunk, and never. They are counted for all groups and
        # frames in one call, each frame with numbers of its own.
        moments = last.index + 2
        dropped_at = self.held_until.flatten(0, 1).flatten(1) + 1  # [groups * frames, h * w]
        offset = torch.arange(groups * frames)[:, None] * moments
        size = groups * frames * moments
        counts = torch.bincount((dropped_at + offset).flatten(), minlength=size)
        result: list = [[[] for _ in range(frames)] for _ in range(groups)]
        for place in counts.nonzero()[:, 0].tolist():
            group_frame, chunk = divmod(place, moments)
            if chunk <= last.index:
                group, frame = divmod(group_frame, frames)
                result[group][frame].append((chunk, int(counts[place])))
        return result


class MemoryWatch:
    """Makes the map of one take while it runs."""

    def __init__(self, stream: Stream, cache_name: str, frames: int):
        cache = stream.caches[cache_name]
        self.geometry = cache.geometry
        self.cache = cache
        # [groups, all tokens of the take]
        shape = (len(self._shares()), frames * self.geometry.tokens_per_frame)
        self.held_until = torch.full(shape, -1, dtype=torch.int32)

    def _shares(self) -> tuple[float, ...]:
        """Of each group: its share of all layers and heads, as the cache shares them out now."""
        heads = self.geometry.layers * self.geometry.heads
        return tuple(group / heads for bank in self.cache.banks for group in bank.groups)

    def see(self, chunk: int, parts: Iterable[tuple[int, Tensor]]):
        """Note that a chunk can read tokens, given as (head group, token ids). Chunks may come out
        of order, where several devices work.
        """
        for group, token_ids in parts:
            held_until = self.held_until[group]
            numbers = held_until.index_select(0, token_ids).clamp_(min=chunk)
            # Four times as fast as held_until[token_ids] = numbers.
            held_until.index_copy_(0, token_ids, numbers)

    def map(self, rows: Iterable[ChunkRow]) -> MemoryMap:
        """The map of a take that has the chunks `rows`. Every chunk reads itself."""
        held_until = self.held_until.view(len(self.held_until), -1, *self.geometry.grid)
        end = 0
        for row in rows:
            end = row.start_frame + row.frames
            held_until[:, row.start_frame : end].clamp_(min=row.index)
        return MemoryMap(held_until[:, :end].clone(), self._shares())
