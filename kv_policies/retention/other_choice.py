"""A token-pruning policy with another choice of tokens: for controls and for the dry run."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from ..cache.cache import KVCache
from ..take import BankPlan, Chunk, Geometry, Take
from .retention import Retention, RetentionRun
from .scores import grain_of_share, highest_share

# Which of a chunk's tokens stay, bool `[F * h * w]`, and the ranks by which tokens leave under a
# bound, fp32 `[F * h * w]`.
Choice = tuple[Tensor, Tensor]


class RankingRun(Protocol):
    """What a chooser uses of a `token_prune.TokenPruneRun`."""

    take: Take

    def keep(self, ranks: Tensor) -> Tensor | None: ...


# Chooses for a run, from its cache, a finished chunk and the method's ranks of its tokens. None:
# not known yet; the chunk stays whole, and is asked about again after each further chunk.
Chooser = Callable[[RankingRun, KVCache, Chunk, Tensor], Choice | None]


@dataclass(frozen=True)
class OtherChoice(Retention):
    """A token-pruning policy whose choice of tokens is replaced by `choose`; all else is as there.

    of: a `token_prune.TokenPrune` (whose file imports this one), or another choice for one.
    """

    of: Retention

    @abstractmethod
    def choose(self, run: RankingRun, cache: KVCache, chunk: Chunk, ranks: Tensor) -> Choice | None:
        """See `Chooser`; `run` is the method's, and `ranks` its ranks."""

    def start(self, geometry: Geometry, take: Take, chooser: Chooser | None = None) -> RetentionRun:
        return self.of.start(geometry, take, chooser or self.choose)

    def check(self, geometry: Geometry, take: Take):
        self.of.check(geometry, take)

    def seen_steps(self, take: Take) -> tuple[int, ...]:
        return self.of.seen_steps(take)

    def banks(self, geometry: Geometry, take: Take) -> list[BankPlan]:
        return self.of.banks(geometry, take)

    def sink(self, geometry: Geometry) -> int:
        return self.of.sink(geometry)

    def moving_frames(self, take: Take) -> int:
        return self.of.moving_frames(take)

    @property
    def by_content(self) -> bool:
        return self.of.by_content

    @property
    def decisive(self) -> tuple[str, ...]:
        return self.of.decisive

    def at_share(self, share: float) -> Retention:
        return AtShare(self, share) if self.by_content else self

    def grain(self, geometry: Geometry, lengths: set[int]) -> int:
        return self.of.grain(geometry, lengths)

    def describe(self) -> dict:
        return {**self.of.describe(), "name": type(self).__name__}

    def completed(self, described: dict) -> dict:
        return self.of.completed(described)


@dataclass(frozen=True)
class AtShare(OtherChoice):
    """For the dry run of a policy whose choice depends on the picture: `share` of each chunk stays,
    whichever tokens.
    """

    share: float

    def choose(self, run: RankingRun, cache: KVCache, chunk: Chunk, ranks: Tensor) -> Choice:
        return highest_share(ranks, self.share), ranks

    def grain(self, geometry: Geometry, lengths: set[int]) -> int:
        return grain_of_share(self.share, geometry.tokens_per_frame, lengths)
