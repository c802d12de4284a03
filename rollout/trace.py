"""Looks into the caches while a take runs: a row for each chunk, and what is known at its end."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import Lock
from time import perf_counter

import torch

from ..kv_policies import Bank, Chunk, Forward
from .chunk_row import ChunkRow
from .memory_map import MemoryMap, MemoryWatch
from .session import Session
from .stream import Stream


@dataclass(frozen=True, kw_only=True)
class Held:
    """What the caches hold while a chunk is made, see `ChunkRow`."""

    kept_tokens: int
    full_tokens: int
    bank_tokens: tuple[int, ...]
    bank_bytes: tuple[int, ...]
    allocated_bytes: int
    host_bytes: int
    feature_bytes: int = 0
    forecast_steps: tuple[int, ...] = ()
    action_bytes: int = 0
    reads: tuple[float, ...] = ()


# of a chunk that was given before the first forward
NOTHING = Held(
    kept_tokens=0,
    full_tokens=0,
    bank_tokens=(0,),
    bank_bytes=(0,),
    allocated_bytes=0,
    host_bytes=0,
)


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
        self._notes: dict[str, list[int]] = {}  # the items of each
        self.scores: dict | None = None
        self.memory_maps: list[MemoryMap] = []  # by item
        self.bank_names: tuple[str, ...] = ()
        self._lock = Lock()  # forwards may run in several threads
        self._phases: dict[tuple[int, str], float] = defaultdict(float)  # by chunk and name
        self._held: dict[int, Held] = {}  # by chunk
        self._watch: MemoryWatch | None = None  # of the item in work

    def note(self, text: str):
        """Add a note on the item in work."""
        items = self._notes.setdefault(text, [])
        if self.item not in items:
            items.append(self.item)

    @property
    def notes(self) -> list[str]:
        """One that does not hold for every item of the batch so far names its own."""
        return [
            text if len(items) == self.item + 1 else f"{_takes(items)} of the batch: {text}"
            for text, items in self._notes.items()
        ]

    @contextmanager
    def phase(self, name: str, chunk: Chunk) -> Iterator[None]:
        """Count the time of what is done inside to a chunk."""
        began = perf_counter()
        yield
        with self._lock:
            self._phases[chunk.index, name] += perf_counter() - began

    @contextmanager
    def phase_after(self, name: str) -> Iterator[None]:
        """Count the time of what is done inside to the chunk that was finished last."""
        began = perf_counter()
        yield
        seconds = perf_counter() - began
        row = self.rows[-1]
        phases = {**row.seconds_by_phase, name: row.seconds_by_phase.get(name, 0.0) + seconds}
        self.rows[-1] = replace(row, seconds=row.seconds + seconds, seconds_by_phase=phases)

    def measure(self, session: Session, forward: Forward):
        """Look into the caches as a forward sees them. What it holds goes into its chunk's row,
        unless it works ahead of the chunk.
        """
        with session.lock, self._lock:
            streams = list(session.streams.values())
            banks = [_banks(stream, session.policy.schedule.lane) for stream in streams]
            names = tuple(banks[0]) if banks else ()
            allocated = sum(stream.nbytes() for stream in streams)
            self.bank_names = self.bank_names or names
            self.peak_cache_bytes = max(self.peak_cache_bytes, allocated)
            self.streams = max(self.streams, len(streams))
            if forward.is_ahead:
                return
            tokens = [sum(bank.committed for bank in banks[0][name]) for name in names]
            live = [
                sum(bank.live_bytes(bank.committed) for stream in banks for bank in stream[name])
                for name in names
            ]
            chunk, geometry = forward.chunk, session.geometry
            shot_tokens = (chunk.start_frame - chunk.cue.shot) * geometry.tokens_per_frame
            self._held[chunk.index] = Held(
                kept_tokens=sum(_history_tokens(stream, forward) for stream in streams),
                full_tokens=shot_tokens * geometry.layers * geometry.heads * len(streams),
                bank_tokens=tuple(tokens) or (0,),
                bank_bytes=tuple(live) or (0,),
                allocated_bytes=allocated,
                host_bytes=sum(stream.main_bytes() for stream in streams),
                feature_bytes=sum(stream.feature_bytes() for stream in streams),
                forecast_steps=_forecast_steps(streams),
                action_bytes=sum(stream.action_bytes() for stream in streams),
            )
            # Once a chunk is enough: what is shown is equal at every step.
            if self.watches and streams and forward.step >= session.take.steps - 1:
                self._look(streams[0], forward, session.take.total_frames)

    def _look(self, stream: Stream, forward: Forward, total_frames: int):
        """Which tokens of the take are in reach of a chunk, and which frames it read."""
        chunk = forward.chunk
        if self._watch is None:
            self._watch = MemoryWatch(stream, forward.cache, total_frames)
        groups = (ids for view in stream.held(forward) for ids in view.history_ids_by_group())
        self._watch.see(chunk.index, enumerate(groups))
        reads = stream.selection.reads(chunk)
        if reads is None:
            reads = stream.retention.reads(chunk)
        if reads is not None:
            shares = reads[: chunk.start_frame].tolist()
            held = self._held[chunk.index]
            self._held[chunk.index] = replace(held, reads=tuple(round(x, 4) for x in shares))

    def conclude(self, session: Session):
        """What one item's take leaves: the policy's notes and scores, and which tokens were in
        memory when.
        """
        stream = next(iter(session.streams.values()))
        for text in (*stream.retention.notes, *stream.selection.notes):
            self.note(text)
        if stream.retention.histogram is not None:
            self._add_scores(stream.retention.histogram.to_dict())
        if self._watch:
            rows = [row for row in self.rows if row.item == self.item]
            self.memory_maps.append(self._watch.map(rows))
        self._watch = None
        self._widen_rows()

    def _add_scores(self, scores: dict):
        """Add one item's counts to those of the items before."""
        if self.scores:
            counts = [a + b for a, b in zip(self.scores["counts"], scores["counts"])]
            scores = {**scores, "counts": counts, "kept": self.scores["kept"] + scores["kept"]}
        self.scores = scores

    def _widen_rows(self):
        """Give every row a number for each bank: chunks that were given before the first forward
        know of none.
        """
        banks = max(len(row.bank_tokens) for row in self.rows)

        def padded(values: tuple[int, ...]) -> tuple[int, ...]:
            return values + (0,) * (banks - len(values))

        self.rows = [
            replace(row, bank_tokens=padded(row.bank_tokens), bank_bytes=padded(row.bank_bytes))
            for row in self.rows
        ]

    def finish(self, chunk: Chunk):
        """A chunk's row, from what was measured and timed for it."""
        with self._lock:
            names = [name for index, name in self._phases if index == chunk.index]
            phases = {name: self._phases.pop((chunk.index, name)) for name in names}
            held = self._held.pop(chunk.index, NOTHING)
        self.rows.append(
            ChunkRow(
                item=self.item,
                index=chunk.index,
                start_frame=chunk.start_frame,
                frames=chunk.frames,
                given=chunk.given,
                seconds=sum(phases.values()),
                seconds_by_phase=phases,
                **vars(held),
            )
        )


