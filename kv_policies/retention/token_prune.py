"""Drop tokens of the past by rank: what all methods that prune tokens share.

A method is a `TokenPrune` with its parameters and a `TokenPruneRun` whose `rank` says how much each
token of a finished chunk is worth (a small one: dev/recipes/token_ranking.diff). The base keeps the
sink and the latest chunks whole, holds each chunk's mask until the chunk is old enough, bounds the
cache, re-indexes, and plans the banks.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..cache.cache import KVCache
from ..state import State, count_of, counts_of, part_of, tensor_of
from ..take import BankPlan, Chunk, Geometry, Take
from .other_choice import AtShare, Choice, Chooser
from .prune_records import PruneRecords, chunk_of, numbers_of
from .reindex import Reindex, check_reindex
from .retention import Retention, RetentionRun
from .scores import ScoreHistogram, grain_of_share, highest_share

# By content a bank begins with room for so many chunks of kept tokens, and grows by a quarter.
CHUNKS_AT_FIRST = 2
# Where chunks are protected, so many chunks of one frame count as one chunk: as much picture as
# chunk-wise models keep.
FRAME_WISE_UNIT = 3


@dataclass(frozen=True, kw_only=True)
class TokenPrune(Retention):
    """Keep the first `sink_chunks` and the latest `dense_chunks` chunks whole, and of each chunk
    between them the tokens that the method chooses, for all layers and heads alike.

    target_keep: share of each chunk that stays, where the method has no keep rule of its own.
    reindex, virtual_length, reindex_recent, reindex_bands: see `reindex.Reindex`.
    most_frames: the chunks before the dense ones hold at most the tokens of so many latent frames,
        sink included; the tokens with the lowest ranks leave first. 0: no bound.
    """

    target_keep: float = 0.15
    dense_chunks: int = 2
    sink_chunks: int = 1
    reindex: str = "auto"
    virtual_length: int = 17  # latent frames
    reindex_recent: int = 8  # latent frames
    most_frames: int = 0
    reindex_bands: str = "all"

    def __post_init__(self):
        check_reindex(self.reindex, self.virtual_length, self.reindex_recent, self.reindex_bands)
        if math.isnan(self.target_keep):
            raise ValueError(f"target_keep is {self.target_keep}. Use a number from 0 to 1.")
        if self.dense_chunks < 1:
            raise ValueError(
                f"dense_chunks is {self.dense_chunks}. At least the chunk just finished must stay "
                "whole: use 1 or more."
            )
        for name in ("sink_chunks", "most_frames"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}. Use at least 0.")

    def check(self, geometry: Geometry, take: Take):
        sink = self.sink(geometry)
        if 0 < self.most_frames < sink:
            raise ValueError(
                f"most_frames is {self.most_frames}, and the first {sink} latent frames stay whole "
                f"(sink_chunks {self.sink_chunks}). Use at least {sink}, fewer sink_chunks, or 0 "
                "for no bound."
            )

    def banks(self, geometry: Geometry, take: Take) -> list[BankPlan]:
        # 1. What is whole: sink, dense chunks and the chunk in work.
        chunk, unit = geometry.chunk_frames, unit_of(geometry)
        whole = ((self.sink_chunks + self.dense_chunks) * unit + 1) * chunk

        # 2. What stays of the rest.
        if self.by_content:
            kept = CHUNKS_AT_FIRST * chunk
        else:
            kept = math.ceil(self.target_keep * take.total_frames)

        # 3. With a bound: beside it the dense chunks, the chunk in work, and, until it is pruned,
        #    the chunk that has just left the dense ones.
        most = take.total_frames
        if self.most_frames:
            most = min(most, self.most_frames + (self.dense_chunks * unit + 1) * chunk)
        return [BankPlan(min(most, whole + kept), most)]

    @abstractmethod
    def start(
        self, geometry: Geometry, take: Take, chooser: Chooser | None = None
    ) -> TokenPruneRun:
        """The method's run, which gets all three."""

    def sink(self, geometry: Geometry) -> int:
        return self.sink_chunks * unit_of(geometry) * geometry.chunk_frames

    def moving_frames(self, take: Take) -> int:
        return take.total_frames if self.reindex == "periodic" else 0

    def at_share(self, share: float) -> Retention:
        return AtShare(self, share) if self.by_content else self

    def grain(self, geometry: Geometry, lengths: set[int]) -> int:
        if self.by_content:
            return 1
        return grain_of_share(self.target_keep, geometry.tokens_per_frame, lengths)


def unit_of(geometry: Geometry) -> int:
    """Chunks that count as one where chunks are protected."""
    return FRAME_WISE_UNIT if geometry.chunk_frames == 1 else 1


