"""Step by step through the whole take, with history at matched noise (HiAR, arXiv 2603.08703)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..policy import KVPolicy
from ..retention.retention import Retention
from ..take import BankPlan, Chunk, Geometry, Take
from .schedule import Schedule

LEVEL = "matched noise"


@dataclass(frozen=True)
class Hierarchical(Schedule):
    """Each step runs over all chunks before the next step begins; a chunk reads those before it as
    they stand after the same step.

    After a step its result, noised to the next level, is run once for the memory; after the last
    step that is the clean result. Given chunks are run clean in every step, as in HiAR's code.
    `window_frames` latent frames are read at most, the chunk's own included. All chunks live
    through every step, so the take's length must be known and nothing is finished before the last
    step.
    """

    window_frames: int = 21
    switches: ClassVar = ("swap", "cut")
    pauses: ClassVar = False

    def check(self, policy: KVPolicy, geometry: Geometry, take: Take):
        policy.require_plain(self)
        if self.window_frames < geometry.chunk_frames:
            raise ValueError(
                f"window_frames is {self.window_frames} and a chunk has {geometry.chunk_frames} "
                "latent frames. Use at least as many."
            )

    def memories(
        self, retention: Retention, geometry: Geometry, take: Take
    ) -> dict[str, list[BankPlan]]:
        frames = min(take.total_frames, self.window_frames)
        return {LEVEL: [BankPlan(frames, frames)]}

    def reports(self, chunks: list[Chunk], steps: int, piece: range) -> int:
        return steps * sum(not chunk.given for chunk in chunks)

    def take(self, rollout) -> Iterator[tuple[Chunk, Tensor]]:
        chunks, x = (
            rollout.chunks,
            {
                chunk: rollout.given(chunk) if chunk.given else rollout.noise(chunk)
                for chunk in rollout.chunks
            },
        )
        for step in range(rollout.steps):
            for chunk in chunks:
                rollout.forget(
                    LEVEL,
                    self._oldest(chunks, chunk) if chunk.index else chunks[-1].end_frame,
                    chunk,
                )
                rollout.begin(chunk, LEVEL)
                if not chunk.given:
                    x0 = rollout.denoise(chunk, step, x[chunk], LEVEL)
                    x[chunk] = rollout.renoise(chunk, step, x0)
                if chunk is not chunks[-1]:  # nothing reads what the last chunk would leave behind
                    level = 0.0 if chunk.given else rollout.sigmas[step + 1]
                    rollout.write(chunk, x[chunk], level, LEVEL)
                else:
                    rollout.discard(LEVEL)
                if step == rollout.steps - 1:
                    yield chunk, x[chunk]

    def _oldest(self, chunks: list[Chunk], chunk: Chunk) -> int:
        """First frame of the oldest chunk of the same shot that is whole inside the window."""
        return next(
            other.start_frame
            for other in chunks
            if other.shot == chunk.shot
            and chunk.end_frame - other.start_frame <= self.window_frames
        )
