"""What a long bench has already measured, in a file of JSON lines: it goes on where it stopped."""

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import torch


class Finished:
    """Results of jobs by key. Each is written as soon as it is there."""

    def __init__(self, path: Path, resume: bool):
        """With `resume` the file's results count; else it begins anew."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.results = {}
        if not resume:
            path.write_text("")
        elif path.exists():
            self.results = dict(map(json.loads, path.read_text().splitlines()))

    def __contains__(self, job) -> bool:
        return job.key in self.results

    def __getitem__(self, job):
        return self.results[job.key]

    def add(self, job, result):
        self.results[job.key] = result
        with self.path.open("a") as file:
            print(json.dumps([job.key, result]), file=file)

    def run(self, jobs: Sequence, work: Callable, processes: int) -> Iterator:
        """Each job, in order, once its result is there; those without one are done in processes of
        one thread each. A job has a `key`.
        """
        missing = [job for job in jobs if job not in self]
        spawn = get_context("spawn")
        with ProcessPoolExecutor(processes, spawn, torch.set_num_threads, (1,)) as pool:
            results = pool.map(work, missing)
            for job in jobs:
                if job not in self:
                    self.add(job, next(results))
                yield job
