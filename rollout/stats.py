"""What a take's KV cache held and what it cost, as one value after the take, and in words."""

import json
from collections import defaultdict
from dataclasses import asdict, dataclass, field, replace

from ..kv_policies import Geometry
from ..kv_policies.words import counted
from .chunk_row import ChunkRow
from .memory_map import MemoryMap
from .timeline import pixel_frames

PRINTED_THRESHOLDS = (0.001, 0.01, 0.1, 1)  # edges of the scores' bins, which are exact there


@dataclass(frozen=True, kw_only=True)
class KVStats:
    """Everything that KV Memory Stats shows, as a value."""

    policy: dict
    geometry: Geometry
    dtype: str
    steps: int
    temporal_compression: int
    streams: int
    chunks: tuple[ChunkRow, ...]
    seconds: float  # wall time of the sampling
    peak_cache_bytes: int  # most bytes allocated for keys and values at one time
    notes: tuple[str, ...] = ()  # what a user should know about this run
    # Histogram of the policy's scores over all items: "score" (its name), "threshold", "edges",
    # "counts", and "kept", the number of tokens that were to stay.
    scores: dict | None = None
    latent_size: tuple[int, int] = (0, 0)  # height and width
    memory_maps: tuple[MemoryMap, ...] = ()  # by item
    bank_names: tuple[str, ...] = ()
    # Most bytes in use by place, seen while the take ran: weights and all else included.
    measured_peaks: dict[str, int] = field(default_factory=dict)
    given_frames: int = 0  # latent frames of one batch item that were given
    # `peak_cache_bytes` by the estimate before the run: at least, and at most.
    planned_bytes: tuple[int, int] | None = None

    def __repr__(self) -> str:
        """Short: where a node fails, the host sends all its inputs to the page in one message."""
        return f"<KVStats of {counted(self.frames, 'latent frame')}>"

    @property
    def peak_host_bytes(self) -> int:
        """Of `peak_cache_bytes`, those that are in main memory by choice. Buffers grow and do not
        shrink, so both peak together.
        """
        return max(row.host_bytes for row in self.chunks)

    @property
    def action_bytes(self) -> int:
        """Of `peak_cache_bytes`, those of the model's action modules."""
        return max(row.action_bytes for row in self.chunks)

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
        """1 - kept / all history tokens, summed over layers, heads, and the chunks that this run
        generated (DeCoPrune, arXiv 2609.39096).
        """
        rows = [row for row in self.chunks if not row.given]
        full = sum(row.full_tokens for row in rows)
        return 1 - sum(row.kept_tokens for row in rows) / full if full else 0.0

    def rows_of(self, item: int) -> list[ChunkRow]:
        """The chunks of one take of the batch."""
        return [row for row in self.chunks if row.item == item]

    def to_dict(self) -> dict:
        maps = [(each, self.rows_of(item)[-1]) for item, each in enumerate(self.memory_maps)]
        kept = [each.at(last).flatten(1).mean(1).tolist() for each, last in maps]
        # Copied by row: `asdict` would copy every number of `reads`.
        fields = asdict(replace(self, memory_maps=(), chunks=()))
        del fields["memory_maps"]
        return {
            **fields,
            "chunks": [dict(vars(row)) for row in self.chunks],
            "frames": self.frames,
            "pixel_frames": self.pixel_frames,
            "given_pixel_frames": self.given_pixel_frames,
            "prune_ratio": self.prune_ratio,
            "peak_host_bytes": self.peak_host_bytes,
            "action_bytes": self.action_bytes,
            "kept_by_frame": [[round(share, 4) for share in shares] for shares in kept],
            "dropped_by_frame": [each.dropped(last) for each, last in maps],
            "head_group_shares": self.memory_maps[0].shares if maps else (),
        }

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=1)

    def report(self) -> str:
        """The stats in words, for a node or a terminal."""
        slots = [f"{slot}: {_slot_words(part)}" for slot, part in self.policy.items()]
        lines = [
            self._frames_words(),
            f"policy - {'; '.join(slots)}",
            self._cache_words(),
            self._pruned_words(),
            self._time_words(),
        ]
        if any(row.forecast_steps for row in self.chunks):
            lines.append(self._forecast_words())
        if self.measured_peaks:
            peaks = [f"{_mib(nbytes)} {place}" for place, nbytes in self.measured_peaks.items()]
            lines.append(f"measured peaks, weights included - {', '.join(peaks)}")
        if self.scores:
            lines.append(f"scores - {_scores_words(self.scores)}")
        return "\n".join([*lines, *self.notes])

    def _frames_words(self) -> str:
        last = self.chunks[-1]
        given = "all new"
        if self.given_frames:
            given = f"{self.given_frames} ({self.given_pixel_frames}) of them given"
        return (
            f"{counted(last.item + 1, 'take')} of {counted(self.frames, 'latent frame')} "
            f"({counted(self.pixel_frames, 'pixel frame')}), {given}; "
            f"{counted(last.index + 1, 'chunk')}, {counted(self.steps, 'step')} for each new one; "
            f"{counted(self.streams, 'prompt stream')} with a cache each"
        )

    def _cache_words(self) -> str:
        words = f"cache - peak {_mib(self.peak_cache_bytes)} allocated ({self.dtype})"
        if self.planned_bytes:
            least, most = map(_mib, self.planned_bytes)
            words += f", {least if least == most else f'{least} to {most}'} planned"
        if self.peak_host_bytes:
            words += f", {_mib(self.peak_host_bytes)} of it in main memory"
        if self.action_bytes:
            words += (
                f", {_mib(self.action_bytes)} of it for the keys and mouse of the latest "
                f"{self.geometry.actions.window_frames} latent frames"
            )
        history = sum(self.chunks[-1].bank_bytes)
        return f"{words}; at the last chunk {_mib(history)} of history"

    def _pruned_words(self) -> str:
        words = f"prune ratio - {self.prune_ratio:.1%} of all history tokens were not kept"
        first = self.chunks[0].start_frame
        if first:
            words += (
                f", counted from latent frame {first} on: the chunks before were made in an "
                "earlier run"
            )
        return words

    def _time_words(self) -> str:
        phases: dict[str, float] = defaultdict(float)
        for row in self.chunks:
            for name, seconds in row.seconds_by_phase.items():
                phases[name] += seconds
        work = [f"{name} {seconds:.1f} s" for name, seconds in phases.items()]
        return f"time - {self.seconds:.1f} s; work: {', '.join(work)}"

    def _forecast_words(self) -> str:
        rows = [row for row in self.chunks if not row.given]
        forecast = [step for row in rows for step in row.forecast_steps]
        steps = ", ".join(map(str, sorted(set(forecast))))
        return (
            f"forecast - {len(forecast)} of the {self.steps * len(rows)} steps of new chunks were "
            f"not computed (step {steps}, counted from 0); at most "
            f"{_mib(max(row.feature_bytes for row in rows))} of outputs were held for them"
        )


def _slot_words(part: dict) -> str:
    values = [f"{key} {value}" for key, value in part.items() if key != "name"]
    return part["name"] + (f" ({', '.join(values)})" if values else "")


def _scores_words(scores: dict) -> str:
    """The share of tokens that was to stay, and what other thresholds would keep."""
    name, counts, edges = scores["score"], scores["counts"], scores["edges"]
    total = sum(counts)
    if not total:
        return f"{name}: no chunk was decided yet"

    def above(edge: float) -> str:
        return f"{sum(counts[edges.index(edge) + 1 :]) / total:.1%} above {edge:g}"

    words = (
        f"{name} of {total} tokens: {scores['kept'] / total:.1%} of them to stay, "
        f"{', '.join(map(above, PRINTED_THRESHOLDS))}"
    )
    threshold = scores["threshold"]
    return words if threshold is None else f"{words}; threshold {threshold:g}"


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"
