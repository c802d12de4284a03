"""No cache outlives a chunk: before each, the memory is made anew from a few finished frames (Krea
Realtime 14B's own loop).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from ..policy import KVPolicy
from ..retention.retention import Retention
from ..take import SWITCHES, BankPlan, Chunk, Geometry, Take
from .schedule import Schedule

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
    switches: ClassVar = SWITCHES  # the context always runs under the chunk's own prompts

    def check(self, policy: KVPolicy, geometry: Geometry, take: Take):
        policy.require_plain(self)
        if self.window_frames <= geometry.chunk_frames:
            raise ValueError(
                f"window_frames is {self.window_frames}, and a chunk alone has "
                f"{geometry.chunk_frames} latent frames. "
                f"Use at least {geometry.chunk_frames + 1}, so that it reads something of the past."
            )

    def memories(
        self, retention: Retention, geometry: Geometry, take: Take
    ) -> dict[str, list[BankPlan]]:
        frames = min(take.total_frames, self.window_frames)
        return {CONTEXT: [BankPlan(frames, frames)]}

    def reports(self, chunks: list[Chunk], steps: int, piece: range) -> int:
        return steps * sum(not chunks[i].given for i in piece)

    def carries(self, chunks: list[Chunk], steps: int, made: int) -> dict[str, int]:
        """Finished latents, by frame."""
        return (
            {
                str(frame): 1
                for frame in range(chunks[made - 1].end_frame)
                if self._is_read_after(chunks[made - 1], frame)
            }
            if made
            else {}
        )

    def _is_read_after(self, chunk: Chunk, frame: int) -> bool:
        """The shot's first frame, and those that the next chunk may read."""
        return frame == chunk.shot or frame >= chunk.end_frame - self.window_frames

    def take(self, rollout) -> Iterator[tuple[Chunk, Tensor]]:
        longest = max(chunk.frames for chunk in rollout.chunks)
        finished = {int(frame): latent for frame, latent in rollout.carried.items()}
        for chunk in rollout.in_work():
            x = (
                rollout.given(chunk)
                if chunk.given
                else self._render(rollout, chunk, finished, longest)
            )
            finished.update(zip(chunk.numbers, x.split(1, 2)))
            finished = {
                frame: latent
                for frame, latent in finished.items()
                if self._is_read_after(chunk, frame)
            }
            rollout.carried = {str(frame): latent for frame, latent in finished.items()}
            yield chunk, x

    def _render(self, rollout, chunk: Chunk, finished: dict[int, Tensor], longest: int) -> Tensor:
        rollout.forget(CONTEXT, chunk.end_frame, chunk)
        context = self._context(chunk, longest)
        for first in range(0, len(context), longest):
            part = context[first : first + longest]
            placed = replace(chunk, frames=len(part), apart=part, position=first)
            rollout.begin(placed, CONTEXT)
            rollout.write(placed, torch.cat([finished[frame] for frame in part], 2), 0.0, CONTEXT)
        placed = replace(chunk, position=len(context))
        rollout.begin(placed, CONTEXT)
        x = rollout.noise(chunk)
        for step in range(rollout.steps):
            x = rollout.renoise(chunk, step, rollout.denoise(placed, step, x, CONTEXT))
        rollout.discard(CONTEXT)
        return x

    def _context(self, chunk: Chunk, longest: int) -> tuple[int, ...]:
        """The frames that a chunk reads, of its own shot."""
        latest = range(
            max(chunk.shot + 1, chunk.start_frame - (self.window_frames - longest) + 1),
            chunk.start_frame,
        )
        return (chunk.shot, *latest) if chunk.start_frame > chunk.shot else ()
