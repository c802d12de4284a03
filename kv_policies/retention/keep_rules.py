"""DeCoPrune's modes: from a chunk's scores to the tokens that stay."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from torch import Tensor

from ..state import State
from .scores import highest_share

if TYPE_CHECKING:
    from .decoprune import DeCoPrune


class KeepRule(ABC):
    """The rule of one run. It may learn from the chunks that it has seen: `state` goes into a saved
    memory.
    """

    threshold: float | None = None  # for the stats; None: the rule has none

    def __init__(self, policy: DeCoPrune):
        self.policy = policy

    @abstractmethod
    def keep(self, scores: Tensor, floor: Tensor) -> Tensor:
        """Which tokens stay, bool like `scores` `[F * h * w]`; those in the mask `floor` do."""

    def state(self) -> State:
        return {}

    def restore(self, state: State):
        """Take over what `state` gave; KVMemoryError where it cannot be that."""


class Threshold(KeepRule):
    """The paper's: a token stays when its score is above `gamma`."""

    def __init__(self, policy: DeCoPrune):
        super().__init__(policy)
        self.threshold = policy.gamma

    def keep(self, scores: Tensor, floor: Tensor) -> Tensor:
        return (scores > self.policy.gamma) | floor


class TargetKeep(KeepRule):
    """Ours: the share `target_keep` of each chunk stays, the tokens of the floor and then the
    highest scores.
    """

    def keep(self, scores: Tensor, floor: Tensor) -> Tensor:
        return highest_share(scores, self.policy.target_keep, floor)


KEEP_RULES = {"threshold": Threshold, "target_keep": TargetKeep}
