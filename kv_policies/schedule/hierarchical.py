"""Step by step through the whole take, with history at matched noise (HiAR, arXiv 2603.08703)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..retention.retention import Retention
from ..take import BankPlan, Chunk, Forward, Geometry, Take
from .schedule import Schedule, Stage

LEVEL = "matched noise"


@dataclass(frozen=True)
class Hierarchical(Schedule):
    """Each step runs over all chunks before the next step begins; a chunk reads those before it as
    they stand after the same step.

    After a step its result, noised to the next level, is run once for the cache; after the last
    step that is the clean result. Given chunks are run clean in every step, as in HiAR's code.
    `window_frames` latent frames are read at most, the chunk's own included. All chunks live
    through every step, so the take's length must be known and nothing is finished before the last
    step.
    """

    window_frames: int = 21
    title: ClassVar = "Hierarchical (HiAR)"
    switches: ClassVar = ("swap", "cut")
    pauses: ClassVar = False

    def check(self, geometry: Geometry, take: Take):
        if self.window_frames < geometry.chunk_frames:
            raise ValueError(
                f"window_frames is {self.window_frames} and a chunk has {geometry.chunk_frames} "
                "latent frames. Use at least as many."
            )

    def caches(
        self, retention: Retention, geometry: Geometry, take: Take
    ) -> dict[str, list[BankPlan]]:
        frames = min(take.total_frames, self.window_frames)
        return {LEVEL: [BankPlan(frames, frames)]}

    def reports(self, chunks: list[Chunk], steps: int, piece: range) -> int:
        return steps * sum(not chunk.given for chunk in chunks)

    def run(self, stage: Stage) -> Iterator[tuple[Chunk, Tensor]]:
        x = {
            chunk: stage.given(chunk.span) if chunk.given else stage.noise(chunk.span)
            for chunk in stage.chunks
        }
        for step in range(stage.steps):
            for chunk in stage.chunks:
                x[chunk] = self._step(stage, chunk, step, x[chunk])
                if step == stage.steps - 1:
                    yield chunk, x[chunk]

    def _step(self, stage: Stage, chunk: Chunk, step: int, x: Tensor) -> Tensor:
        """Take a chunk a step on, and leave it in the cache at the next level; its new latents."""
        forward = Forward.of(chunk, step, LEVEL)
        stage.begin(forward, self._oldest(stage.chunks, chunk))
        level = 0.0
        if not chunk.given:
            x = stage.renoise(forward, stage.denoise(forward, x))
            level = stage.sigmas[step + 1]
        if chunk is stage.chunks[-1]:  # nothing reads what the last chunk would leave behind
            stage.discard(LEVEL)
        else:
            stage.write(forward, x, level)
        return x

    def _oldest(self, chunks: list[Chunk], chunk: Chunk) -> int:
        """First frame that stays in the cache: of the oldest chunk of the same shot that is whole
        inside the window. A step's first chunk finds the cache empty.
        """
        if chunk.index == 0:
            return chunks[-1].end_frame
        return next(
            other.start_frame
            for other in chunks
            if other.cue.shot == chunk.cue.shot
            and chunk.end_frame - other.start_frame <= self.window_frames
        )
