"""Masks that wait: what of a finished chunk stays is known at once, and applied when the chunk is
no longer among the latest (arXiv 2609.39096).
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
    """What a finished chunk will keep, once it is old enough."""

    chunk: Chunk
    keep: Tensor  # bool [F * h * w], on the CPU


class PruneRecords:
    """The latest `dense` chunks stay whole. With `most_frames`, all older ones hold together at
    most the tokens of so many latent frames.
    """

    def __init__(self, dense: int, most_frames: int, geometry: Geometry, take: Take):
        self.dense, self.most_frames, self.tokens, self.total_frames = (
            dense,
            most_frames,
            geometry.tokens_per_frame,
            take.total_frames,
        )
        self.records: list[Record] = []
        # How much each token of the take is worth keeping, where that decides who leaves first;
        # those of a sink have no record, and stay.
        self.ranks = torch.full((take.total_frames * self.tokens * bool(most_frames),), math.inf)

    def add(self, chunk: Chunk, keep: Tensor, ranks: Tensor):
        """A finished chunk: what it will keep, bool `[F * h * w]`, and how much each token is worth
        keeping.
        """
        self.records.append(Record(chunk, keep))
        if self.most_frames:
            self.ranks[chunk.start_frame * self.tokens : chunk.end_frame * self.tokens] = ranks

    def add_whole(self, chunk: Chunk):
        """A finished chunk that has no scores: all of it stays, but for the bound."""
        self.records.append(Record(chunk, torch.ones(chunk.frames * self.tokens, dtype=torch.bool)))

    def clear(self):
        self.records = []

    def apply(self, bank: Bank, chunk: Chunk):
        """Prune, once each, the chunks that are not among the latest any more when `chunk` is
        finished.
        """
        due = [record for record in self.records if record.chunk.index <= chunk.index - self.dense]
        if not due:
            return
        self.records = self.records[len(due) :]
        first = bank.rows_of(
            due[0].chunk.start_frame, chunk.start_frame - 1
        ).start  # what lies before it was pruned long ago
        keep = torch.ones(bank.length - first, dtype=torch.bool)
        for old, mask in due:
            rows = bank.rows_of(old.start_frame, old.end_frame - 1)
            keep[rows.start - first : rows.stop - first] = mask[
                bank.token_ids()[rows] - old.start_frame * self.tokens
            ]
        bank.keep(first + keep.nonzero()[:, 0], after=first)
        if self.most_frames:
            self._bound(bank, due[-1].chunk)

    def _bound(self, bank: Bank, last: Chunk):
        """Of all tokens up to a chunk, leave as many as may stay, those that are worth most."""
        old, most = bank.rows_of(0, last.end_frame - 1).stop, self.most_frames * self.tokens
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
        ranks = tensor_of(state, "scored", torch.float32, None)[
            : len(self.ranks)
        ]  # the take may be longer now
        self.ranks[: len(ranks)] = ranks
        self.records = []
        for record in part_of(state, "records", list):
            index, start, frames, given = counts_of(record, "chunk", self.total_frames, 4)
            if self.records and (
                index <= self.records[-1].chunk.index or start < self.records[-1].chunk.end_frame
            ):
                raise damaged("its chunks that are to be pruned do not follow each other")
            self.records.append(
                Record(
                    Chunk(index, start, frames, bool(given)),
                    tensor_of(record, "keep", torch.bool, frames * self.tokens),
                )
            )
