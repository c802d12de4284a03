"""Keep everything: the reference that every other policy is measured against, and what the stock
sampler does.
"""

from dataclasses import dataclass
from typing import ClassVar

from ..take import BankPlan, Geometry, Take
from .retention import Retention, RetentionRun


@dataclass(frozen=True)
class FullKV(Retention):
    """Every token of every chunk stays."""

    title: ClassVar = "Full"
    whole_frames: ClassVar = True

    def grain(self, geometry: Geometry, lengths: set[int]) -> int:
        return geometry.tokens_per_frame

    def banks(self, geometry: Geometry, take: Take) -> list[BankPlan]:
        return [BankPlan(take.total_frames, take.total_frames)]

    def start(self, geometry: Geometry, take: Take) -> RetentionRun:
        return RetentionRun()
