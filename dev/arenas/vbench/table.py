"""A row for each policy and length: VBench's scores, and our speed and memory beside them."""

import re
from collections.abc import Sequence
from pathlib import Path

from ..records import FULL, cache_gib, frames_per_second
from ..results import SETTINGS, read_json
from .scores import read_scores
from .suite import DIMENSIONS
from .takes import VideoFolder, seconds_of
from .totals import TOTALS, totals

NO_TAKES = "{} has no takes. Name the folder that --out named before."
ON_DEVICE = "allocated on the device"  # of a take's measured peaks; a CPU has none


def table(folders: Sequence[tuple[str, int, VideoFolder]]) -> list[dict]:
    """Of folders with the name of their row and their length in latent frames. `speedup` is over
    the row `full` of the same length. The intervals, `ci95`, are in the JSON alone.
    """
    found = [(name, frames, folder, records_of(folder)) for name, frames, folder in folders]
    rows = [row_of(*each) for each in found if each[-1]]
    full = {row["frames"]: row["fps"] for row in rows if row["policy"] == FULL}
    seen = [name for name in DIMENSIONS if any(name in row["scores"] for row in rows)]
    summed = [name for name in TOTALS if any(name in row["totals"] for row in rows)]
    for row in rows:
        fps, scores, sums = full.get(row["frames"]), row.pop("scores"), row.pop("totals")
        row["speedup"] = row["fps"] / fps if fps else None
        row |= {name: sums.get(name) for name in summed}
        row |= {name: scores[name].value if name in scores else None for name in seen}
        row["ci95"] = [[name, scores[name].ci95] for name in seen if name in scores]
    return rows


def row_of(policy: str, frames: int, folder: VideoFolder, records: list[dict]) -> dict:
    scores = read_scores(folder.scores)
    peaks = [record["measured"]["peaks"].get(ON_DEVICE, 0) for record in records]
    return {
        "policy": policy,
        "frames": frames,
        "seconds": seconds_of(frames),
        "videos": len(records),
        "fps": frames_per_second(records),
        "cache_gib": cache_gib(records),
        "device_gib": max(peaks) / 2**30 or None,
        "scores": scores,
        "totals": totals({name: score.value for name, score in scores.items()}),
    }


def records_of(folder: VideoFolder) -> list[dict]:
    """Of the takes that are there."""
    names = sorted(path.stem for path in (folder.folder / "videos").glob("*.mp4"))
    return [folder.read(name) for name in names if folder.has(name)]


def folders_in(out: Path) -> list[tuple[str, int, VideoFolder]]:
    """The folders of takes that lie under `out`, with row and length."""
    found = []
    for known in sorted(out.glob(f"frames_*/*/{SETTINGS}")):
        frames = re.fullmatch(r"frames_(\d+)", known.parents[1].name)
        if frames:
            settings = read_json(known, "Take its folder out.")
            folder = VideoFolder(known.parent, settings)
            found.append((known.parent.name, int(frames[1]), folder))
    if not found:
        raise ValueError(NO_TAKES.format(out))
    return sorted(found, key=lambda each: (each[1], each[0]))
