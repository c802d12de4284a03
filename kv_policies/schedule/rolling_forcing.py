"""Several chunks denoised together, at rising noise, with a sink that moves along (Rolling Forcing,
arXiv 2509.25161).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from ..policy import KVPolicy
from ..retention.retention import Retention
from ..take import BankPlan, Chunk, Geometry, Take
from .schedule import Schedule

SINK, FINISHED, IN_FLIGHT = "sink", "finished", "in flight"


@dataclass(frozen=True)
class RollingForcing(Schedule):
    """As many chunks as there are steps are in flight, each one step less noisy than the next; one
    forward takes all of them a step on.

    The chunk in front is finished then; a clean forward writes it into the memory, and a new chunk
    of noise joins at the end. Chunks in flight read each other, the latest finished frames, and the
    take's first chunk, a sink that stands just before those in time. All of that together is
    `window_frames` latent frames at most. The clean forward reads as many finished frames, its own
    included; the sink is one of them while it lies that near.
    """

    window_frames: int = 21
    switches: ClassVar = ("swap",)
    extends: ClassVar = False

    def frames_at_once(self, geometry: Geometry, take: Take) -> int:
        return min(take.total_frames, take.steps * geometry.chunk_frames)

    def check(self, policy: KVPolicy, geometry: Geometry, take: Take):
        policy.require_plain(self)
        sink, flight = geometry.chunk_frames, self.frames_at_once(geometry, take)
        if self.window_frames < sink + flight:
            raise ValueError(
                f"window_frames is {self.window_frames}, and the chunks in flight ({flight} "
                f"latent frames in {take.steps} steps) with "
                f"the sink ({sink}) need {sink + flight}. Use a larger window_frames, fewer steps "
                "or smaller chunks."
            )

    def memories(
        self, retention: Retention, geometry: Geometry, take: Take
    ) -> dict[str, list[BankPlan]]:
        sink, finished, flight = (
            geometry.chunk_frames,
            min(take.total_frames, self.window_frames),
            self.frames_at_once(geometry, take),
        )
        return {
            SINK: [BankPlan(sink, sink, held_frames=sink)],
            FINISHED: [BankPlan(finished, finished)],
            IN_FLIGHT: [BankPlan(flight, flight)],
        }

    def reports(self, chunks: list[Chunk], steps: int, piece: range) -> int:
        return len(self._joins(chunks, steps, piece))

    def carries(self, chunks: list[Chunk], steps: int, made: int) -> dict[str, int]:
        """Chunks in flight, by their numbers."""
        first = sum(chunk.given for chunk in chunks)
        return {
            str(chunk.index): chunk.frames
            for chunk in chunks[made : made + steps - 1]
            if made > first
        }

    def _joins(self, chunks: list[Chunk], steps: int, piece: range) -> range:
        """Forwards of a piece, each by the number among new chunks of the one that joins before it;
        the last ones are joined by none.
        """
        given = sum(chunk.given for chunk in chunks)
        start, stop = (max(0, number - given) for number in (piece.start, piece.stop))
        return range(start + steps - 1 if start else 0, stop + steps - 1 if stop else 0)

    def take(self, rollout) -> Iterator[tuple[Chunk, Tensor]]:
        for chunk in rollout.in_work():
            if chunk.given:
                self._finish(rollout, chunk, rollout.given(chunk))
                yield chunk, rollout.given(chunk)
        new = [chunk for chunk in rollout.chunks if not chunk.given]
        noisy = {rollout.chunks[int(number)]: x for number, x in rollout.carried.items()}
        for last in self._joins(rollout.chunks, rollout.steps, rollout.piece):
            flight = new[max(0, last - rollout.steps + 1) : last + 1]
            if last < len(new):
                noisy[new[last]] = rollout.noise(new[last])
            # The chunk that joined `age` forwards ago is at step `age`.
            ages = {chunk: last - place for place, chunk in enumerate(new) if chunk in flight}
            self._step(rollout, ages, noisy)
            if ages[flight[0]] == rollout.steps - 1:
                x0 = noisy.pop(flight[0])
                if rollout.is_read_later(flight[0]):
                    self._finish(rollout, flight[0], x0)
                rollout.carried = {str(chunk.index): x for chunk, x in noisy.items()}
                yield flight[0], x0

    def _step(self, rollout, ages: dict[Chunk, int], noisy: dict[Chunk, Tensor]):
        """Take every chunk in flight a step on."""
        flight, sink = list(ages), rollout.chunks[0]
        first, lengths = flight[0], [chunk.frames for chunk in flight]
        # One forward hears one prompt: that of the noisiest chunk, whose picture is least decided.
        together, reads = replace(first, frames=sum(lengths)).under(flight[-1]), ()
        if first is not sink:
            room = self.window_frames - together.frames - sink.frames
            oldest = max(sink.end_frame, first.start_frame - room)
            rollout.turn(SINK, oldest - sink.frames, first)
            reads = ((SINK, 0, sink.end_frame - 1), (FINISHED, oldest, first.start_frame - 1))
        rollout.begin(together, IN_FLIGHT)
        steps = [age for chunk, age in ages.items() for _ in range(chunk.frames)]
        x0 = rollout.denoise(
            together,
            ages[first],
            torch.cat([noisy[chunk] for chunk in flight], 2),
            IN_FLIGHT,
            reads,
            steps,
        )
        rollout.discard(IN_FLIGHT)
        for (chunk, age), part in zip(ages.items(), x0.split(lengths, 2)):
            noisy[chunk] = rollout.renoise(chunk, age, part)

    def _finish(self, rollout, chunk: Chunk, x0: Tensor):
        """Write a finished chunk into the memory."""
        sink = rollout.chunks[0]
        if chunk is sink:
            rollout.begin(chunk, SINK)
            rollout.write(chunk, x0, 0.0, SINK)
            return
        reads = ((SINK, 0, sink.end_frame - 1),) if chunk.end_frame <= self.window_frames else ()
        if reads:
            rollout.turn(SINK, 0, chunk)
        rollout.forget(FINISHED, chunk.end_frame - self.window_frames, chunk)
        rollout.begin(chunk, FINISHED)
        rollout.write(chunk, x0, 0.0, FINISHED, reads)
