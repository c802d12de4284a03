"""No cache outlives a chunk: before each, the cache is made anew from a few finished frames (Krea
Realtime 14B's own loop).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from ..retention.retention import Retention
from ..take import SWITCHES, BankPlan, Chunk, Forward, Geometry, Span, Take
from .schedule import Schedule, Stage

CONTEXT = "context"


@dataclass(frozen=True)
class ContextRecompute(Schedule):
    """Before each chunk, the take's first frame and the latest ones run once, clean, and are all
    that the chunk reads.

    With the chunk they are `window_frames` latent frames. They stand at positions 0, 1, 2 ... and
    the chunk right behind them, wherever in the take it lies, so no position exceeds the window.
    More context than a chunk is run in parts as long as one, each over those before it.
    """

    window_frames: int = 6
    title: ClassVar = "Krea Recompute"
    switches: ClassVar = SWITCHES  # the context always runs under the chunk's own prompts

    def check(self, geometry: Geometry, take: Take):
        if self.window_frames <= geometry.chunk_frames:
            raise ValueError(
                f"window_frames is {self.window_frames}, and a chunk alone has "
                f"{geometry.chunk_frames} latent frames. "
                f"Use at least {geometry.chunk_frames + 1}, so that it reads something of the past."
            )

    def caches(
        self, retention: Retention, geometry: Geometry, take: Take
    ) -> dict[str, list[BankPlan]]:
        frames = min(take.total_frames, self.window_frames)
        return {CONTEXT: [BankPlan(frames, frames)]}

    def reports(self, chunks: list[Chunk], steps: int, piece: range) -> int:
        return steps * sum(not chunks[i].given for i in piece)

    def carries(self, chunks: list[Chunk], steps: int, made: int) -> dict[str, int]:
        """Finished latents, by frame."""
        if not made:
            return {}
        last = chunks[made - 1]
        return {
            str(frame): 1 for frame in range(last.end_frame) if self._is_read_after(last, frame)
        }

    def _is_read_after(self, chunk: Chunk, frame: int) -> bool:
        """Whether a frame is the shot's first, or one that the chunk after `chunk` may read."""
        return frame == chunk.cue.shot or frame >= chunk.end_frame - self.window_frames

    def run(self, stage: Stage) -> Iterator[tuple[Chunk, Tensor]]:
        longest = max(chunk.frames for chunk in stage.chunks)
        finished = {int(frame): latent for frame, latent in stage.carried.items()}
        for chunk in stage.in_work():
            if chunk.given:
                x = stage.given(chunk.span)
            else:
                x = self._render(stage, chunk, finished, longest)
            finished.update(zip(chunk.span.numbers, x.split(1, 2)))
            finished = {
                frame: latent
                for frame, latent in finished.items()
                if self._is_read_after(chunk, frame)
            }
            stage.carried = {str(frame): latent for frame, latent in finished.items()}
            yield chunk, x

    def _render(
        self, stage: Stage, chunk: Chunk, finished: dict[int, Tensor], longest: int
    ) -> Tensor:
        own = Forward.of(chunk, cache=CONTEXT)

        # 1. The context, in parts, at positions from 0 on. The first part finds the cache empty.
        context = self._context(chunk, longest)
        oldest = chunk.end_frame
        for first in range(0, len(context), longest):
            part = context[first : first + longest]
            forward = replace(own, span=Span.of_frames(part).at(first))
            stage.begin(forward, oldest)
            stage.write(forward, torch.cat([finished[frame] for frame in part], 2), 0.0)
            oldest = None

        # 2. The chunk, right behind it in time.
        forward = replace(own, span=chunk.span.at(len(context)))
        stage.begin(forward, oldest)
        x = stage.noise(chunk.span)
        for step in range(stage.steps):
            x0 = stage.denoise(forward.at(step), x)
            x = stage.renoise(forward.at(step), x0)
        stage.discard(CONTEXT)
        return x

    def _context(self, chunk: Chunk, longest: int) -> tuple[int, ...]:
        """The frames that a chunk reads, of its own shot."""
        shot = chunk.cue.shot
        if chunk.start_frame <= shot:
            return ()
        room = self.window_frames - longest
        latest = range(max(shot + 1, chunk.start_frame - room + 1), chunk.start_frame)
        return (shot, *latest)