def _takes(items: list[int]) -> str:
    numbers = [str(item + 1) for item in items]
    return f"Take {numbers[0]}" if len(items) == 1 else f"Takes {', '.join(numbers)}"


def _banks(stream: Stream, lane: Callable[[str], str]) -> dict[str, list[Bank]]:
    """A stream's banks by name: the lane's, with a number where a cache has several."""
    named: dict[str, list[Bank]] = defaultdict(list)
    for cache_name, cache in stream.caches.items():
        for number, bank in enumerate(cache.banks, 1):
            name = lane(cache_name)
            named[f"{name} {number}" if len(cache.banks) > 1 else name].append(bank)
    return named


def _forecast_steps(streams: list[Stream]) -> tuple[int, ...]:
    """Steps of the chunk in work that were forecast."""
    held = [stream.features for stream in streams if stream.features is not None]
    return tuple(sorted(set().union(*(features.forecast_steps for features in held))))


def _history_tokens(stream: Stream, forward: Forward) -> int:
    """History that a forward can read, over layers and heads; a token that lies in two caches
    counts once, and one of a later frame not at all.
    """
    cache = stream.caches[forward.cache]
    if not forward.reads:
        return cache.history_tokens()
    (view,) = stream.views(forward)
    ids = view.history_ids()
    ids = ids[ids < forward.chunk.start_frame * cache.geometry.tokens_per_frame]
    if not len(ids):
        return 0
    # Ids lie close together: marking them is quicker than sorting them.
    marked = torch.zeros(int(ids.max() - ids.min()) + 1, dtype=torch.bool)
    marked[ids - ids.min()] = True
    return int(marked.sum()) * cache.geometry.layers * cache.geometry.heads
