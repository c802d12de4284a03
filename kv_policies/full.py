"""Keep everything: the reference that every other policy is measured against, and what the stock sampler does."""
from dataclasses import dataclass

from .base import Geometry, Retention, RetentionRun


@dataclass(frozen=True)
class FullKV(Retention):
    """Every token of every chunk stays."""

    def capacity_frames(self, total_frames: int, chunk_frames: int) -> int:
        return total_frames

    def start(self, geometry: Geometry) -> RetentionRun:
        return RetentionRun()
