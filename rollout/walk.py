"""How the works of a schedule's graph get done: one after another, or side by side, each lane's by
a worker.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from threading import Condition

import torch

Worker = Callable[
    [Callable[[], None]], Callable[[], object]
]  # starts a function in a thread, and returns one that waits for its end


def spread(graph: dict, workers: int) -> dict[str, int]:
    """The number of the worker for each lane: neighbours together, each worker with about as many
    works.
    """
    works = Counter(work.lane for work in graph)  # lanes in the graph's order
    if workers >= len(works):
        return {lane: number for number, lane in enumerate(works)}
    middle = {
        lane: sum(list(works.values())[:number]) + count / 2
        for number, (lane, count) in enumerate(works.items())
    }
    return {lane: int(workers * place / len(graph)) for lane, place in middle.items()}


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
    crew, shares, waits = Crew(graph, run), defaultdict(list), []
    for work in graph:
        shares[workers[work.lane]].append(work)
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
        self.graph, self.run = graph, run
        self.ended: set = set()
        self.stopped, self.error, self.changed = False, None, Condition()
        self.modes = torch.is_inference_mode_enabled(), torch.is_grad_enabled()

    def do(self, works: list):
        """One worker's share. Raises nothing: errors go to who waits."""
        try:
            with (
                torch.inference_mode(self.modes[0]),
                torch.set_grad_enabled(self.modes[1]),
            ):  # a new thread has modes of its own
                for work in works:
                    with self.changed:
                        self.changed.wait_for(
                            lambda needs=self.graph[work]: (
                                self.stopped or self.ended.issuperset(needs)
                            )
                        )
                        if self.stopped:
                            return
                    self.run(work)
                    with self.changed:
                        self.ended.add(work)
                        self.changed.notify_all()
        except BaseException as error:  # an interrupt of the host is one
            self.stop(error)

    def wait_for(self, work):
        with self.changed:
            self.changed.wait_for(lambda: self.error or work in self.ended)
            error, self.error = self.error, None
        if error:
            raise error

    def stop(self, error: BaseException | None = None):
        with self.changed:
            if not self.stopped:
                self.stopped, self.error = True, error
            self.changed.notify_all()
