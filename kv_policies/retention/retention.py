"""The first slot of a policy: what stays in the cache."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from ..state import State
from ..take import BankPlan, Chunk, Geometry, Take

if TYPE_CHECKING:
    from ..cache.bank import Bank
    from ..cache.cache import KVCache
    from .scores import ScoreHistogram


class Probe(NamedTuple):
    """A noised copy of a chunk, to see what the model makes of it."""

    x: Tensor  # [1, C, F, 2h, 2w]
    sigma: float

    @classmethod
    def noised(cls, x0: Tensor, sigma: float, seed: int) -> Probe:
        """By noise of a generator of its own: the user's draws stay as they are."""
        noise = torch.randn(x0.shape, generator=torch.Generator().manual_seed(seed % 2**64)).to(x0)
        return cls((1 - sigma) * x0 + sigma * noise, sigma)


class RetentionRun:
    """The memory of one stream during one run. Every hook does nothing by default; each may call
    `bank.keep`.
    """

    needs_queries = False  # True: `observe` is called with every step's queries
    histogram: ScoreHistogram | None = None  # of the scores that it gave, for the stats
    notes: tuple[str, ...] = ()  # what a user should know about this run

    def cut(self, cache: KVCache, chunk: Chunk):
        """Forget the shot before: a new one begins with `chunk`."""
        for bank in cache.banks:
            bank.clear()

    def begin_chunk(self, cache: KVCache, chunk: Chunk):
        """Evict, before the chunk's first write."""

    def after_step(self, chunk: Chunk, step: int, x0: Tensor):
        """See a step's prediction, `[1, C, F, 2h, 2w]` normalised latents after guidance."""

    def probe(self, chunk: Chunk, x0: Tensor) -> Probe | None:
        """Ask for one more forward of the finished chunk, before its clean pass; it leaves no trace
        in the cache.
        """

    def after_probe(self, chunk: Chunk, x0: Tensor):
        """See that forward's prediction, `[1, C, F, 2h, 2w]`."""

    def before_clean(self, cache: KVCache, chunk: Chunk):
        """Compact. The chunk's own rows are the tail of every bank and must stay."""

    def after_clean(self, cache: KVCache, chunk: Chunk, x0: Tensor):
        """Score the finished chunk, `[1, C, F, 2h, 2w]`."""

    def observe(self, layer: int, chunk: Chunk, step: int, q: Tensor, bank: Bank):
        """See a layer's rotated queries `[1, N, H, D]`."""

    def state(self) -> State:
        """What this run must know between two chunks, beside its cache, so that a later run can go
        on from there.
        """
        return {}

    def restore(self, state: State):
        """Take over what `state` gave; KVMemoryError where it cannot be that."""


class Retention(ABC):
    """Slot 1: what stays in the cache."""

    @abstractmethod
    def banks(self, geometry: Geometry, take: Take) -> list[BankPlan]:
        """The banks of a stream's cache; in every layer they share out all heads."""

    @abstractmethod
    def start(self, geometry: Geometry, take: Take) -> RetentionRun: ...

    def check(self, geometry: Geometry, take: Take):
        """Raise ValueError, in a sentence, when these parameters cannot work with this model and
        take.
        """

    def full_frames(self, geometry: Geometry) -> int | None:
        """Latent frames in reach, the chunk in work included, with which the window counts as full;
        None when there is no window.
        """
        return None

    def sink(self, geometry: Geometry) -> int:
        """First latent frames of a shot that stay as they were written, whatever the prompt does."""
        return 0

    def moving_frames(self, take: Take) -> int:
        """First latent frames whose keys are turned to other positions again and again."""
        return 0

    @property
    def by_content(self) -> bool:
        """Whether the number of tokens that stay depends on the picture."""
        return False

    @property
    def decisive(self) -> tuple[str, ...]:
        """Names of the parameters that decide how much that is."""
        return ()

    def at_share(self, share: float) -> Retention:
        """The same for a dry run: of the tokens that the picture decides on this share stays, from
        0 for none to 1 for all.
        """
        return self

    def grain(self, geometry: Geometry, lengths: set[int]) -> int:
        """So many tokens of a frame count as one where only sizes matter: of chunks of `lengths`
        latent frames, multiples of it stay. 1: not known.
        """
        return 1
