"""What a take's memory held and cost: one row per chunk while it runs, one frozen value afterwards."""

import json
from collections import defaultdict
from dataclasses import asdict, dataclass, field, replace

from ..kv_policies import Geometry
from .chunk_row import ChunkRow
from .memory_map import MemoryMap
from .timeline import pixel_frames


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
    seconds: float  # wall time of the sampling
    peak_cache_bytes: int  # most bytes allocated for keys and values at one time
    notes: tuple[str, ...] = ()  # what a user should know about this run
    scores: dict | None = (
        # histogram of the policy's scores: score, threshold, edges and counts, and how many were to
        # stay; of all items
        None
    )
    latent_size: tuple[int, int] = (0, 0)  # height and width
    memory_maps: tuple[MemoryMap, ...] = ()  # by item
    bank_names: tuple[str, ...] = ()
    measured_peaks: dict[str, int] = field(
        default_factory=dict
    )  # bytes in use by where, seen while the take ran: weights and all else included
    given_frames: int = 0  # latent frames of one batch item that were given
    planned_bytes: tuple[int, int] | None = (
        # what `peak_cache_bytes` was to be by the estimate before the run: at least, and at most
        None
    )

    @property
    def peak_host_bytes(self) -> int:
        """Of `peak_cache_bytes`, those in main memory by choice; buffers grow and do not shrink, so
        both have their peak together.
        """
        return max(row.host_bytes for row in self.chunks)

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
        """1 - kept / all history tokens, over the chunks that this run generated, layers and heads
        (DeCoPrune, arXiv 2609.39096).
        """
        rows = [row for row in self.chunks if not row.given]
        full = sum(row.full_tokens for row in rows)
        return 1 - sum(row.kept_tokens for row in rows) / full if full else 0.0

    def rows_of(self, item: int) -> list[ChunkRow]:
        """The chunks of one of the batch."""
        return [row for row in self.chunks if row.item == item]

    def to_dict(self) -> dict:
        ends = [
            (map_of_item, self.rows_of(item)[-1])
            for item, map_of_item in enumerate(self.memory_maps)
        ]
        kept = [
            [round(share, 4) for share in map_of_item.at(last).flatten(1).mean(1).tolist()]
            for map_of_item, last in ends
        ]
        told = asdict(replace(self, memory_maps=()))
        del told["memory_maps"]
        return {
            **told,
            "frames": self.frames,
            "pixel_frames": self.pixel_frames,
            "given_pixel_frames": self.given_pixel_frames,
            "prune_ratio": self.prune_ratio,
            "peak_host_bytes": self.peak_host_bytes,
            "kept_by_frame": kept,
            "dropped_by_frame": [map_of_item.dropped(last) for map_of_item, last in ends],
            "head_group_shares": self.memory_maps[0].shares if ends else (),
        }

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
            f"{counted(last.item + 1, 'take')} of {counted(self.frames, 'latent frame')} "
            f"({counted(self.pixel_frames, 'pixel frame')}), "
            + (
                f"{self.given_frames} ({self.given_pixel_frames}) of them given; "
                if self.given_frames
                else "all new; "
            )
            + f"{counted(last.index + 1, 'chunk')}, {counted(self.steps, 'step')} for each new "
            "one; " + f"{counted(self.streams, 'prompt stream')} with a cache each",
            f"policy - {slots}",
            f"cache - peak {_mib(self.peak_cache_bytes)} allocated ({self.dtype}){self._planned()}"
            + (
                f", {_mib(self.peak_host_bytes)} of it in main memory"
                if self.peak_host_bytes
                else ""
            )
            + f"; at the last chunk {_mib(sum(last.bank_bytes))} of history",
            f"prune ratio - {self.prune_ratio:.1%} of all history tokens were not kept"
            + self._carried_on(),
            f"time - {self.seconds:.1f} s; work: "
            + ", ".join(f"{name} {s:.1f} s" for name, s in phases.items()),
        ]
        if self.measured_peaks:
            peaks = ", ".join(
                f"{_mib(nbytes)} {where}" for where, nbytes in self.measured_peaks.items()
            )
            lines.append(f"measured peaks, weights included - {peaks}")
        if self.scores:
            lines.append(f"scores - {_shares_above(self.scores)}")
        return "\n".join([*lines, *self.notes])

    def _planned(self) -> str:
        if not self.planned_bytes:
            return ""
        least, most = map(_mib, self.planned_bytes)
        return f", {least if least == most else f'{least} to {most}'} planned"

    def _carried_on(self) -> str:
        first = self.chunks[0].start_frame
        return (
            f", counted from latent frame {first} on: the chunks before were made in an earlier run"
            if first
            else ""
        )


def _sentence(part: dict) -> str:
    values = ", ".join(f"{key} {value}" for key, value in part.items() if key != "name")
    return part["name"] + (f" ({values})" if values else "")


def _shares_above(scores: dict) -> str:
    """What some thresholds would keep; the bins' edges are exact there."""
    counts, total = scores["counts"], sum(scores["counts"])
    if not total:
        return f"{scores['score']}: no chunk was scored"
    told = ", ".join(
        f"{sum(counts[scores['edges'].index(edge) + 1 :]) / total:.1%} above {edge:g}"
        for edge in (0.001, 0.01, 0.1, 1)
    )
    threshold = f"; threshold {scores['threshold']:g}" if scores["threshold"] is not None else ""
    return f"{scores['score']} of {total} tokens: {scores['kept'] / total:.1%} of them to stay, {told}{threshold}"


def counted(number: int, noun: str) -> str:
    """How many of something: "1 chunk", "2 chunks"."""
    return f"{number} {noun}" + "s" * (number != 1)


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"
