"""Masks that wait: which tokens of a finished chunk stay is decided early, and applied when
the chunk is no longer among the latest (arXiv 2609.39096).
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


def numbers_of(chunk: Chunk) -> list[int]:
    """A chunk as it is saved."""
    return [chunk.index, chunk.start_frame, chunk.frames, int(chunk.given)]


def chunk_of(entry: State, total_frames: int) -> Chunk:
    """The chunk of a saved entry. KVMemoryError where it is none."""
    index, start, frames, given = counts_of(entry, "chunk", total_frames, 4)
    return Chunk(index, start, frames, bool(given))


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
        self._insert(Record(chunk, keep))
        if self.most_frames:
            self.ranks[chunk.start_frame * self.tokens : chunk.end_frame * self.tokens] = ranks

    def add_whole(self, chunk: Chunk):
        """A finished chunk without ranks: all of it stays, but for the bound."""
        self._insert(Record(chunk, torch.ones(chunk.frames * self.tokens, dtype=torch.bool)))

    def _insert(self, record: Record):
        """In the order of the take: a mask may be known later than that of a newer chunk."""
        self.records.append(record)
        self.records.sort(key=lambda entry: entry.chunk.index)

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
        bank.keep(first + keep.nonzero()[:, 0], first_kept=first)
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
        records = [{"chunk": numbers_of(chunk), "keep": keep} for chunk, keep in self.records]
        return {"scored": self.ranks.clone(), "records": records}

    def restore(self, state: State):
        ranks = tensor_of(state, "scored", torch.float32, None)
        ranks = ranks[: len(self.ranks)]  # the take may have another length now
        self.ranks[: len(ranks)] = ranks
        self.records = []
        for record in part_of(state, "records", list):
            chunk = chunk_of(record, self.total_frames)
            last = self.records[-1].chunk if self.records else None
            if last and (chunk.index <= last.index or chunk.start_frame < last.end_frame):
                raise damaged("its chunks that are to be pruned do not follow each other")
            keep = tensor_of(record, "keep", torch.bool, chunk.frames * self.tokens)
            self.records.append(Record(chunk, keep))
