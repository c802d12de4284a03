"""The third slot of a policy: in which order forwards run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from ..take import HISTORY, Chunk, Geometry, Take

if TYPE_CHECKING:
    from ..policy import KVPolicy
    from ..retention.retention import Retention
    from ..take import BankPlan


class Schedule(ABC):
    """Slot 3: in which order forwards run, and with that how history gets into the cache."""

    switches: ClassVar[
        tuple[str, ...]
    ] = ()  # the ways of SWITCHES in which its takes may change prompts
    pauses: ClassVar[bool] = (
        True  # False: nothing is finished before the take's end, so it is made in one run
    )
    extends: ClassVar[bool] = (
        True  # False: the order depends on the take's length, which a later run cannot change
    )

    def memories(
        self, retention: Retention, geometry: Geometry, take: Take
    ) -> dict[str, list[BankPlan]]:
        """The caches of a stream, by name."""
        return {HISTORY: retention.banks(geometry, take)}

    def lane(self, memory: str) -> str:
        """Memories of one lane live on one device, where the forwards into them run; stats show
        them as one.
        """
        return memory

    def graph(self, chunks: list[Chunk], steps: int) -> dict:
        """Every work, which has a `lane`, with those it needs, in an order for one device. Empty:
        nothing here can run side by side.
        """
        return {}

    def frames_at_once(self, geometry: Geometry, take: Take) -> int:
        """Latent frames of the largest forward. More than a chunk's: several chunks run together,
        each at a noise level of its own.
        """
        return geometry.chunk_frames

    def reports(self, chunks: list[Chunk], steps: int, piece: range) -> int:
        """How often a piece of a take, numbers of chunks, calls `on_step`: what a progress bar
        counts to.
        """
        return sum(1 if chunks[i].given else steps for i in piece)

    def carries(self, chunks: list[Chunk], steps: int, made: int) -> dict[str, int]:
        """What is in `rollout.carried` once so many chunks are made: by name, how many latent
        frames.
        """
        return {}

    def check(self, policy: KVPolicy, geometry: Geometry, take: Take):
        """Raise ValueError, in a sentence, when this order cannot work with the other slots, this
        model or take.
        """

    @abstractmethod
    def take(self, rollout) -> Iterator[tuple[Chunk, Tensor]]:
        """Yield each chunk of `rollout.piece` with its finished latents `[1, C, F, 2h, 2w]`;
        `rollout` is a `rollout.rollout.Rollout`.

        A take is made in one piece or in several. Between two of them it can be saved: the caches,
        the streams' runs and `rollout.carried` are then all that the next piece may build on.
        """
