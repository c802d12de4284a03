"""The table at the end: a row for each policy, intervals over tasks."""

from collections.abc import Mapping, Sequence

import torch
from support.intervals import interval

from ..records import FULL, cache_gib, frames_per_second
from .scores import DIRECT, OWN


def table(records: Mapping[str, Mapping[str, Sequence[dict]]]) -> list[dict]:
    """`records`: by row and by task, of each seed. A mean over tasks is of each task's mean over
    its seeds; ci95 is half the width of the bootstrap interval over tasks.
    """
    full_fps = frames_per_second(takes_of(records[FULL])) if records.get(FULL) else None
    rows = []
    for name, tasks in records.items():
        if not tasks:
            continue
        takes = takes_of(tasks)
        fps = frames_per_second(takes)
        row = {
            "policy": name,
            "tasks": len(tasks),
            "takes": len(takes),
            **mean_of("prune_ratio", tasks, lambda record: record["prune_ratio"]),
            "fps": fps,
            "speedup": fps / full_fps if full_fps else None,
            "cache_gib": cache_gib(takes),
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


def takes_of(tasks: Mapping[str, Sequence[dict]]) -> list[dict]:
    return [record for seeds in tasks.values() for record in seeds]
