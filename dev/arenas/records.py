"""What is known of a take, and what the tables of all arenas make of it."""

import statistics
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

from keepsake.rollout.stats import KVStats

from .results import read_record, versions

FULL = "full"  # the row that a speedup is over


def record_of(stats: KVStats, pictures: int, began: float) -> dict:
    """Of a take with so many new pictures, on which work `began`. All but `measured` is the same
    again on the same machine.
    """
    new = [row for row in stats.chunks if not row.given]
    seconds = sum(row.seconds for row in new)
    return {
        "policy": stats.policy,
        # Of the history that the new chunks could read, over layers and heads, their own frames
        # left out: CMBench's seqPR.
        "prune_ratio": stats.prune_ratio,
        "peak_cache_bytes": stats.peak_cache_bytes,
        "notes": list(stats.notes),
        "versions": versions(),
        "measured": {
            "continuation_seconds": seconds,  # without given frames, encoding and decoding
            "frames_per_second": pictures / seconds,
            "context_seconds": sum(row.seconds for row in stats.chunks if row.given),
            "sampling_seconds": stats.seconds,
            "peaks": stats.measured_peaks,
            "take_seconds": perf_counter() - began,
        },
    }


def frames_per_second(records: Sequence[dict]) -> float:
    """Of all new pictures together, by their seconds."""
    measured = [record["measured"] for record in records]
    seconds = sum(each["continuation_seconds"] for each in measured)
    pictures = sum(each["continuation_seconds"] * each["frames_per_second"] for each in measured)
    return pictures / seconds


def cache_gib(records: Sequence[dict]) -> float:
    """The most that a take allocated."""
    return max(record["peak_cache_bytes"] for record in records) / 2**30


def measured_hours(folder: Path, names: Sequence[str]) -> float | None:
    """Hours for all takes of a row by those that are there, on whatever made them; None without
    any.
    """
    files = [folder / f"{name}.json" for name in names]
    records = [read_record(file) for file in files if file.is_file()]
    if not records:
        return None
    seconds = statistics.median(record["measured"]["take_seconds"] for record in records)
    return seconds * len(names) / 3600
