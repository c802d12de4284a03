"""DeCoPrune's modes: from a chunk's scores to the tokens that stay."""

from abc import ABC, abstractmethod

from torch import Tensor

from ..state import State
from ..take import Chunk
from .scores import highest_share


class KeepRule(ABC):
    """The rule of one run. It may learn from the chunks that it has seen: `state` goes into a saved
    memory.
    """

    threshold: float | None = None  # for the stats; None: the rule has none, or none yet
    notes: tuple[str, ...] = ()  # what a user should know about it

    def see(self, chunk: Chunk, scores: Tensor):
        """Learn from a finished chunk's scores `[F * h * w]`; once for each chunk that has any."""

    @abstractmethod
    def keep(self, scores: Tensor, floor: Tensor) -> Tensor | None:
        """Which tokens stay, bool like `scores` `[F * h * w]`; those in the mask `floor` do. None:
        see `TokenPruneRun.keep`.
        """

    def state(self) -> State:
        return {}

    def restore(self, state: State):
        """Take over what `state` gave; KVMemoryError where it cannot be that."""


class Threshold(KeepRule):
    """The paper's: a token stays when its score is above `threshold`."""

    def __init__(self, threshold: float):
        self.threshold = threshold

    def keep(self, scores: Tensor, floor: Tensor) -> Tensor:
        return (scores > self.threshold) | floor


class TargetKeep(KeepRule):
    """Ours: a share of each chunk stays, the tokens of the floor and then the highest scores."""

    def __init__(self, share: float):
        self.share = share

    def keep(self, scores: Tensor, floor: Tensor) -> Tensor:
        return highest_share(scores, self.share, floor)
