"""Many first frames that move along behind the latest ones (the deep sink of Deep Forcing, arXiv
2512.05081, by itself).
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from ..cache.bank import Bank
from ..cache.cache import KVCache
from ..take import BankPlan, Chunk, Geometry, Take
from .retention import Retention, RetentionRun


@dataclass(frozen=True)
class DeepSink(Retention):
    """Hold `window_frames` latent frames: a shot's first `sink_frames`, the latest ones, and the
    chunk in work.

    Whenever frames leave, the sink is turned in time so that it begins `window_frames` before the
    chunk's first frame, but never before its own place. That is a chunk's length farther back than
    right before the latest frames; so it is in the authors' code.
    """

    sink_frames: int = 14
    window_frames: int = 21
    whole_frames: ClassVar = True

    def __post_init__(self):
        if not 1 <= self.sink_frames < self.window_frames:
            raise ValueError(
                f"sink_frames is {self.sink_frames} and window_frames {self.window_frames}. The "
                "window holds the sink and at least one chunk: use sink_frames of at least 1, and "
                f"window_frames of at least {max(self.sink_frames, 1)} plus the chunk's frames."
            )

    def check(self, geometry: Geometry, take: Take):
        least = self.sink_frames + geometry.chunk_frames
        if self.window_frames < least:
            raise ValueError(
                f"window_frames is {self.window_frames}, and the sink ({self.sink_frames}) with "
                f"the chunk in work ({geometry.chunk_frames}) are {least} latent frames. Use "
                f"window_frames of at least {least}, or a smaller sink."
            )

    def banks(self, geometry: Geometry, take: Take) -> list[BankPlan]:
        frames = min(take.total_frames, self.window_frames)
        return [BankPlan(frames, frames, held_frames=self.sink_frames)]

    def start(self, geometry: Geometry, take: Take) -> RetentionRun:
        return DeepSinkRun(self)

    def full_frames(self, geometry: Geometry) -> int | None:
        return self.window_frames

    def sink(self, geometry: Geometry) -> int:
        return self.sink_frames

    def moving_frames(self, take: Take) -> int:
        return self.sink_frames

    def grain(self, geometry: Geometry, lengths: set[int]) -> int:
        return geometry.tokens_per_frame


class DeepSinkRun(RetentionRun):
    """It remembers nothing beside the cache: frames and positions stand there."""

    def __init__(self, policy: DeepSink):
        self.policy = policy

    def begin_chunk(self, cache: KVCache, chunk: Chunk):
        (bank,) = cache.banks
        sink, window = self.policy.sink_frames, self.policy.window_frames
        tokens = cache.geometry.tokens_per_frame
        leaving = bank.committed + (chunk.frames - window) * tokens  # rows
        if leaving <= 0:
            return
        sink_rows = sink * tokens
        bank.keep(torch.arange(sink_rows + leaving, bank.length), first_kept=sink_rows)
        turn_sink(bank, sink, chunk, window)


def turn_sink(bank: Bank, frames: int, chunk: Chunk, distance: int):
    """Turn the first latent frames of a bank so that they begin `distance` before a chunk's first
    frame, but not before the shot does; from their keys as they were written.
    """
    tokens = bank.geometry.tokens_per_frame
    first = max(chunk.start_frame - distance, chunk.cue.shot)
    positions = torch.arange(first, first + frames, dtype=torch.float64)
    bank.hold(frames * tokens)
    bank.move(positions.repeat_interleave(tokens))
