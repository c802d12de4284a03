"""What a take's memory held and cost: one row per chunk while it runs, one frozen value afterwards."""
import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from threading import Lock
from time import perf_counter

import torch
from torch import Tensor

from ..kv_policies import Bank, Chunk, Forward, Geometry
from .session import Session
from .stream import Stream
from .timeline import pixel_frames


@dataclass(frozen=True)
class ChunkRow:
    """One finished chunk. Tokens are summed over layers, heads and streams; bytes over streams."""

    item: int                        # which of the batch
    index: int
    start_frame: int
    frames: int
    given: bool
    kept_tokens: int                 # history that the chunk could read
    full_tokens: int                 # history that FullKV would hold
    bank_tokens: tuple[int, ...]     # history rows of each bank, first stream; `KVStats.bank_names` names them
    bank_bytes: tuple[int, ...]      # their keys and values
    allocated_bytes: int             # the buffers that hold them
    seconds: float                   # of all work on this chunk, wherever it ran, and on anchors that it was the first to wait for
    seconds_by_phase: dict[str, float]      # denoise, probe, clean, recache, policy


@dataclass(frozen=True)
class KVStats:
    """Everything that KV Memory Stats shows, as a value."""

    policy: dict
    geometry: Geometry
    dtype: str
    steps: int
    temporal_compression: int
    streams: int
    chunks: tuple[ChunkRow, ...]
    seconds: float                   # wall time of the sampling
    peak_cache_bytes: int            # most bytes allocated for keys and values at one time
    notes: tuple[str, ...] = ()      # what a user should know about this run
    scores: dict | None = None       # histogram of the policy's scores: score, threshold, edges and counts, over all items
    latent_size: tuple[int, int] = (0, 0)    # height and width
    memory_maps: tuple[Tensor, ...] = ()     # by item `[T, h, w]`, 0 to 1: share of layers and heads in which the last chunk could read a token
    bank_names: tuple[str, ...] = ()
    measured_peaks: dict[str, int] = field(default_factory=dict)     # bytes in use by where, seen while the take ran: weights and all else included
    given_frames: int = 0            # latent frames of one batch item that were given

    @property
    def frames(self) -> int:
        """Latent frames of one batch item, those of an earlier run included."""
        return self.chunks[-1].start_frame + self.chunks[-1].frames

    @property
    def pixel_frames(self) -> int:
        return pixel_frames(self.frames, self.temporal_compression)

    @property
    def given_pixel_frames(self) -> int:
        return pixel_frames(self.given_frames, self.temporal_compression)

    @property
    def prune_ratio(self) -> float:
        """1 - kept / all history tokens, over generated chunks, layers and heads (DeCoPrune, arXiv 2609.39096)."""
        rows = [row for row in self.chunks if not row.given]
        full = sum(row.full_tokens for row in rows)
        return 1 - sum(row.kept_tokens for row in rows) / full if full else 0.0

    def to_dict(self) -> dict:
        kept = [[round(share, 4) for share in item.flatten(1).mean(1).tolist()] for item in self.memory_maps]
        told = asdict(replace(self, memory_maps=()))
        del told["memory_maps"]
        return {**told, "frames": self.frames, "pixel_frames": self.pixel_frames,
                "given_pixel_frames": self.given_pixel_frames, "prune_ratio": self.prune_ratio, "kept_by_frame": kept}

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=1)

    def report(self) -> str:
        """The stats in words, for a node or a terminal."""
        phases: dict[str, float] = defaultdict(float)
        for row in self.chunks:
            for name, seconds in row.seconds_by_phase.items():
                phases[name] += seconds
        slots = "; ".join(f"{slot}: {_sentence(part)}" for slot, part in self.policy.items())
        last = self.chunks[-1]
        lines = [
            f"{last.item + 1} take(s) of {self.frames} latent frames ({self.pixel_frames} pixel frames), {self.given_frames} ({self.given_pixel_frames}) of them given; "
            f"{last.index + 1} chunks, {self.steps} steps for each new one; {self.streams} prompt stream(s) with a cache each",
            f"policy - {slots}",
            f"cache - peak {_mib(self.peak_cache_bytes)} allocated ({self.dtype}); at the last chunk {_mib(sum(last.bank_bytes))} of history",
            f"prune ratio - {self.prune_ratio:.1%} of all history tokens were not kept",
            f"time - {self.seconds:.1f} s; work: " + ", ".join(f"{name} {s:.1f} s" for name, s in phases.items()),
        ]
        if self.measured_peaks:
            lines.append("measured peaks, weights included - " + ", ".join(f"{_mib(nbytes)} {where}" for where, nbytes in self.measured_peaks.items()))
        if self.scores:
            lines.append(f"scores - {_shares_above(self.scores)}")
        return "\n".join([*lines, *self.notes])


def _sentence(part: dict) -> str:
    values = ", ".join(f"{key} {value}" for key, value in part.items() if key != "name")
    return part["name"] + (f" ({values})" if values else "")


def _shares_above(scores: dict) -> str:
    """What some thresholds would keep; the bins' edges are exact there."""
    counts, total = scores["counts"], sum(scores["counts"])
    if not total:
        return f"{scores['score']}: no chunk was scored"
    told = ", ".join(f"{sum(counts[scores['edges'].index(edge) + 1:]) / total:.1%} above {edge:g}" for edge in (.001, .01, .1, 1))
    return f"{scores['score']} of {total} tokens: {told}" + (f"; threshold {scores['threshold']:g}" if scores["threshold"] is not None else "")


