"""Masks that wait: which tokens of a finished chunk stay is decided at once, and applied when the
chunk is no longer among the latest (arXiv 2609.39096).
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ..cache.bank import Bank
from ..state import State, counts_of, damaged, part_of, tensor_of
from ..take import Chunk, Geometry, Take
from .scores import highest


class Record(NamedTuple):
    """Which tokens a finished chunk keeps once it is old enough."""

    chunk: Chunk
    keep: Tensor  # bool [F * h * w], on the CPU


class PruneRecords:
    """The latest `dense` chunks stay whole. With `most_frames`, all older ones hold together at
    most the tokens of so many latent frames; the tokens with the lowest ranks leave.
    """

    def __init__(self, dense: int, most_frames: int, geometry: Geometry, take: Take):
        self.dense = dense
        self.most_frames = most_frames
        self.tokens = geometry.tokens_per_frame
        self.total_frames = take.total_frames
        self.records: list[Record] = []
        # With a bound: the rank of every token of the take. Those of a sink and of chunks that are
        # kept whole have no rank of their own, and leave last.
        ranked = take.total_frames * self.tokens if most_frames else 0
        self.ranks = torch.full((ranked,), math.inf)

    def add(self, chunk: Chunk, keep: Tensor, ranks: Tensor):
        """A finished chunk: which tokens stay, bool `[F * h * w]`, and their ranks, like `keep`."""
        self.records.append(Record(chunk, keep))
        if self.most_frames:
            self.ranks[chunk.start_frame * self.tokens : chunk.end_frame * self.tokens] = ranks

    def add_whole(self, chunk: Chunk):
        """A finished chunk without ranks: all of it stays, but for the bound."""
        self.records.append(Record(chunk, torch.ones(chunk.frames * self.tokens, dtype=torch.bool)))

    def clear(self):
        self.records = []

    def apply(self, bank: Bank, chunk: Chunk):
        """Prune, once each, the chunks that are no longer among the latest once `chunk` is
        finished.
        """
        due = [record for record in self.records if record.chunk.index <= chunk.index - self.dense]
        if not due:
            return
        self.records = self.records[len(due) :]

        # Rows before the first due chunk were pruned earlier and stay.
        first = bank.rows_of(due[0].chunk.start_frame, chunk.start_frame - 1).start
        keep = torch.ones(bank.length - first, dtype=torch.bool)
        for old, mask in due:
            rows = bank.rows_of(old.start_frame, old.end_frame - 1)
            tokens = bank.token_ids()[rows] - old.start_frame * self.tokens
            keep[rows.start - first : rows.stop - first] = mask[tokens]
        bank.keep(first + keep.nonzero()[:, 0], after=first)
        if self.most_frames:
            self._bound(bank, due[-1].chunk)

    def _bound(self, bank: Bank, last: Chunk):
        """Of all tokens up to a chunk, keep as many as the bound allows, those of highest rank."""
        old = bank.rows_of(0, last.end_frame - 1).stop
        most = self.most_frames * self.tokens
        if old > most:
            keep = torch.ones(bank.length, dtype=torch.bool)
            keep[:old] = highest(self.ranks[bank.token_ids()[:old]], most)
            bank.keep(keep.nonzero()[:, 0])

    def state(self) -> State:
        records = [
            {
                "chunk": [chunk.index, chunk.start_frame, chunk.frames, int(chunk.given)],
                "keep": keep,
            }
            for chunk, keep in self.records
        ]
        return {"scored": self.ranks.clone(), "records": records}

    def restore(self, state: State):
        ranks = tensor_of(state, "scored", torch.float32, None)
        ranks = ranks[: len(self.ranks)]  # the take may have another length now
        self.ranks[: len(ranks)] = ranks
        self.records = []
        for record in part_of(state, "records", list):
            index, start, frames, given = counts_of(record, "chunk", self.total_frames, 4)
            last = self.records[-1].chunk if self.records else None
            if last and (index <= last.index or start < last.end_frame):
                raise damaged("its chunks that are to be pruned do not follow each other")
            chunk = Chunk(index, start, frames, bool(given))
            keep = tensor_of(record, "keep", torch.bool, frames * self.tokens)
            self.records.append(Record(chunk, keep))
