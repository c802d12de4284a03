"""The second slot of a policy: what each query reads of what stayed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from ..state import State
from ..take import Chunk, Forward, Geometry, Take

if TYPE_CHECKING:
    from ..cache.view import View

# q [B, N, H, D], k and v [B, S, H, D] -> [B, N, H * D]
Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


class SelectionRun:
    """The reading of one stream during one run. By default every query reads every row."""

    notes: tuple[str, ...] = ()  # what a user should know about this run

    def read(
        self, layer: int, forward: Forward, q: Tensor, view: View, attention: Attention
    ) -> Tensor:
        """Attention of a forward's rotated queries `[1, N, H, D]` over the rows that it can read:
        `[1, N, H * D]`.
        """
        return attention(q, *view.read(layer))

    def reads(self, chunk: Chunk) -> Tensor | None:
        """Of each latent frame of the take `[T]`, 0 to 1: by how many of the chunk's query frames,
        heads, layers and steps so far it was read. None: by all, as far as the cache holds it.
        """
        return None

    def state(self) -> State:
        """What this run must know between two chunks, so that a later run can go on from there."""
        return {}

    def restore(self, state: State):
        """Take over what `state` gave; KVMemoryError where it cannot be that."""


class Selection(ABC):
    """Slot 2: what each query reads of what stayed."""

    # its node's name without "KV Policy: "; empty: the class's own in words, see `title_of`
    title: ClassVar[str] = ""
    # True: the rows that it reads must be whole latent frames, see `Retention.whole_frames`
    needs_whole_frames: ClassVar[bool] = False
    # True: it asks of which frame each row is, which must be so in all layers, and a frame of the
    # take: see `Retention.own_frames`
    reads_frames: ClassVar[bool] = False

    @abstractmethod
    def start(self, geometry: Geometry, take: Take, full_frames: int | None) -> SelectionRun:
        """The object that reads for one stream. `full_frames`: latent frames in reach once the
        window is full, see `Schedule.full_frames`; None: there is no window.
        """

    def check(self, geometry: Geometry, take: Take):
        """Raise ValueError, in a sentence, when these parameters cannot work with this model and
        take.
        """


@dataclass(frozen=True)
class ReadAll(Selection):
    """Every query reads every row."""

    def start(self, geometry: Geometry, take: Take, full_frames: int | None) -> SelectionRun:
        return SelectionRun()
