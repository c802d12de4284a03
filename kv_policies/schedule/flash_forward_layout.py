"""FlashForward's take as blocks of anchors and chunks: what each forward reads, and what it waits
for.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from ..take import Chunk, Cue, Forward, Read, Span

ANCHORS = "anchors"


def stage_cache(step: int) -> str:
    """The cache of the keys and values that chunks leave at a step."""
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
        return stage_cache(self.step) if self.kind == "render" else ANCHORS


class Block(NamedTuple):
    """Anchors that are made together."""

    span: Span
    cue: Cue
    given: bool

    @property
    def first(self) -> int:
        """The first anchor's latent frame."""
        return self.span.numbers[0]

    @property
    def last(self) -> int:
        return self.span.numbers[-1]


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A pure value. Anchors lie in a ring of `slots` caches, one block in each, so that a new block
    is made while others are read.
    """

    blocks: tuple[Block, ...]
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
            while planned < len(self.blocks) and self._first_reader[planned] == i:
                self._plan(needs, planned)
                planned += 1
            if i >= self.first_remembered:
                self._render(needs, i)
        return needs

    def _plan(self, needs: dict[Work, tuple[Work, ...]], b: int):
        """Add the forwards of block `b`."""
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

    def _render(self, needs: dict[Work, tuple[Work, ...]], i: int):
        """Add the forwards of chunk `i`."""
        for step in range(self.steps):
            before = [Work("render", i, step - 1), Work("render", i - 1, step)]
            before = [work for work in before if work in needs]
            anchors = [Work("anchor", b, 0) for b in self.anchors_of(i)] if step == 0 else []
            needs[Work("render", i, step)] = (*before, *anchors)

    def part(self, piece: range) -> dict[Work, tuple[Work, ...]]:
        """The graph of what makes those chunks once all chunks before them are made, with the
        anchors that they are the first to need.
        """
        needs = self.graph()
        works = list(needs)
        ends = {
            work.number: place + 1
            for place, work in enumerate(works)
            if work.kind == "render" and work.step == self.steps - 1
        }
        new = works[ends.get(piece.start - 1, 0) : ends.get(piece.stop - 1, 0)]
        made_here = set(new)
        return {work: tuple(need for need in needs[work] if need in made_here) for work in new}

    @property
    def first_remembered(self) -> int:
        """The first given chunk that a generated one still has in its stages' caches."""
        return max(0, sum(chunk.given for chunk in self.chunks) - self.history)

    @cached_property
    def _first_reader(self) -> list[int]:
        """By block, the first chunk whose window reaches it; -1: none, and it is not made."""
        lasts = [last for _, last in self.windows]
        return [
            next((i for i, last in enumerate(lasts) if last >= block.first), -1)
            for block in self.blocks
        ]

    def anchors_of(self, i: int) -> list[int]:
        """The blocks that chunk `i` reads."""
        return self._anchors_by_chunk[i]

    @cached_property
    def _anchors_by_chunk(self) -> list[list[int]]:  # asked for every forward
        return [
            [
                b
                for b, block in enumerate(self.blocks)
                if block.first <= last and block.last >= first
            ]
            for first, last in self.windows
        ]

    def block_forward(self, b: int, step: int = 0) -> Forward:
        """A forward of block `b`, for the chunk that is the first to wait for it."""
        block = self.blocks[b]
        before = range(max(0, b - self.planner_history), b)
        return Forward(
            span=block.span,
            cue=block.cue,
            chunk=self.chunks[max(self._first_reader[b], self.first_remembered)],
            noise_number=-1 - b,
            step=step,
            cache=self.anchor_cache(b),
            reads=tuple(
                Read(self.anchor_cache(other), self.blocks[other].first, self.blocks[other].last)
                for other in before
            ),
        )

    def chunk_forward(self, i: int, step: int) -> Forward:
        """A step of chunk `i`."""
        reads = tuple(Read(self.anchor_cache(b), *self.windows[i]) for b in self.anchors_of(i))
        return Forward.of(self.chunks[i], step, stage_cache(step), reads)

    def anchor_cache(self, b: int) -> str:
        return f"{ANCHORS} {b % self.slots}"
