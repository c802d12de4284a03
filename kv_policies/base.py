"""What a KV policy is: four slots of frozen parameters, and the run objects that one sampling run makes from them."""
from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from .schedule import Schedule
from .state import State
from .storage import Storage
from .take import Chunk, Geometry, Take

if TYPE_CHECKING:
    from .bank import Bank
    from .cache import KVCache
    from .scores import ScoreHistogram

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]       # q [B, N, H, D], k and v [B, S, H, D] -> [B, N, H * D]


@dataclass(frozen=True)
class BankPlan:
    """A bank that a retention asks for. Frames are latent frames, the chunk in work included."""

    frames: int                      # made for so many at first
    most_frames: int                 # and grows up to so many
    heads: tuple[tuple[int, ...], ...] | None = None     # by layer; None: all heads in every layer
    held_frames: int = 0             # whose original keys are held beside the bank, see `Bank.hold`

    def heads_by_layer(self, geometry: Geometry) -> tuple[tuple[int, ...], ...]:
        return self.heads or (tuple(range(geometry.heads)),) * geometry.layers

    def nbytes(self, geometry: Geometry, element_size: int) -> int:
        """Bytes at first: keys and values, and the held originals, which are keys alone."""
        heads = sum(map(len, self.heads_by_layer(geometry)))
        return (2 * self.frames + self.held_frames) * geometry.tokens_per_frame * heads * geometry.head_dim * element_size


class Probe(NamedTuple):
    """A noised copy of a chunk, to see what the model makes of it."""

    x: Tensor                        # [1, C, F, 2h, 2w]
    sigma: float


class RetentionRun:
    """The memory of one stream during one run. Every hook does nothing by default; each may call `bank.keep`."""

    needs_queries = False            # True: `observe` is called with every step's queries
    histogram: ScoreHistogram | None = None      # of the scores that it gave, for the stats
    notes: tuple[str, ...] = ()      # what a user should know about this run

    def cut(self, cache: KVCache, chunk: Chunk):
        """Forget the shot before: a new one begins with `chunk`."""
        for bank in cache.banks:
            bank.clear()

    def begin_chunk(self, cache: KVCache, chunk: Chunk):
        """Evict, before the chunk's first write."""

    def after_step(self, chunk: Chunk, step: int, x0: Tensor):
        """See a step's prediction, `[1, C, F, 2h, 2w]` normalised latents after guidance."""

    def probe(self, chunk: Chunk, x0: Tensor) -> Probe | None:
        """Ask for one more forward of the finished chunk, before its clean pass; it leaves no trace in the cache."""

    def after_probe(self, chunk: Chunk, x0: Tensor):
        """See that forward's prediction, `[1, C, F, 2h, 2w]`."""

    def before_clean(self, cache: KVCache, chunk: Chunk):
        """Compact. The chunk's own rows are the tail of every bank and must stay."""

    def after_clean(self, cache: KVCache, chunk: Chunk, x0: Tensor):
        """Score the finished chunk, `[1, C, F, 2h, 2w]`."""

    def observe(self, layer: int, chunk: Chunk, step: int, q: Tensor, bank: Bank):
        """See a layer's rotated queries `[1, N, H, D]`."""

    def state(self) -> State:
        """What this run must know between two chunks, beside its cache, so that a later run can go on from there."""
        return {}

    def restore(self, state: State):
        """Take over what `state` gave; KVMemoryError where it cannot be that."""


class Retention(ABC):
    """Slot 1: what stays in the cache."""

    def moving_frames(self, take: Take) -> int:
        """First latent frames whose keys are turned to other positions again and again."""
        return 0

    @property
    def by_content(self) -> bool:
        """Whether the number of tokens that stay depends on the picture. Then scores of 0 keep the fewest, and scores that are no number all."""
        return False

    def grain(self, geometry: Geometry, lengths: set[int]) -> int:
        """So many tokens of a frame count as one where only sizes matter: of chunks of these many latent frames, multiples of it stay. 1: not known."""
        return 1

    @abstractmethod
    def banks(self, geometry: Geometry, take: Take) -> list[BankPlan]:
        """The banks of a stream's cache; in every layer they share out all heads."""

    @abstractmethod
    def start(self, geometry: Geometry, take: Take) -> RetentionRun: ...

    def window(self, take: Take) -> int | None:
        """Latent frames in reach, the chunk in work included, from which on older ones must leave; None when there is no such number."""
        return None

    def sink(self, geometry: Geometry) -> int:
        """First latent frames of a shot that stay as they were written, whatever the prompt does."""
        return 0

    def check(self, geometry: Geometry, take: Take):
        """Raise ValueError, in a sentence, when these parameters cannot work with this model and take."""


class SelectionRun:
    """The reading of one stream during one run. By default every query reads every row of its bank."""

    notes: tuple[str, ...] = ()      # what a user should know about this run

    def read(self, layer: int, chunk: Chunk, q: Tensor, bank: Bank, attention: Attention) -> Tensor:
        """Attention of the chunk's rotated queries `[1, N, H, D]` over a bank: `[1, N, H * D]`."""
        return attention(q, *bank.read(layer))

    def reads(self, chunk: Chunk) -> Tensor | None:
        """Of each latent frame of the take `[T]`, 0 to 1: by how many of the chunk's query frames, heads, layers and steps so far it was read.
        None: by all, as far as the memory holds it."""
        return None

    def state(self) -> State:
        """What this run must know between two chunks, so that a later run can go on from there."""
        return {}

    def restore(self, state: State):
        """Take over what `state` gave; KVMemoryError where it cannot be that."""


class Selection(ABC):
    """Slot 2: what each query reads of what stayed."""

    @abstractmethod
    def start(self, geometry: Geometry, take: Take, retention: Retention) -> SelectionRun: ...

    def check(self, geometry: Geometry, take: Take):
        """Raise ValueError, in a sentence, when these parameters cannot work with this model and take."""


@dataclass(frozen=True)
class ReadAll(Selection):
    """Every query reads every row of its bank."""

    def start(self, geometry: Geometry, take: Take, retention: Retention) -> SelectionRun:
        return SelectionRun()


def _full() -> Retention:
    from .full import FullKV
    return FullKV()


def _clean_pass() -> Schedule:
    from .clean_pass import CleanPass
    return CleanPass()


@dataclass(frozen=True)
class KVPolicy:
    """Four slots. Nodes hand a policy on with one of them changed, so graphs read left to right."""

    retention: Retention = field(default_factory=_full)
    selection: Selection = field(default_factory=ReadAll)
    schedule: Schedule = field(default_factory=_clean_pass)
    storage: Storage = field(default_factory=Storage)

    def require_plain(self, schedule: Schedule):
        """Raise ValueError when another slot is filled beside a schedule that keeps a history of its own."""
        for slot, part, plain in (("selection", self.selection, ReadAll()), ("retention", self.retention, _full())):
            if type(part) is not type(plain):
                name = type(part).__name__
                raise ValueError(f"{type(schedule).__name__} keeps a history of its own, and the {slot} {name} would have nothing to act on. "
                                 f"Remove {name}, or use another schedule.")

    def check(self, geometry: Geometry, take: Take):
        """Raise ValueError, in a sentence, when a slot cannot work with the others, this model or take."""
        self.retention.check(geometry, take)
        self.selection.check(geometry, take)
        self.schedule.check(self, geometry, take)
        self.storage.check(self, geometry, take)

    def describe(self) -> dict:
        """Name and parameters of each slot, for the stats."""
        return {slot: {"name": type(part).__name__, **{f.name: getattr(part, f.name) for f in fields(part)}}
                for slot, part in vars(self).items()}