class TokenPruneRun(RetentionRun, ABC):
    """A method overrides `rank` and, where a share of each chunk is not its rule, `keep`.

    With guidance each stream has a run and a cache of its own. A method that ranks by keys, values
    or queries therefore keeps different tokens in each stream; one that ranks by the latents, which
    all streams share, keeps the same.
    """

    def __init__(
        self, policy: TokenPrune, geometry: Geometry, take: Take, chooser: Chooser | None = None
    ):
        self.policy = policy
        self.geometry = geometry
        self.take = take
        unit = unit_of(geometry)
        self.sink_chunks = policy.sink_chunks * unit
        self.records = PruneRecords(policy.dense_chunks * unit, policy.most_frames, geometry, take)
        self.reindex = Reindex(
            policy.reindex, policy.virtual_length, policy.reindex_recent, policy.reindex_bands, take
        )
        self.first_chunk = 0  # of this shot
        self.undecided: list[Undecided] = []  # oldest first
        self.histogram = ScoreHistogram(type(policy).__name__, None)
        # `rank` scores a chunk's tokens, `keep` chooses among them by the method's rule, and the
        # chooser is what is really asked: the method's, or that of a control or a dry run.
        self.chooser: Chooser = chooser or TokenPruneRun.choice_of_method

    # The method.

    @abstractmethod
    def rank(self, cache: KVCache, chunk: Chunk, x0: Tensor) -> Tensor | None:
        """How much each token of the finished chunk `x0` `[1, C, F, 2h, 2w]` is worth keeping,
        `[F * h * w]` in token order; the higher ones stay. None: the whole chunk stays. The base
        turns ranks into fp32 on the CPU.

        Called after the clean pass of each chunk outside the sink, when the chunk's rows are
        history and whole. Its rotated keys and its values, `[1, F * h * w, H, D]` each, may be read
        here (later some of them are dropped):
        `bank.read(layer, bank.rows_of(chunk.start_frame, chunk.end_frame - 1))`.

        A dry run (the estimate) calls it too, with fewer layers and tokens than the model has: take
        their numbers from `self.geometry` or `cache.geometry`; layer 0 alone is always there. Keys
        and values are then zeros of one head and channel, and `x0` has one channel and one number a
        token. Only the number of ranks counts there.
        """

    def keep(self, ranks: Tensor) -> Tensor | None:
        """Which of a chunk's tokens stay, bool like `ranks` `[F * h * w]`. None: not known yet; the
        chunk stays whole, and is asked about again after each further chunk.
        """
        return highest_share(ranks, self.policy.target_keep)

    # What all methods share.

    def choice_of_method(self, cache: KVCache, chunk: Chunk, ranks: Tensor) -> Choice | None:
        """What `keep` chooses, and the ranks by which tokens leave under a bound."""
        keep = self.keep(ranks)
        return None if keep is None else (keep, ranks)

    def is_sink(self, chunk: Chunk) -> bool:
        return chunk.index - self.first_chunk < self.sink_chunks

    def begin_shot(self, cache: KVCache, chunk: Chunk):
        super().begin_shot(cache, chunk)
        self.records.clear()
        self.undecided = []
        self.reindex.begin_shot(chunk)
        self.first_chunk = chunk.index

    def begin_chunk(self, cache: KVCache, chunk: Chunk):
        self.reindex.begin_chunk(cache, chunk)

    def before_clean(self, cache: KVCache, chunk: Chunk):
        self.records.apply(cache.banks[0], chunk)

    def after_clean(self, cache: KVCache, chunk: Chunk, x0: Tensor):
        if self.is_sink(chunk):
            return
        ranks = self.rank(cache, chunk, x0)
        if ranks is None:
            self.records.add_whole(chunk)
            return
        ranks = ranks.to("cpu", torch.float32)
        self.undecided.append(Undecided(chunk, ranks))
        self.undecided = [entry for entry in self.undecided if not self._decide(cache, *entry)]

    def _decide(self, cache: KVCache, chunk: Chunk, ranks: Tensor) -> bool:
        """Note which tokens of a chunk stay; False: not known yet."""
        choice = self.chooser(self, cache, chunk, ranks)
        if choice is None:
            return False
        keep, ranks_in_bound = choice
        self.histogram.add(ranks, keep)
        self.records.add(chunk, keep, ranks_in_bound)
        return True

    def state(self) -> State:
        return {
            **self.records.state(),
            "undecided": [
                {"chunk": numbers_of(chunk), "ranks": ranks} for chunk, ranks in self.undecided
            ],
            "reindexed_at": self.reindex.at,
            "first_chunk": self.first_chunk,
            "scores": list(self.histogram.counts),
            "kept": self.histogram.kept,
        }

    def restore(self, state: State):
        frames = self.take.total_frames
        self.records.restore(state)
        self.undecided = []
        # Memories that an earlier version saved have no such entry.
        for entry in part_of({"undecided": [], **state}, "undecided", list):
            chunk = chunk_of(entry, frames)
            tokens = chunk.frames * self.geometry.tokens_per_frame
            ranks = tensor_of(entry, "ranks", torch.float32, tokens)
            self.undecided.append(Undecided(chunk, ranks))
        self.reindex.at = count_of(state, "reindexed_at", frames)
        self.first_chunk = count_of(state, "first_chunk", frames)
        self.histogram.counts = counts_of(state, "scores", 2**63, len(self.histogram.counts))
        self.histogram.kept = count_of(state, "kept", sum(self.histogram.counts))


class Undecided(NamedTuple):
    """A finished chunk whose mask is not known yet."""

    chunk: Chunk
    ranks: Tensor  # fp32 [F * h * w], on the CPU
