"""FlashForward's take as blocks of anchors and chunks: what each forward reads, and what it waits
for.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from ..take import Chunk

ANCHORS = "anchors"


def stage(step: int) -> str:
    return f"stage {step}"


class Work(NamedTuple):
    """One forward. "plan": a step of an anchor block; "anchor": its clean forward; "render": a step
    of a chunk.
    """

    kind: str
    number: int  # of the block or the chunk
    step: int

    @property
    def lane(self) -> str:
        return stage(self.step) if self.kind == "render" else ANCHORS


@dataclass(frozen=True)
class Layout:
    """A pure value. Anchors lie in a ring of `slots` memories, one block in each, so that a new
    block is made while others are read.
    """

    blocks: tuple[Chunk, ...]
    chunks: tuple[Chunk, ...]
    windows: tuple[tuple[int, int], ...]  # first and last anchor frame that each chunk reads
    planner_history: int  # blocks that a new one reads
    history: int  # chunks that a stage remembers
    slots: int
    steps: int

    def graph(self) -> dict[Work, tuple[Work, ...]]:
        """Every forward with those it needs, in an order in which one device can run them: anchors
        just ahead of the chunks that read them.

        (chunk i, step k) needs (i, k - 1) and (i - 1, k); its first step needs its anchors. A
        block's first forward needs the block before it, and the last forward that reads what lies
        in its slot.
        """
        needs: dict[Work, tuple[Work, ...]] = {}
        planned = 0
        for i in range(len(self.chunks)):
            while (
                planned < len(self.blocks)
                and self.blocks[planned].start_frame <= self.windows[i][1]
            ):
                self._plan(needs, planned)
                planned += 1
            if i < self.first_remembered:
                continue
            for step in range(self.steps):
                before = [
                    work
                    for work in (Work("render", i, step - 1), Work("render", i - 1, step))
                    if work in needs
                ]
                anchors = [Work("anchor", b, 0) for b in self.anchors_of(i)] if step == 0 else []
                needs[Work("render", i, step)] = (*before, *anchors)
        return needs

    def part(self, piece: range) -> dict[Work, tuple[Work, ...]]:
        """The graph of what makes those chunks once all chunks before them are made, with the
        anchors that they are the first to need.
        """
        needs, last = self.graph(), self.steps - 1
        works = list(needs)
        ends = {
            work.number: place + 1
            for place, work in enumerate(works)
            if work.kind == "render" and work.step == last
        }
        some = works[ends.get(piece.start - 1, 0) : ends.get(piece.stop - 1, 0)]
        new = set(some)
        return {work: tuple(need for need in needs[work] if need in new) for work in some}

    def _plan(self, needs: dict, b: int):
        last = (Work("anchor", b - 1, 0),) if b else ()
        readers = [
            i
            for i in range(self.first_remembered, len(self.chunks))
            if b - self.slots in self.anchors_of(i)
        ]
        if readers:  # after its last step, a chunk has no forward left that could read
            last += (Work("render", readers[-1], self.steps - 1),)
        for step in range(0 if self.blocks[b].given else self.steps):
            needs[Work("plan", b, step)] = last
            last = (Work("plan", b, step),)
        needs[Work("anchor", b, 0)] = last

    @property
    def first_remembered(self) -> int:
        """The first given chunk that a generated one still has in its stages' memory."""
        return max(0, sum(chunk.given for chunk in self.chunks) - self.history)

    def anchors_of(self, i: int) -> list[int]:
        """The blocks that chunk `i` reads."""
        return self._anchors_by_chunk[i]

    @cached_property
    def _anchors_by_chunk(self) -> list[list[int]]:  # asked for every forward
        return [
            [
                b
                for b, block in enumerate(self.blocks)
                if block.start_frame <= last and block.end_frame > first
            ]
            for first, last in self.windows
        ]

    def memory(self, b: int) -> str:
        return f"{ANCHORS} {b % self.slots}"

    def chunk_reads(self, i: int) -> tuple[tuple[str, int, int], ...]:
        return tuple((self.memory(b), *self.windows[i]) for b in self.anchors_of(i))

    def block_reads(self, b: int) -> tuple[tuple[str, int, int], ...]:
        before = range(max(0, b - self.planner_history), b)
        return tuple(
            (self.memory(other), self.blocks[other].start_frame, self.blocks[other].end_frame - 1)
            for other in before
        )
