"""In-flight history and clean anchors: each block of anchors has a clean pass, the chunks have none
(FlashForward, arXiv 2609.32540).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import ClassVar

from torch import Tensor

from ..policy import KVPolicy
from ..retention.retention import Retention
from ..take import BankPlan, Chunk, Geometry, Take
from .flash_forward_layout import ANCHORS, Layout, Work, stage
from .schedule import Schedule


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

    `planner_model` makes what goes into the anchors' memory, `renderer_model` the rest. They are
    nothing to this schedule: the host splits its MODELs off, and a run's policy has words in their
    place.
    """

    anchor_stride: int = 10
    block_anchors: int = 3
    anchor_window: int = 3
    planner_history: int = 6
    stage_history: int = 5
    budget_frames: int = 21
    planner_model: object = field(default=None, repr=False)  # None: the sampler's
    renderer_model: object = field(default=None, repr=False)
    switches: ClassVar = ("swap",)
    extends: ClassVar = False

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

    def check(self, policy: KVPolicy, geometry: Geometry, take: Take):
        policy.require_plain(self)
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
        window = (
            -(-(self.anchor_window - 1) // self.block_anchors) + parts
        )  # one more for each part that ends inside it
        return min(blocks, max(self.planner_history, min(self.anchor_window, window)) + 1)

    def memories(
        self, retention: Retention, geometry: Geometry, take: Take
    ) -> dict[str, list[BankPlan]]:
        parts = self._parts(take.total_frames, take.given_frames, take.prompt_frames)
        blocks = sum(-(-len(part) // self.block_anchors) for part in parts)
        frames = min(
            take.total_frames, (self.history(geometry.chunk_frames) + 1) * geometry.chunk_frames
        )
        most = max(
            frames, min(take.total_frames, self.budget_frames - self.anchor_window)
        )  # of chunks that are all short more may be remembered
        return {
            **{
                f"{ANCHORS} {slot}": [BankPlan(self.block_anchors, self.block_anchors)]
                for slot in range(self.slots(blocks, len(parts)))
            },
            **{stage(step): [BankPlan(frames, most)] for step in range(take.steps)},
        }

    def lane(self, memory: str) -> str:
        return ANCHORS if memory.startswith(ANCHORS) else memory

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
        return [
            list(part)
            for _, part in groupby(
                self._anchors(total), lambda frame: sum(frame >= border for border in borders)
            )
        ]

    def layout(self, chunks: list[Chunk], steps: int) -> Layout:
        total, given = chunks[-1].end_frame, sum(chunk.frames for chunk in chunks if chunk.given)
        blocks: list[Chunk] = []
        prompt = [chunk.prompt for chunk in chunks for _ in range(chunk.frames)]  # by latent frame
        parts = self._parts(total, given, [chunk.start_frame for chunk in chunks if chunk.switch])
        for part in parts:
            known = part[0] < given
            for first in range(0, len(part), self.block_anchors):
                some = part[first : first + self.block_anchors]
                blocks.append(
                    Chunk(
                        -1 - len(blocks),
                        some[0],
                        len(some),
                        known,
                        self.anchor_stride,
                        prompt[part[0]],
                    )
                )
        windows = []
        for chunk in chunks:
            centre = chunk.start_frame + (chunk.frames - 1) / 2
            near = sorted(self._anchors(total), key=lambda frame: (abs(frame - centre), frame))[
                : self.anchor_window
            ]
            windows.append((min(near, default=0), max(near, default=-1)))
        return Layout(
            tuple(blocks),
            tuple(chunks),
            tuple(windows),
            self.planner_history,
            self.history(max(chunk.frames for chunk in chunks)),
            self.slots(len(blocks), len(parts)),
            steps,
        )

    def take(self, rollout) -> Iterator[tuple[Chunk, Tensor]]:
        layout = self.layout(rollout.chunks, rollout.steps)
        for chunk in rollout.in_work():
            if chunk.index < layout.first_remembered:
                yield chunk, rollout.given(chunk)
        noisy: dict[tuple[str, int], Tensor] = {}  # what each block and chunk in work has come to
        for work in rollout.walk(
            layout.part(rollout.piece),
            lambda work, rollout: self._run(work, layout, rollout, noisy),
        ):
            if work.kind == "render" and work.step == rollout.steps - 1:
                yield layout.chunks[work.number], noisy.pop(("render", work.number))

    def _run(self, work: Work, layout: Layout, rollout, noisy: dict):
        """One forward, and what it leaves for others."""
        if work.kind == "render":
            self._render(work, layout, rollout, noisy)
            return
        block, key = layout.blocks[work.number], ("plan", work.number)
        memory, reads = layout.memory(work.number), layout.block_reads(work.number)
        if key not in noisy:
            rollout.forget(memory, layout.chunks[-1].end_frame, block)
            rollout.begin(block, memory)
            noisy[key] = rollout.given(block) if block.given else rollout.noise(block)
        if work.kind == "plan":
            noisy[key] = rollout.renoise(
                block, work.step, rollout.denoise(block, work.step, noisy[key], memory, reads)
            )
        else:
            rollout.write(block, noisy.pop(key), 0.0, memory, reads)

    def _render(self, work: Work, layout: Layout, rollout, noisy: dict):
        chunk, key = layout.chunks[work.number], ("render", work.number)
        memory, reads = stage(work.step), layout.chunk_reads(work.number)
        oldest = layout.chunks[max(0, work.number - layout.history)]
        rollout.forget(memory, oldest.start_frame if layout.history else chunk.start_frame, chunk)
        rollout.begin(chunk, memory)
        if chunk.given:
            sigma = rollout.sigmas[work.step]
            rollout.write(
                chunk,
                (1 - sigma) * rollout.given(chunk) + sigma * rollout.noise(chunk),
                sigma,
                memory,
                reads,
            )
            noisy[key] = rollout.given(chunk)
            return
        x0 = rollout.denoise(
            chunk, work.step, rollout.noise(chunk) if work.step == 0 else noisy[key], memory, reads
        )
        rollout.commit(memory)
        noisy[key] = rollout.renoise(chunk, work.step, x0)
        if (
            work.step + 1 < rollout.steps
        ):  # handed on before this lane goes on to its next chunk, which a later copy would have to wait for
            noisy[key] = rollout.bring(noisy[key], stage(work.step + 1))
