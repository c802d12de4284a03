"""The first frame and the latest ones, always right before the chunk in time (Infinity-RoPE, arXiv
2511.20649).
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from ..cache.cache import KVCache
from ..take import BankPlan, Chunk, Geometry, Take
from .retention import Retention, RetentionRun


@dataclass(frozen=True)
class InfinityRope(Retention):
    """Hold `window_frames` latent frames: the take's first `sink_frames`, the latest ones, and the
    chunk in work.

    Before each chunk they are turned to stand right before it, one behind the other. RoPE tells
    distances alone, so this equals the authors' positions 0, 1, 2 ... within the window.

    A cut leaves the same frames in memory. For its one chunk the first of them stands
    `cut_distance` latent frames before the chunk's first frame (the paper's RoPE cut).
    """

    window_frames: int = 6
    sink_frames: int = 1
    cut_distance: int = 45
    title: ClassVar = "Infinity-RoPE"
    cut_forgets: ClassVar[bool] = False
    whole_frames: ClassVar = True

    def __post_init__(self):
        if not 0 <= self.sink_frames < self.window_frames:
            raise ValueError(
                f"sink_frames is {self.sink_frames} and window_frames {self.window_frames}. The "
                "window holds the sink and the chunk in work: use sink_frames from 0 to "
                "window_frames minus the chunk's frames."
            )
        if self.cut_distance < self.window_frames:
            raise ValueError(
                f"cut_distance is {self.cut_distance} and window_frames {self.window_frames}. At a "
                "cut the memory stands farther back than before other chunks: use a cut_distance "
                f"of at least {self.window_frames}."
            )

    def check(self, geometry: Geometry, take: Take):
        least = self.sink_frames + geometry.chunk_frames
        if self.window_frames < least:
            raise ValueError(
                f"window_frames is {self.window_frames}, and the sink ({self.sink_frames}) with "
                f"the chunk in work ({geometry.chunk_frames}) are {least} latent frames. Use "
                f"window_frames of at least {least}, or smaller chunks."
            )

    def banks(self, geometry: Geometry, take: Take) -> list[BankPlan]:
        frames = min(take.total_frames, self.window_frames)
        return [BankPlan(frames, frames, held_frames=self.sink_frames)]

    def start(self, geometry: Geometry, take: Take) -> RetentionRun:
        return InfinityRopeRun(self)

    def full_frames(self, geometry: Geometry) -> int | None:
        return self.window_frames

    def sink(self, geometry: Geometry) -> int:
        return self.sink_frames

    def moving_frames(self, take: Take) -> int:
        return self.sink_frames

    def grain(self, geometry: Geometry, lengths: set[int]) -> int:
        return geometry.tokens_per_frame


class InfinityRopeRun(RetentionRun):
    """It remembers nothing beside the cache: frames and positions stand there."""

    def __init__(self, policy: InfinityRope):
        self.policy = policy

    def begin_chunk(self, cache: KVCache, chunk: Chunk):
        (bank,) = cache.banks
        policy, tokens = self.policy, cache.geometry.tokens_per_frame

        # 1. The sink and the latest frames stay.
        oldest = chunk.start_frame - (policy.window_frames - policy.sink_frames - chunk.frames)
        frame = bank.frame[: bank.length]
        bank.keep(((frame < policy.sink_frames) | (frame >= oldest)).nonzero()[:, 0])

        # 2. They stand one behind the other, right before the chunk or, at a cut, far back.
        frames = bank.length // tokens
        switch = chunk.cue.switch
        is_cut = switch is not None and switch.mode == "cut"
        first = chunk.start_frame - (policy.cut_distance if is_cut else frames)
        places = torch.arange(first, first + frames, dtype=torch.float64)
        self._move(cache, places.repeat_interleave(tokens))

    def _move(self, cache: KVCache, position: torch.Tensor):
        """Turn the rows up to the last one that stands elsewhere: the sink from its keys as they
        were written, so that its turns do not add up.
        """
        (bank,) = cache.banks
        moved = (bank.position[: bank.length] != position).nonzero()
        if not len(moved):
            return
        sink = self.policy.sink_frames * cache.geometry.tokens_per_frame
        if bank.length >= sink:
            bank.hold(sink)
        bank.move(position[: int(moved[-1]) + 1])
