"""The first slot of a policy: what stays in the cache."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import MISSING, dataclass, fields
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch
from torch import Tensor

from ..state import State
from ..take import BankPlan, Chunk, Forward, Geometry, Take

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
        """With noise from a generator of its own: the noise of the user's seed stays the same."""
        noise = torch.randn(x0.shape, generator=torch.Generator().manual_seed(seed % 2**64)).to(x0)
        return cls((1 - sigma) * x0 + sigma * noise, sigma)


class RetentionRun:
    """The retention of one stream during one run. Every hook does nothing by default; each may call
    `bank.keep`.
    """

    needs_queries = False  # True: `observe` is called with every step's queries
    chooses = False  # True: `choose` is called in every forward
    histogram: ScoreHistogram | None = None  # of the scores of this run, for the stats
    notes: tuple[str, ...] = ()  # what a user should know about this run

    def begin_shot(self, cache: KVCache, chunk: Chunk):
        """At a cut: forget the shot before; a new one begins with `chunk`."""
        cache.clear()

    def begin_chunk(self, cache: KVCache, chunk: Chunk):
        """Evict, before the chunk's first write."""

    def after_step(self, chunk: Chunk, step: int, x0: Tensor):
        """See a step's prediction, `[1, C, F, 2h, 2w]` normalised latents after guidance."""

    def probe(self, chunk: Chunk, x0: Tensor) -> Probe | None:
        """Ask for one more forward of the finished chunk, before its clean pass. It leaves nothing
        in the cache.
        """

    def after_probe(self, chunk: Chunk, x0: Tensor):
        """See that forward's prediction, `[1, C, F, 2h, 2w]`."""

    def before_clean(self, cache: KVCache, chunk: Chunk):
        """Compact. The chunk's own rows are the last rows of every bank and must stay."""

    def after_clean(self, cache: KVCache, chunk: Chunk, x0: Tensor):
        """See the finished chunk, `[1, C, F, 2h, 2w]`, whose keys and values are history now."""

    def observe(self, layer: int, chunk: Chunk, step: int, q: Tensor, bank: Bank):
        """See a layer's rotated queries `[1, N, H, D]`."""

    def choose(self, layer: int, forward: Forward, q: Tensor, bank: Bank):
        """See a layer's rotated queries `[1, N, H, D]` before its keys and values are written, and
        say by `bank.choose` which rows of its history stay, where `begin_chunk` left that open. Not
        called in a forward that a guider makes beside a step's own.
        """

    def begin_recache(self, cache: KVCache, frames: range) -> list[Tensor] | None:
        """Finished latent frames are about to run again in one forward. None: they read what is
        kept, and of them stays what is kept now. Else the cache is left empty, they read each other
        alone, and these tokens of them stay: ids by bank.
        """
        return None

    def reach(self, chunk: Chunk, bank: Bank) -> tuple[slice, ...] | None:
        """Rows of the history that a chunk's forwards can read, ascending and apart; None: all."""
        return None

    def reads(self, chunk: Chunk) -> Tensor | None:
        """Of each latent frame of the take `[T]`, 0 or 1: whether it is in reach of a chunk. None:
        as far as the cache holds it.
        """
        return None

    def state(self) -> State:
        """What a later run needs, beside the cache, to go on after this chunk."""
        return {}

    def restore(self, state: State):
        """Take over what `state` gave; KVMemoryError where it cannot be that."""

    def split_again(self, cache: KVCache):
        """After `restore`, before the saved rows come into the empty cache: share out its heads as
        this run had done.
        """


