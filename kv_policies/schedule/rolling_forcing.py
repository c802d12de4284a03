"""Several chunks denoised together, at rising noise, with a sink that moves along (Rolling Forcing,
arXiv 2509.25161).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from ..retention.retention import Retention
from ..take import BankPlan, Chunk, Forward, Geometry, Read, Span, Take
from .schedule import Schedule, Stage

SINK, FINISHED, IN_FLIGHT = "sink", "finished", "in flight"


@dataclass(frozen=True)
class RollingForcing(Schedule):
    """As many chunks as there are steps are in flight, each one step less noisy than the next; one
    forward takes all of them a step on.

    The chunk in front is finished then; a clean forward writes it into the cache, and a new chunk
    of noise joins at the end. Chunks in flight read each other, the latest finished frames, and the
    take's first chunk, a sink that stands just before those in time. All of that together is
    `window_frames` latent frames at most. The clean forward reads as many finished frames, its own
    included; the sink is one of them while it lies that near.
    """

    window_frames: int = 21
    switches: ClassVar = ("swap",)
    gathers: ClassVar = True
    extends: ClassVar = False
    selects: ClassVar = True

    def full_frames(self, retention: Retention, geometry: Geometry) -> int | None:
        """All that a forward may read: finished frames are read one by one, not in whole chunks."""
        return self.window_frames

    def frames_at_once(self, geometry: Geometry, take: Take) -> int:
        return min(take.total_frames, take.steps * geometry.chunk_frames)

    def check(self, geometry: Geometry, take: Take):
        sink = geometry.chunk_frames
        flight = self.frames_at_once(geometry, take)
        if self.window_frames < sink + flight:
            raise ValueError(
                f"window_frames is {self.window_frames}, and the chunks in flight ({flight} "
                f"latent frames in {take.steps} steps) with "
                f"the sink ({sink}) need {sink + flight}. Use a larger window_frames, fewer steps "
                "or smaller chunks."
            )

    def caches(
        self, retention: Retention, geometry: Geometry, take: Take
    ) -> dict[str, list[BankPlan]]:
        sink = geometry.chunk_frames
        finished = min(take.total_frames, self.window_frames)
        flight = self.frames_at_once(geometry, take)
        return {
            SINK: [BankPlan(sink, sink, held_frames=sink)],
            FINISHED: [BankPlan(finished, finished)],
            IN_FLIGHT: [BankPlan(flight, flight)],
        }

    def reports(self, chunks: list[Chunk], steps: int, piece: range) -> int:
        return len(self._joins(chunks, steps, piece))

    def carries(self, chunks: list[Chunk], steps: int, made: int) -> dict[str, int]:
        """Chunks in flight, by their numbers."""
        given = sum(chunk.given for chunk in chunks)
        if made <= given:
            return {}
        return {str(chunk.index): chunk.frames for chunk in chunks[made : made + steps - 1]}

    def _joins(self, chunks: list[Chunk], steps: int, piece: range) -> range:
        """Joint forwards of a piece. Each has the number, among the new chunks, of the one that
        joins before it; no chunk joins the last ones, whose numbers go on beyond the new chunks.
        """
        given = sum(chunk.given for chunk in chunks)
        start = max(0, piece.start - given)
        stop = max(0, piece.stop - given)
        return range(start + steps - 1 if start else 0, stop + steps - 1 if stop else 0)

    def run(self, stage: Stage) -> Iterator[tuple[Chunk, Tensor]]:
        # 1. Given chunks are finished as they are.
        for chunk in stage.in_work():
            if chunk.given:
                self._finish(stage, chunk, stage.given(chunk.span))
                yield chunk, stage.given(chunk.span)

        # 2. Joint forwards over the new ones; `noisy` holds the latents of the chunks in flight.
        new = [chunk for chunk in stage.chunks if not chunk.given]
        noisy = {stage.chunks[int(number)]: x for number, x in stage.carried.items()}
        for joining in self._joins(stage.chunks, stage.steps, stage.piece):
            if joining < len(new):
                noisy[new[joining]] = stage.noise(new[joining].span)
            # The chunk that joined `age` forwards ago is at step `age`.
            oldest = max(0, joining - stage.steps + 1)
            ages = {new[i]: joining - i for i in range(oldest, min(joining + 1, len(new)))}
            self._step(stage, ages, noisy)

            # 3. The chunk in front is finished after its last step.
            front = new[oldest]
            if ages[front] == stage.steps - 1:
                x0 = noisy.pop(front)
                if stage.is_read_later(front):
                    self._finish(stage, front, x0)
                stage.carried = {str(chunk.index): x for chunk, x in noisy.items()}
                yield front, x0

    def _step(self, stage: Stage, ages: dict[Chunk, int], noisy: dict[Chunk, Tensor]):
        """Take every chunk in flight a step on; `ages` has the step of each."""
        flight = list(ages)
        first = flight[0]
        numbers = [number for chunk in flight for number in chunk.span.numbers]
        forward = replace(
            Forward.of(first, ages[first], IN_FLIGHT, self._reads(stage, first, len(numbers))),
            span=Span.of_frames(numbers),
            # One forward has one prompt: that of the noisiest chunk, whose picture is least
            # decided.
            cue=replace(first.cue, prompt=flight[-1].cue.prompt),
        )
        stage.begin(forward)
        x = torch.cat([noisy[chunk] for chunk in flight], 2)
        frame_steps = [age for chunk, age in ages.items() for _ in range(chunk.frames)]
        x0 = stage.denoise(forward, x, frame_steps)
        stage.discard(IN_FLIGHT)
        parts = x0.split([chunk.frames for chunk in flight], 2)
        for (chunk, age), part in zip(ages.items(), parts):
            noisy[chunk] = stage.renoise(Forward.of(chunk, age, IN_FLIGHT), part)

    def _reads(self, stage: Stage, first: Chunk, frames: int) -> tuple[Read, ...]:
        """What a joint forward of so many frames reads besides, `first` being the chunk in front:
        the latest finished frames, and the sink, which is turned to stand just before them.
        """
        sink = stage.chunks[0]
        if first is sink:
            return ()
        room = self.window_frames - frames - sink.frames
        oldest = max(sink.end_frame, first.start_frame - room)
        stage.turn(SINK, oldest - sink.frames, first)
        return (
            Read(SINK, 0, sink.end_frame - 1),
            Read(FINISHED, oldest, first.start_frame - 1),
        )

    def _finish(self, stage: Stage, chunk: Chunk, x0: Tensor):
        """Write a finished chunk into the cache."""
        sink = stage.chunks[0]
        if chunk is sink:
            forward = Forward.of(chunk, cache=SINK)
            stage.begin(forward)
            stage.write(forward, x0, 0.0)
            return
        reads = ()
        if chunk.end_frame <= self.window_frames:
            reads = (Read(SINK, 0, sink.end_frame - 1),)
            stage.turn(SINK, 0, chunk)
        forward = Forward.of(chunk, cache=FINISHED, reads=reads)
        stage.begin(forward, oldest=chunk.end_frame - self.window_frames)
        stage.write(forward, x0, 0.0)
