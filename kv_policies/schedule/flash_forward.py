"""In-flight history and clean anchors: each block of anchors has a clean pass, the chunks have none
(FlashForward, arXiv 2609.32540).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import ClassVar, NamedTuple

from torch import Tensor

from ..retention.retention import Retention
from ..take import BankPlan, Chunk, Cue, Geometry, Span, Take
from .flash_forward_layout import ANCHORS, Block, Layout, Work, stage_cache
from .schedule import Schedule, Stage

PLANNER, RENDERER = "planner", "renderer"
NOISY_HISTORY = (
    "FlashForward: the sampler's model plays both roles, and its profile does not say that it was "
    "trained to read noisy history, so expect the take to drift. Connect planner_model and "
    "renderer_model with the roles' LoRAs."
)


class Latents(NamedTuple):
    """Noisy latents of the blocks and chunks in work, by number."""

    blocks: dict[int, Tensor]
    chunks: dict[int, Tensor]


@dataclass(frozen=True)
class FlashForward(Schedule):
    """A planner makes sparse clean anchors ahead; a renderer makes every latent frame between them,
    one forward per step.

    An anchor lies at every `anchor_stride` latent frames; the planner makes `block_anchors` at a
    time and remembers `planner_history` blocks. A chunk reads the `anchor_window` anchors nearest
    to it, on both sides, and, at each step, the keys and values that the last `stage_history`
    chunks left at the same step. Anchors, history and chunk together hold at most `budget_frames`.
    Anchors only condition: their frames are rendered like all others. An `anchor_window` of 0 makes
    no anchors, a `stage_history` of 0 keeps no history: the paper's ablations.

    The planner makes what goes into the anchors' caches, the renderer the rest.
    """

    anchor_stride: int = 10
    block_anchors: int = 3
    anchor_window: int = 3
    planner_history: int = 6
    stage_history: int = 5
    budget_frames: int = 21
    title: ClassVar = "FlashForward Anchors"
    switches: ClassVar = ("swap",)
    gathers: ClassVar = True
    extends: ClassVar = False
    roles: ClassVar = (PLANNER, RENDERER)

    def __post_init__(self):
        for name, least in (
            ("anchor_stride", 1),
            ("block_anchors", 1),
            ("anchor_window", 0),
            ("planner_history", 1),
            ("stage_history", 0),
        ):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}. Use at least {least}.")

    def check(self, geometry: Geometry, take: Take):
        if self.budget_frames < self.anchor_window + geometry.chunk_frames:
            raise ValueError(
                f"budget_frames is {self.budget_frames}, and the anchor window "
                f"({self.anchor_window}) with the chunk in work "
                f"({geometry.chunk_frames}) needs {self.anchor_window + geometry.chunk_frames}. "
                "Use a larger budget_frames."
            )

    def history(self, chunk_frames: int) -> int:
        """Chunks that a stage remembers within the budget."""
        return min(
            self.stage_history,
            (self.budget_frames - self.anchor_window - chunk_frames) // chunk_frames,
        )

    def slots(self, blocks: int, parts: int) -> int:
        """Blocks of anchors that are held at once: the planner's history or a chunk's window, and
        the block in work.
        """
        # A window over whole blocks, and one more for each part that ends inside it.
        in_window = -(-(self.anchor_window - 1) // self.block_anchors) + parts
        in_window = min(self.anchor_window, in_window)
        return min(blocks, max(self.planner_history, in_window) + 1)

    def caches(
        self, retention: Retention, geometry: Geometry, take: Take
    ) -> dict[str, list[BankPlan]]:
        parts = self._parts(take.total_frames, take.given_frames, take.prompt_frames)
        blocks = sum(-(-len(part) // self.block_anchors) for part in parts)
        frames = min(
            take.total_frames, (self.history(geometry.chunk_frames) + 1) * geometry.chunk_frames
        )
        # of chunks that are all short more may be remembered
        most = max(frames, min(take.total_frames, self.budget_frames - self.anchor_window))
        anchors = {
            f"{ANCHORS} {slot}": [BankPlan(self.block_anchors, self.block_anchors)]
            for slot in range(self.slots(blocks, len(parts)))
        }
        stages = {stage_cache(step): [BankPlan(frames, most)] for step in range(take.steps)}
        return {**anchors, **stages}

    def lane(self, cache: str) -> str:
        return ANCHORS if cache.startswith(ANCHORS) else cache

    def role_of(self, cache: str) -> str:
        return PLANNER if cache.startswith(ANCHORS) else RENDERER

    def notes(self, models: Mapping[str, object], noisy_history: bool) -> tuple[str, ...]:
        return () if models or noisy_history else (NOISY_HISTORY,)

    def graph(self, chunks: list[Chunk], steps: int) -> dict[Work, tuple[Work, ...]]:
        return self.layout(chunks, steps).graph()

    def reports(self, chunks: list[Chunk], steps: int, piece: range) -> int:
        works = self.layout(chunks, steps).part(piece)
        return sum(
            work.kind == "plan" or work.kind == "render" and not chunks[work.number].given
            for work in works
        )

    def _anchors(self, total: int) -> range:
        """Latent frames of a take's anchors."""
        return range(0, total if self.anchor_window else 0, self.anchor_stride)

    def _parts(self, total: int, given: int, prompt_frames: Iterable[int]) -> list[list[int]]:
        """The anchors in parts that no block reaches over: given ones, which take one clean
        forward, and those of each prompt.
        """
        borders = {given, *prompt_frames}

        def borders_before(frame: int) -> int:
            return sum(frame >= border for border in borders)

        return [list(part) for _, part in groupby(self._anchors(total), borders_before)]

    def layout(self, chunks: list[Chunk], steps: int) -> Layout:
        total = chunks[-1].end_frame
        given = sum(chunk.frames for chunk in chunks if chunk.given)
        starts = [chunk.start_frame for chunk in chunks if chunk.cue.switch]
        parts = self._parts(total, given, starts)
        chunk_of_frame = [chunk for chunk in chunks for _ in range(chunk.frames)]
        blocks = [
            Block(
                span=Span.of_frames(part[first : first + self.block_anchors]),
                cue=Cue(prompt=chunk_of_frame[part[0]].cue.prompt),
                given=part[0] < given,
            )
            for part in parts
            for first in range(0, len(part), self.block_anchors)
        ]
        return Layout(
            blocks=tuple(blocks),
            chunks=tuple(chunks),
            windows=tuple(self._window(chunk, total) for chunk in chunks),
            planner_history=self.planner_history,
            history=self.history(max(chunk.frames for chunk in chunks)),
            slots=self.slots(len(blocks), len(parts)),
            steps=steps,
        )

    def _window(self, chunk: Chunk, total: int) -> tuple[int, int]:
        """First and last latent frame of the anchors that a chunk reads; (0, -1): of none."""
        centre = chunk.start_frame + (chunk.frames - 1) / 2
        by_distance = sorted(self._anchors(total), key=lambda frame: (abs(frame - centre), frame))
        nearest = by_distance[: self.anchor_window]
        return min(nearest, default=0), max(nearest, default=-1)

    def run(self, stage: Stage) -> Iterator[tuple[Chunk, Tensor]]:
        layout = self.layout(stage.chunks, stage.steps)
        for chunk in stage.in_work():
            if chunk.index < layout.first_remembered:
                yield chunk, stage.given(chunk.span)
        latents = Latents({}, {})

        def run_one(work: Work, stage: Stage):
            make = self._render if work.kind == "render" else self._plan
            make(work, layout, stage, latents)

        for work in stage.walk(layout.part(stage.piece), run_one):
            if work.kind == "render" and work.step == stage.steps - 1:
                yield layout.chunks[work.number], latents.chunks.pop(work.number)

    def _plan(self, work: Work, layout: Layout, stage: Stage, latents: Latents):
        """A step of an anchor block, or its clean forward."""
        block = layout.blocks[work.number]
        forward = layout.block_forward(work.number, work.step)
        if work.number not in latents.blocks:
            # The slot is empty from here on.
            stage.begin(forward, oldest=layout.chunks[-1].end_frame)
            start = stage.given(block.span) if block.given else stage.noise(block.span)
            latents.blocks[work.number] = start
        if work.kind == "plan":
            x0 = stage.denoise(forward, latents.blocks[work.number])
            latents.blocks[work.number] = stage.renoise(forward, x0)
        else:
            stage.write(forward, latents.blocks.pop(work.number), 0.0)

    def _render(self, work: Work, layout: Layout, stage: Stage, latents: Latents):
        """A step of a chunk. Given ones enter the stage's cache as noisy as chunks are there."""
        chunk = layout.chunks[work.number]
        forward = layout.chunk_forward(work.number, work.step)
        oldest = layout.chunks[max(0, work.number - layout.history)] if layout.history else chunk
        stage.begin(forward, oldest.start_frame)
        if chunk.given:
            sigma = stage.sigmas[work.step]
            noisy = (1 - sigma) * stage.given(chunk.span) + sigma * stage.noise(chunk.span)
            stage.write(forward, noisy, sigma)
            latents.chunks[work.number] = stage.given(chunk.span)
            return
        x = stage.noise(chunk.span) if work.step == 0 else latents.chunks[work.number]
        x0 = stage.denoise(forward, x)
        stage.commit(forward.cache)
        x = stage.renoise(forward, x0)
        if work.step + 1 < stage.steps:
            # Copied to the next lane before this lane goes on to its next chunk, which a later copy
            # would have to wait for.
            x = stage.bring(x, stage_cache(work.step + 1))
        latents.chunks[work.number] = x