@dataclass(frozen=True)
class Retention(ABC):
    """Slot 1: what stays in the cache. A frozen dataclass of parameters; `start` makes the object
    that changes during a run.
    """

    # False: a cut forgets nothing, and the take stays one shot. The retention sees the cut in the
    # chunk's cue, and makes of it what its method does.
    cut_forgets: ClassVar[bool] = True

    # Every retention.

    @abstractmethod
    def banks(self, geometry: Geometry, take: Take) -> list[BankPlan]:
        """The banks of a stream's cache; in every layer they share out all heads."""

    @abstractmethod
    def start(self, geometry: Geometry, take: Take) -> RetentionRun: ...

    def check(self, geometry: Geometry, take: Take):
        """Raise ValueError, in a sentence, when these parameters cannot work with this model and
        take.
        """

    # For the other slots and for prompt changes: what the cache looks like.

    # its node's name without "KV Policy: "; empty: the class's own in words, see `title_of`
    title: ClassVar[str] = ""

    # True: of a latent frame all tokens stay or none, the same ones in all layers of a bank
    whole_frames: ClassVar[bool] = False

    def full_frames(self, geometry: Geometry) -> int | None:
        """Latent frames in reach, the chunk in work included, with which the window counts as full;
        None when there is no window.
        """
        return None

    def sink(self, geometry: Geometry) -> int:
        """First latent frames of a shot that are never evicted, nor computed anew by a recache."""
        return 0

    def moving_frames(self, take: Take) -> int:
        """First latent frames whose keys are re-rotated more than once: stored in fewer bits, each
        time would round them anew.
        """
        return 0

    # Whether each history row is the token of the latent frame that it stands for; not where frames
    # are replayed or averaged.
    own_frames: ClassVar[bool] = True

    # Whether it replaces history rows by computed ones, see `Bank.rewrite`: a storage in fewer bits
    # refuses it.
    rewrites: ClassVar[bool] = False

    # Whether it shares out the heads anew in mid-take, see `KVCache.split`: a storage in fewer bits
    # refuses it.
    splits_heads: ClassVar[bool] = False

    # Whether it asks where the camera stands, see `Take.poses`.
    needs_poses: ClassVar[bool] = False

    def seen_steps(self, take: Take) -> tuple[int, ...]:
        """Steps of denoising whose predictions or queries decide what stays, so that a schedule
        must compute them.
        """
        return ()

    # For the estimate, which simulates a take without its picture.

    # With `by_content`, in words: between which two cases what stays lies.
    open_share: ClassVar[str] = "from nothing that is scored to all of it"

    @property
    def by_content(self) -> bool:
        """Whether the number of tokens that stay depends on the picture."""
        return False

    def at_share(self, share: float) -> Retention:
        """A retention for the dry run: of each chunk's tokens that the picture decides on, `share`
        (0 to 1) stays. Without `by_content` this retention itself.
        """
        return self

    def grain(self, geometry: Geometry, lengths: set[int]) -> int:
        """Largest g for which the kept count of each chunk of `lengths` latent frames is always a
        multiple of g tokens, and g divides a frame's tokens; the dry run then simulates one row for
        every g tokens. 1 if unknown.
        """
        return 1

    @property
    def decisive(self) -> tuple[str, ...]:
        """With `by_content`, the names of the parameters that decide how many tokens stay: the
        share that stayed in another take holds only for the same values.
        """
        return ()

    # For the stats and for saved memories.

    def describe(self) -> dict:
        """Name and parameters, the method's own before those of its base."""
        own = type(self).__annotations__
        names = sorted((f.name for f in fields(self)), key=lambda name: name not in own)
        return {"name": type(self).__name__, **{name: getattr(self, name) for name in names}}

    def completed(self, described: dict) -> dict:
        """A description of this retention that an earlier version saved, completed by the defaults
        of the parameters that came later.
        """
        defaults = {f.name: f.default for f in fields(self) if f.default is not MISSING}
        return {**defaults, **described}


def require_choice(name: str, value: str, choices: tuple[str, ...]):
    """Raise ValueError when a parameter is none of its choices."""
    if value not in choices:
        raise ValueError(f"{name} is '{value}'. Use one of: {', '.join(choices)}.")
