"""In-flight history and clean anchors: no forward that only updates a cache (FlashForward, arXiv 2609.32540)."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from .base import BankPlan, Chunk, Geometry, KVPolicy, Retention, Schedule, Take

ANCHORS = "anchors"


def stage(step: int) -> str:
    return f"stage {step}"


class Work(NamedTuple):
    """One forward. "plan": a step of an anchor block; "anchor": its clean forward; "render": a step of a chunk."""

    kind: str
    number: int                      # of the block or the chunk
    step: int


@dataclass(frozen=True)
class Layout:
    """A take as blocks of anchors and chunks, and which forward waits for which."""

    blocks: tuple[Chunk, ...]
    chunks: tuple[Chunk, ...]
    windows: tuple[tuple[int, int], ...]     # first and last anchor frame that each chunk reads
    history: int                             # chunks that a stage remembers
    steps: int

    def graph(self) -> dict[Work, tuple[Work, ...]]:
        """Every forward with those it needs, in an order in which one device can run them: anchors just ahead of the chunks that read them.

        (chunk i, step k) needs (i, k - 1) and (i - 1, k); its first step needs its anchors.
        """
        needs: dict[Work, tuple[Work, ...]] = {}
        planned = 0
        for i, chunk in enumerate(self.chunks):
            while planned < len(self.blocks) and self.blocks[planned].start_frame <= self.windows[i][1]:
                self._plan(needs, planned)
                planned += 1
            if chunk.given and i < self.first_remembered:
                continue
            for step in range(self.steps):
                before = [work for work in (Work("render", i, step - 1), Work("render", i - 1, step)) if work in needs]
                anchors = [Work("anchor", b, 0) for b, block in enumerate(self.blocks) if step == 0
                           and block.start_frame <= self.windows[i][1] and block.end_frame > self.windows[i][0]]
                needs[Work("render", i, step)] = (*before, *anchors)
        return needs

    def _plan(self, needs: dict, b: int):
        last = (Work("anchor", b - 1, 0),) if b else ()
        for step in range(0 if self.blocks[b].given else self.steps):
            needs[Work("plan", b, step)] = last
            last = (Work("plan", b, step),)
        needs[Work("anchor", b, 0)] = last

    @property
    def first_remembered(self) -> int:
        """The first given chunk that a generated one still has in its stages' memory."""
        return max(0, sum(chunk.given for chunk in self.chunks) - self.history)


