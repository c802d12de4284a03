"""The table at the end: a row for each policy, intervals over tasks."""

from collections.abc import Mapping, Sequence

import torch
from support.intervals import interval

from .scores import DIRECT, OWN

FULL = "full"


def table(records: Mapping[str, Mapping[str, Sequence[dict]]]) -> list[dict]:
    """`records`: by row and by task, of each seed. A mean over tasks is of each task's mean over
    its seeds; ci95 is half the width of the bootstrap interval over tasks.
    """
    full_fps = frames_per_second(records[FULL]) if records.get(FULL) else None
    rows = []
    for name, tasks in records.items():
        if not tasks:
            continue
        fps = frames_per_second(tasks)
        takes = [record for seeds in tasks.values() for record in seeds]
        row = {
            "policy": name,
            "tasks": len(tasks),
            "takes": len(takes),
            **mean_of("prune_ratio", tasks, lambda record: record["prune_ratio"]),
            "fps": fps,
            "speedup": fps / full_fps if full_fps else None,
            "cache_gib": max(record["peak_cache_bytes"] for record in takes) / 2**30,
        }
        for measure in (DIRECT, OWN):
            if all(measure in record.get("scores", {}) for record in takes):
                row |= mean_of(
                    measure, tasks, lambda record, m=measure: record["scores"][m]["score"]
                )
        rows.append(row)
    columns = list(dict.fromkeys(key for row in rows for key in row))
    return [{key: row.get(key) for key in columns} for row in rows]


def mean_of(name: str, tasks: Mapping[str, Sequence[dict]], value) -> dict[str, float]:
    """The mean over tasks, and its interval."""
    of_tasks = torch.tensor(
        [sum(map(value, seeds)) / len(seeds) for seeds in tasks.values()], dtype=torch.float64
    )
    half = interval(lambda pick: of_tasks[pick].mean(-1), len(of_tasks))
    return {name: float(of_tasks.mean()), f"{name} ci95": half}


def frames_per_second(tasks: Mapping[str, Sequence[dict]]) -> float:
    """Of all continuations together: pixel frames over seconds."""
    measured = [record["measured"] for seeds in tasks.values() for record in seeds]
    seconds = sum(each["continuation_seconds"] for each in measured)
    return sum(m["continuation_seconds"] * m["frames_per_second"] for m in measured) / seconds
