"""Looks into the memories while a take runs: a row for each chunk, and what is known at its end."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from threading import Lock
from time import perf_counter

import torch
from torch import Tensor

from ..kv_policies import Bank, Chunk, Forward
from .chunk_row import ChunkRow
from .memory_map import MemoryMap, MemoryWatch
from .session import Session
from .stream import Stream


class Trace:
    """Filled by the loop; lives as long as one sampling call."""

    def __init__(self, watches: bool = True):
        """With `watches` it also makes memory maps, which takes a look at every token of the
        history in each chunk.
        """
        self.watches = watches
        self.rows: list[ChunkRow] = []
        self.peak_cache_bytes = 0
        self.streams = 0
        self.item = 0
        self.notes: list[str] = []
        self.scores: dict | None = None
        self.memory_maps: list[MemoryMap] = []  # by item
        self.bank_names: tuple[str, ...] = ()
        self._lock = Lock()  # forwards may run in several threads
        self._phases: dict[tuple[int, str], float] = defaultdict(float)  # by chunk and name
        self._memory: dict[int, dict] = {}  # by chunk
        self._watch: MemoryWatch | None = None  # of the item in work

    def note(self, text: str):
        if text not in self.notes:  # the batch's items tell the same
            self.notes.append(text)

    @contextmanager
    def phase(self, name: str, chunk: Chunk) -> Iterator[None]:
        began = perf_counter()
        yield
        with self._lock:
            self._phases[chunk.index, name] += perf_counter() - began

    def measure(self, session: Session, forward: Forward):
        """Read the memories as the chunk in work sees them."""
        with session.lock, self._lock:
            g, streams = session.geometry, list(session.streams.values())
            banks = [_banks(stream, session.policy.schedule.lane) for stream in streams]
            tokens = {
                name: sum(bank.committed for bank in group)
                for name, group in (banks[0].items() if banks else ())
            }
            live = [
                sum(
                    bank.live_bytes(bank.committed)
                    for of_stream in banks
                    for bank in of_stream[name]
                )
                for name in tokens
            ]
            allocated = sum(stream.nbytes() for stream in streams)
            self.bank_names = self.bank_names or tuple(tokens)
            self.peak_cache_bytes, self.streams = (
                max(self.peak_cache_bytes, allocated),
                max(self.streams, len(streams)),
            )
            self._memory[forward.chunk.index] = dict(
                kept_tokens=sum(_history_tokens(stream, forward) for stream in streams),
                full_tokens=(forward.chunk.start_frame - forward.chunk.shot)
                * g.tokens_per_frame
                * g.layers
                * g.heads
                * len(streams),
                bank_tokens=tuple(tokens.values()) or (0,),
                bank_bytes=tuple(live) or (0,),
                allocated_bytes=allocated,
                host_bytes=sum(stream.host_bytes() for stream in streams),
            )
            if (
                self.watches and streams and forward.step >= session.take.steps - 1
            ):  # once a chunk: steps differ in nothing that is told
                self._look(streams[0], forward, session.take.total_frames)

    def _look(self, stream: Stream, forward: Forward, frames: int):
        """Which tokens of the take are in reach of a chunk, and which frames it read."""
        self._watch = self._watch or MemoryWatch(stream, forward.memory, frames)
        self._watch.see(forward.chunk.index, _in_reach(stream, forward))
        reads = stream.selection.reads(forward.chunk)
        if reads is not None:
            self._memory[forward.chunk.index]["reads"] = tuple(
                round(share, 4) for share in reads[: forward.chunk.start_frame].tolist()
            )

    def conclude(self, session: Session):
        """What one item's take leaves: the policy's notes and scores, and which tokens were in
        memory when.
        """
        streams = list(session.streams.values())
        for text in (*streams[0].retention.notes, *streams[0].selection.notes):
            self.note(text)
        if streams[0].retention.histogram is not None:
            told = streams[0].retention.histogram.to_dict()
            before = self.scores or {"counts": [0] * len(told["counts"]), "kept": 0}
            self.scores = {
                **told,
                "counts": [a + b for a, b in zip(before["counts"], told["counts"])],
                "kept": before["kept"] + told["kept"],
            }
        if self._watch:
            self.memory_maps.append(
                self._watch.map([row for row in self.rows if row.item == self.item])
            )
        self._watch = None
        banks = max(
            len(row.bank_tokens) for row in self.rows
        )  # chunks that were given before the first forward know of none
        self.rows = [
            replace(
                row,
                bank_tokens=row.bank_tokens + (0,) * (banks - len(row.bank_tokens)),
                bank_bytes=row.bank_bytes + (0,) * (banks - len(row.bank_bytes)),
            )
            for row in self.rows
        ]

    def finish(self, chunk: Chunk):
        phases: dict[str, float] = defaultdict(float)
        with self._lock:
            for index, name in list(self._phases):
                if index == chunk.index or index < 0:  # anchors have negative numbers
                    phases[name] += self._phases.pop((index, name))
            memory = self._memory.pop(chunk.index, None) or dict(
                kept_tokens=0, full_tokens=0, bank_tokens=(0,), bank_bytes=(0,), allocated_bytes=0
            )
        self.rows.append(
            ChunkRow(
                item=self.item,
                index=chunk.index,
                start_frame=chunk.start_frame,
                frames=chunk.frames,
                given=chunk.given,
                **memory,
                seconds=sum(phases.values()),
                seconds_by_phase=dict(phases),
            )
        )


def _banks(stream: Stream, lane: Callable[[str], str]) -> dict[str, list[Bank]]:
    """A stream's banks by their names: that of the lane, with a number where a memory has several."""
    named: dict[str, list[Bank]] = defaultdict(list)
    for memory, cache in stream.caches.items():
        for number, bank in enumerate(cache.banks, 1):
            named[f"{lane(memory)} {number}" if len(cache.banks) > 1 else lane(memory)].append(bank)
    return named


def _in_reach(stream: Stream, forward: Forward) -> list[tuple[int, Tensor]]:
    """History that a forward can read, of each bank: its number, and the ids of its tokens, see
    `Bank.token_ids`.
    """
    parts = [
        (number, bank, slice(0, bank.committed))
        for number, bank in enumerate(stream.caches[forward.memory].banks)
    ]
    parts += [
        (0, bank, bank.rows_of(first, last))
        for name, first, last in forward.reads
        for bank in stream.caches[name].banks[:1]
    ]
    return [(number, bank.token_ids()[rows]) for number, bank, rows in parts]


def _history_tokens(stream: Stream, forward: Forward) -> int:
    """History that a forward can read, over layers and heads; a token that lies in two memories
    counts once, and one of a later frame not at all.
    """
    cache = stream.caches[forward.memory]
    if not forward.reads:
        return cache.history_tokens()
    names = torch.cat([names for _, names in _in_reach(stream, forward)])
    names = names[names < forward.chunk.start_frame * cache.geometry.tokens_per_frame]
    if not len(names):
        return 0
    named = torch.zeros(
        int(names.max() - names.min()) + 1, dtype=torch.bool
    )  # names lie close together: quicker than sorting them
    named[names - names.min()] = True
    return int(named.sum()) * cache.geometry.layers * cache.geometry.heads