@dataclass(frozen=True)
class FlashForward(Schedule):
    """A planner makes sparse clean anchors ahead; a renderer makes every latent frame between them, one forward per step.

    An anchor lies at every `anchor_stride` latent frames; the planner makes `block_anchors` at a time and remembers
    `planner_history` blocks. A chunk reads the `anchor_window` anchors nearest to it, on both sides, and, at each step, the keys and
    values that the last `stage_history` chunks left at the same step. Anchors, history and chunk together hold at most
    `budget_frames`. Anchors only condition: their frames are rendered like all others. An `anchor_window` of 0 makes no anchors, a
    `stage_history` of 0 keeps no history: the paper's ablations.

    `planner_model` makes what goes into the anchors' memory, `renderer_model` the rest. They are nothing to this schedule: the host splits
    its MODELs off, and a run's policy has words in their place.
    """

    anchor_stride: int = 10
    block_anchors: int = 3
    anchor_window: int = 3
    planner_history: int = 6
    stage_history: int = 5
    budget_frames: int = 21
    planner_model: object = field(default=None, repr=False)      # None: the sampler's
    renderer_model: object = field(default=None, repr=False)

    def __post_init__(self):
        for name, least in (("anchor_stride", 1), ("block_anchors", 1), ("anchor_window", 0), ("planner_history", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}. Use at least {least}.")

    def check(self, policy: KVPolicy, geometry: Geometry, take: Take):
        policy.require_plain(self)
        if self.budget_frames < self.anchor_window + geometry.chunk_frames:
            raise ValueError(f"budget_frames is {self.budget_frames}, and the anchor window ({self.anchor_window}) with the chunk in work "
                             f"({geometry.chunk_frames}) needs {self.anchor_window + geometry.chunk_frames}. Use a larger budget_frames.")

    def history(self, chunk_frames: int) -> int:
        """Chunks that a stage remembers within the budget."""
        return min(self.stage_history, (self.budget_frames - self.anchor_window - chunk_frames) // chunk_frames)

    def memories(self, retention: Retention, geometry: Geometry, take: Take) -> dict[str, list[BankPlan]]:
        anchors = -(-take.total_frames // self.anchor_stride) if self.anchor_window else 0
        held = min(anchors, (self.planner_history + 2) * self.block_anchors + self.anchor_window)
        frames = min(take.total_frames, (self.history(geometry.chunk_frames) + 1) * geometry.chunk_frames)
        return {ANCHORS: [BankPlan(held, held)], **{stage(step): [BankPlan(frames, frames)] for step in range(take.steps)}}

    def reports(self, chunks: list[Chunk], steps: int) -> int:
        return sum(work.kind == "plan" or work.kind == "render" and not chunks[work.number].given for work in self.layout(chunks, steps).graph())

    def layout(self, chunks: list[Chunk], steps: int) -> Layout:
        total, given = chunks[-1].end_frame, sum(chunk.frames for chunk in chunks if chunk.given)
        anchors = range(0, total if self.anchor_window else 0, self.anchor_stride)
        blocks: list[Chunk] = []
        for known in (True, False):          # given anchors are in blocks of their own, which take one clean forward
            part = [frame for frame in anchors if (frame < given) == known]
            for first in range(0, len(part), self.block_anchors):
                some = part[first:first + self.block_anchors]
                blocks.append(Chunk(-1 - len(blocks), some[0], len(some), known, self.anchor_stride))
        windows = []
        for chunk in chunks:
            centre = chunk.start_frame + (chunk.frames - 1) / 2
            near = sorted(anchors, key=lambda frame: (abs(frame - centre), frame))[:self.anchor_window]
            windows.append((min(near, default=0), max(near, default=-1)))
        return Layout(tuple(blocks), tuple(chunks), tuple(windows), self.history(max(chunk.frames for chunk in chunks)), steps)

    def take(self, rollout) -> Iterator[tuple[Chunk, Tensor]]:
        layout = self.layout(rollout.chunks, rollout.steps)
        for chunk in rollout.chunks[:layout.first_remembered]:
            yield chunk, rollout.given(chunk)
        noisy: dict[tuple[str, int], Tensor] = {}        # what each block and chunk in work has come to
        for work in layout.graph():
            self._run(work, layout, rollout, noisy)
            if work.kind == "render" and work.step == rollout.steps - 1:
                yield layout.chunks[work.number], noisy.pop(("render", work.number))

    def _run(self, work: Work, layout: Layout, rollout, noisy: dict):
        """One forward, and what it leaves for others."""
        if work.kind != "render":
            block = layout.blocks[work.number]
            if work in (Work("plan", work.number, 0), Work("anchor", work.number, 0)) and (block.given or work.kind == "plan"):
                first = layout.blocks[max(0, work.number - self.planner_history)].start_frame
                rollout.forget(ANCHORS, min(first, self._oldest_read(layout, work.number)), block)
                rollout.begin(block, ANCHORS)
                noisy["plan", work.number] = rollout.given(block) if block.given else rollout.noise(block)
            if work.kind == "plan":
                x0 = rollout.denoise(block, work.step, noisy["plan", work.number], ANCHORS)
                noisy["plan", work.number] = rollout.renoise(block, work.step, x0)
            else:
                rollout.write(block, noisy.pop(("plan", work.number)), 0.0, ANCHORS)
            return
        chunk, memory = layout.chunks[work.number], stage(work.step)
        reads = ((ANCHORS, *layout.windows[work.number]),) if layout.blocks else ()
        oldest = layout.chunks[max(0, work.number - layout.history)]
        rollout.forget(memory, oldest.start_frame if layout.history else chunk.start_frame, chunk)
        rollout.begin(chunk, memory)
        if chunk.given:
            sigma = rollout.sigmas[work.step]
            rollout.write(chunk, (1 - sigma) * rollout.given(chunk) + sigma * rollout.noise(chunk), sigma, memory, reads)
            noisy["render", work.number] = rollout.given(chunk)
            return
        x = rollout.noise(chunk) if work.step == 0 else noisy["render", work.number]
        x0 = rollout.denoise(chunk, work.step, x, memory, reads)
        rollout.commit(memory)
        noisy["render", work.number] = rollout.renoise(chunk, work.step, x0)

    def _oldest_read(self, layout: Layout, block: int) -> int:
        """First anchor frame that the chunk waiting for this block reads."""
        waiting = next((window for window in layout.windows if window[1] >= layout.blocks[block].start_frame), layout.windows[-1])
        return waiting[0]
