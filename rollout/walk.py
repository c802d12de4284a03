"""Running the works of a schedule's graph: one after another, or side by side, a worker for the
works of each lane.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from threading import Condition

import torch

# Starts a function in a thread, and returns a function that waits for its end.
Worker = Callable[[Callable[[], None]], Callable[[], object]]


def spread(graph: dict, workers: int) -> dict[str, int]:
    """The number of the worker for each lane: neighbours together, each worker with about as many
    works.
    """
    works = Counter(work.lane for work in graph)  # lanes in the graph's order
    if workers >= len(works):
        return {lane: number for number, lane in enumerate(works)}
    # A lane goes to the worker in whose share of all works, in lane order, its middle lies.
    numbers, before = {}, 0
    for lane, count in works.items():
        middle = before + count / 2
        numbers[lane] = int(workers * middle / len(graph))
        before += count
    return numbers


def walk(graph: dict, run: Callable, workers: Mapping[str, Worker]) -> Iterator:
    """Run every work once those it needs have ended; yield each, in the graph's order. Without
    `workers`, by lane, all in this thread.

    A work that raises ends the others before their next one, and its error alone is raised here,
    when all have ended.
    """
    if not workers:
        for work in graph:
            run(work)
            yield work
        return
    crew = Crew(graph, run)
    shares: dict[Worker, list] = defaultdict(list)
    for work in graph:
        shares[workers[work.lane]].append(work)
    waits = []
    try:
        for start, works in shares.items():
            waits.append(start(partial(crew.do, works)))
        for work in graph:
            crew.wait_for(work)
            yield work
    finally:
        crew.stop()
        for wait in waits:
            wait()


class Crew:
    """What the workers of one walk share: which works have ended, and the first error.

    Each worker keeps to the graph's order, so the first work that has not ended never waits for one
    behind it, and there is no deadlock.
    """

    def __init__(self, graph: dict, run: Callable):
        self.graph = graph
        self.run = run
        self.ended: set = set()
        self.stopped = False
        self.error: BaseException | None = None
        self.changed = Condition()
        self.inference_mode = torch.is_inference_mode_enabled()
        self.grad = torch.is_grad_enabled()

    def do(self, works: list):
        """One worker's share. Raises nothing: errors are raised by `wait_for`."""
        try:
            # A new thread has modes of its own.
            with torch.inference_mode(self.inference_mode), torch.set_grad_enabled(self.grad):
                for work in works:
                    if not self._may_begin(work):
                        return
                    self.run(work)
                    with self.changed:
                        self.ended.add(work)
                        self.changed.notify_all()
        except BaseException as error:  # an interrupt of the host is one
            self.stop(error)

    def _may_begin(self, work) -> bool:
        """Wait until all that a work needs has ended; False: the walk was stopped before."""
        with self.changed:
            needs = self.graph[work]
            self.changed.wait_for(lambda: self.stopped or self.ended.issuperset(needs))
            return not self.stopped

    def wait_for(self, work):
        """Wait for a work's end. Raises the first error of any work."""
        with self.changed:
            self.changed.wait_for(lambda: self.error or work in self.ended)
            error, self.error = self.error, None
        if error:
            raise error

    def stop(self, error: BaseException | None = None):
        """Let no further work begin."""
        with self.changed:
            if not self.stopped:
                self.stopped = True
                self.error = error
            self.changed.notify_all()