def _mib(size: int) -> str:
    return f"{size / 2 ** 20:,.1f} MiB"


class Trace:
    """Filled by the loop; lives as long as one sampling call."""

    def __init__(self):
        self.rows: list[ChunkRow] = []
        self.peak_cache_bytes = 0
        self.streams = 0
        self.item = 0
        self.notes: list[str] = []
        self.scores: dict | None = None
        self.memory_maps: list[Tensor] = []
        self.bank_names: tuple[str, ...] = ()
        self._lock = Lock()              # forwards may run in several threads
        self._phases: dict[tuple[int, str], float] = defaultdict(float)     # by chunk and name
        self._memory: dict[int, dict] = {}                                  # by chunk

    def note(self, text: str):
        if text not in self.notes:       # the batch's items tell the same
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
            tokens = {name: sum(bank.committed for bank in group) for name, group in (banks[0].items() if banks else ())}
            live = [sum(bank.live_bytes(bank.committed) for of_stream in banks for bank in of_stream[name]) for name in tokens]
            allocated = sum(stream.nbytes() for stream in streams)
            self.bank_names = self.bank_names or tuple(tokens)
            self.peak_cache_bytes, self.streams = max(self.peak_cache_bytes, allocated), max(self.streams, len(streams))
            self._memory[forward.chunk.index] = dict(
                kept_tokens=sum(_history_tokens(stream, forward) for stream in streams),
                full_tokens=(forward.chunk.start_frame - forward.chunk.shot) * g.tokens_per_frame * g.layers * g.heads * len(streams),
                bank_tokens=tuple(tokens.values()) or (0,), bank_bytes=tuple(live) or (0,), allocated_bytes=allocated)

    def conclude(self, session: Session):
        """What one item's take leaves: the policy's notes and scores, and which tokens its last chunk could read."""
        streams = list(session.streams.values())
        for text in (*streams[0].retention.notes, *streams[0].selection.notes):
            self.note(text)
        if streams[0].retention.histogram is not None:
            told = streams[0].retention.histogram.to_dict()
            before = self.scores["counts"] if self.scores else [0] * len(told["counts"])
            self.scores = {**told, "counts": [a + b for a, b in zip(before, told["counts"])]}
        g = session.geometry
        kept = torch.zeros(session.take.total_frames * g.tokens_per_frame)
        for bank in (bank for cache in streams[0].caches.values() for bank in cache.banks):
            kept[bank.frame[:bank.length] * g.tokens_per_frame + bank.cell[:bank.length]] += sum(map(len, bank.heads)) / (g.layers * g.heads)
        kept = kept.clamp(max=1).view(-1, *g.grid)
        last = self.rows[-1]
        kept[last.start_frame:] = 1                  # the last chunk reads itself
        self.memory_maps.append(kept[:last.start_frame + last.frames])
        banks = max(len(row.bank_tokens) for row in self.rows)       # chunks that were given before the first forward know of none
        self.rows = [replace(row, bank_tokens=row.bank_tokens + (0,) * (banks - len(row.bank_tokens)),
                             bank_bytes=row.bank_bytes + (0,) * (banks - len(row.bank_bytes))) for row in self.rows]

    def finish(self, chunk: Chunk):
        phases: dict[str, float] = defaultdict(float)
        with self._lock:
            for index, name in list(self._phases):
                if index == chunk.index or index < 0:        # anchors have negative numbers
                    phases[name] += self._phases.pop((index, name))
            memory = self._memory.pop(chunk.index, None) or dict(kept_tokens=0, full_tokens=0, bank_tokens=(0,), bank_bytes=(0,), allocated_bytes=0)
        self.rows.append(ChunkRow(self.item, chunk.index, chunk.start_frame, chunk.frames, chunk.given, **memory,
                                  seconds=sum(phases.values()), seconds_by_phase=dict(phases)))


def _banks(stream: Stream, lane: Callable[[str], str]) -> dict[str, list[Bank]]:
    """A stream's banks by their names: that of the lane, with a number where a memory has several."""
    named: dict[str, list[Bank]] = defaultdict(list)
    for memory, cache in stream.caches.items():
        for number, bank in enumerate(cache.banks, 1):
            named[f"{lane(memory)} {number}" if len(cache.banks) > 1 else lane(memory)].append(bank)
    return named


def _history_tokens(stream: Stream, forward: Forward) -> int:
    """History that a forward can read, over layers and heads; a token that lies in two memories counts once, and one of a later frame not at all."""
    cache = stream.caches[forward.memory]
    if not forward.reads:
        return cache.history_tokens()
    parts = [(cache.banks[0], slice(0, cache.banks[0].committed))]
    parts += [(bank, bank.rows_of(first, last)) for name, first, last in forward.reads for bank in stream.caches[name].banks[:1]]
    names = torch.cat([bank.frame[rows] * bank.geometry.tokens_per_frame + bank.cell[rows] for bank, rows in parts])
    names = names[names < forward.chunk.start_frame * cache.geometry.tokens_per_frame]
    if not len(names):
        return 0
    named = torch.zeros(int(names.max() - names.min()) + 1, dtype=torch.bool)      # names lie close together: quicker than sorting them
    named[names - names.min()] = True
    return int(named.sum()) * cache.geometry.layers * cache.geometry.heads
