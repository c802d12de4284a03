"""Several workers on one graph: the order, the end, and that nothing of it shows in the result."""

import gc
import random
import threading
import time

import pytest
import torch
from keepsake.kv_policies import FlashForward, KVPolicy
from keepsake.rollout.chunks import plan_chunks
from keepsake.rollout.stream import Stream
from keepsake.rollout.walk import spread, walk

from .. import fake

SMALL = FlashForward(
    anchor_stride=4,
    block_anchors=2,
    anchor_window=2,
    planner_history=1,
    stage_history=1,
    budget_frames=6,
)
WIDE = FlashForward(
    anchor_stride=2,
    block_anchors=1,
    anchor_window=3,
    planner_history=2,
    stage_history=2,
    budget_frames=9,
)
LONG = FlashForward(
    anchor_stride=3,
    block_anchors=3,
    anchor_window=4,
    planner_history=1,
    stage_history=3,
    budget_frames=12,
)
ALONE = FlashForward(anchor_window=0, stage_history=2)
SCHEDULES = pytest.mark.parametrize(
    "schedule",
    [SMALL, WIDE, LONG, ALONE, FlashForward()],
    ids=["small", "wide", "long", "no anchors", "published"],
)


@pytest.fixture(autouse=True)
def no_thread_stays():
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


@pytest.fixture
def delays(monkeypatch):
    """Every forward takes a time of its own, which changes who is first."""
    forward, chance = fake.FakeTransformer.__call__, random.Random(4)

    def delayed(self, *args):
        time.sleep(chance.random() * 0.001)
        return forward(self, *args)

    monkeypatch.setattr(fake.FakeTransformer, "__call__", delayed)


@SCHEDULES
@pytest.mark.parametrize("frames, given", [(1, 0), (9, 0), (40, 0), (40, 7), (23, 14)])
def test_a_graph_is_an_order_and_holds_back_what_would_overwrite(schedule, frames, given):
    layout = schedule.layout(plan_chunks(frames, 2, given), 3)
    graph, readers = layout.graph(), {}
    ended = set()
    for work, needs in graph.items():
        assert set(needs) <= ended
        ended.add(work)
    reached = {}  # everything that has surely ended when a work begins
    for work, needs in graph.items():
        reached[work] = set(needs).union(*(reached[need] for need in needs))
        renders = work.kind == "render"
        make = layout.chunk_forward if renders else layout.block_forward
        forward = make(work.number, work.step)
        writes = None if renders else forward.cache
        assert writes not in [read.cache for read in forward.reads]
        for read in forward.reads:
            readers.setdefault(read.cache, set()).add(work)
        if writes:  # a forward that read what lay here until now, and is not of this block, is over
            mine = {
                other
                for other in readers.get(writes, ())
                if other.kind == "render" or other.number != work.number
            }
            assert mine <= reached[work]


def test_work_is_shared_out_to_neighbours():
    graph = FlashForward().graph(
        plan_chunks(81, 3), 4
    )  # 15 forwards for anchors, 27 for each stage
    lanes = ["anchors", "stage 0", "stage 1", "stage 2", "stage 3"]
    assert [[spread(graph, workers)[lane] for lane in lanes] for workers in (1, 2, 3, 4, 5, 8)] == [
        [0, 0, 0, 0, 0],
        [0, 0, 0, 1, 1],
        [0, 0, 1, 2, 2],
        [0, 0, 1, 2, 3],
        [0, 1, 2, 3, 4],
        [0, 1, 2, 3, 4],
    ]


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
def test_a_work_begins_when_all_that_it_needs_has_ended(workers):
    graph, chance = LONG.graph(plan_chunks(30, 2, 5), 4), random.Random(workers)
    began, ended, threads, now = {}, {}, [fake.thread() for _ in range(workers)], iter(range(10**6))

    def run(work):
        began[work] = next(now)
        time.sleep(chance.random() * 0.001)
        ended[work] = next(now)

    seen = list(
        walk(graph, run, {lane: threads[number] for lane, number in spread(graph, workers).items()})
    )
    assert seen == list(graph)
    assert all(ended[need] < began[work] for work, needs in graph.items() for need in needs)


@SCHEDULES
@pytest.mark.parametrize(
    "options",
    [
        dict(frames=1),
        dict(frames=25),
        dict(frames=20, prefix=7),
        dict(frames=9, streams=("positive", "negative")),
    ],
    ids=str,
)
def test_several_workers_make_the_same_take(schedule, options, delays):
    options = (
        {**options, "prefix": fake.noise_of(options["prefix"], seed=9)}
        if "prefix" in options
        else options
    )
    steps, rows = [], []
    alone, trace, transformer = fake.take(
        KVPolicy(schedule=schedule), on_step=lambda *a: steps.append(a[:2]), **options
    )
    for workers in (2, 3, 4, 5):
        reported = []
        beside, other, calls = fake.take(
            KVPolicy(schedule=schedule),
            on_step=lambda *a, reported=reported: reported.append(a[:2]),
            workers=workers,
            **options,
        )
        assert torch.equal(alone, beside)
        assert reported == steps and sorted(calls.calls) == sorted(transformer.calls)
        rows.append([(row.index, row.kept_tokens, row.full_tokens) for row in other.rows])
    assert rows == [[(row.index, row.kept_tokens, row.full_tokens) for row in trace.rows]] * 4


def test_workers_run_at_the_same_time():
    """A worker that waits inside its forward for another's to begin would wait for ever if they
    took turns.
    """
    met, graph = threading.Barrier(2), ALONE.graph(plan_chunks(4, 2), 2)
    threads = [fake.thread(), fake.thread()]

    def run(work):
        if work[1:] in (
            (0, 1),
            (1, 0),
        ):  # the first chunk's second step and the second chunk's first
            met.wait(timeout=60)

    assert len(list(walk(graph, run, {"stage 0": threads[0], "stage 1": threads[1]}))) == 4


@pytest.mark.parametrize("where", [0, 7, 20, 41])
def test_a_worker_that_raises_ends_the_take_with_its_error_and_the_next_is_equal(
    where, monkeypatch, delays
):
    whole, forward, calls = (
        fake.take(KVPolicy(schedule=SMALL), 31)[0],
        fake.FakeTransformer.__call__,
        [],
    )
    gc.collect()
    before = sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())

    def fail(self, *args):
        calls.append(threading.current_thread())
        if len(calls) > where:  # every worker's next forward fails too, and one error is told
            raise MemoryError(f"{len(calls)}")
        return forward(self, *args)

    with monkeypatch.context() as patched:
        patched.setattr(fake.FakeTransformer, "__call__", fail)
        with pytest.raises(MemoryError):
            fake.take(KVPolicy(schedule=SMALL), 31, workers=3)
    assert len(calls) <= where + 3 and threading.main_thread() not in calls
    calls.clear()
    gc.collect()
    assert sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects()) <= before
    assert torch.equal(fake.take(KVPolicy(schedule=SMALL), 31, workers=3)[0], whole)


@pytest.mark.parametrize("by", ["progress", "caller"])
def test_a_cancel_outside_the_workers_ends_them_and_frees_everything(by):
    sessions, whole = [], fake.take(KVPolicy(schedule=SMALL), 31)[0]

    def stop(*args):
        raise KeyboardInterrupt

    def keep(session, chunk):
        sessions.append(session)
        if by == "caller" and len(sessions) == 3:
            stop()

    with pytest.raises(KeyboardInterrupt):
        fake.take(
            KVPolicy(schedule=SMALL),
            31,
            workers=3,
            on_chunk=keep,
            on_step=lambda chunk, *rest: (
                stop() if by == "progress" and chunk.start_frame == 16 else None
            ),
        )
    assert sessions and not sessions[0].streams
    assert torch.equal(fake.take(KVPolicy(schedule=SMALL), 31, workers=3)[0], whole)


def test_workers_have_the_callers_gradient_mode(monkeypatch):
    modes, forward = set(), fake.FakeTransformer.__call__
    monkeypatch.setattr(
        fake.FakeTransformer,
        "__call__",
        lambda self, *args: (
            modes.add((torch.is_inference_mode_enabled(), torch.is_grad_enabled()))
            or forward(self, *args)
        ),
    )
    with torch.inference_mode():
        fake.take(KVPolicy(schedule=SMALL), 9, workers=2)
    assert modes == {(True, False)}


def test_anchors_are_copied_once_for_each_block_and_device(monkeypatch):
    made_in, held, copy = [], [], Stream._copy

    def watch(self, forward, memory, device):
        if (memory, device) not in self.copies:
            made_in.append((self.caches[memory].banks[0].frame[0].item(), device.index))
        copied = copy(self, forward, memory, device)
        held.append(sum(on == device for _, on in list(self.copies)))
        return copied

    monkeypatch.setattr(Stream, "_copy", watch)
    for workers in (4, 3, 2):  # with fewer, stages share a device and its copies
        made_in.clear()
        fake.take(KVPolicy(schedule=SMALL), 31, workers=workers)
        assert sorted(made_in) == [
            (frame, device) for frame in (0, 8, 16, 24) for device in range(1, workers)
        ]
    assert max(held) == 2  # the two blocks that a chunk's window touches at most


def test_a_block_that_takes_the_place_of_another_is_copied_anew():
    """An anchor at every frame and two memories for them: from one chunk to the next a device reads
    the same memory, and another block in it.
    """
    policy = KVPolicy(
        schedule=FlashForward(
            anchor_stride=1,
            block_anchors=1,
            anchor_window=1,
            planner_history=1,
            stage_history=1,
            budget_frames=6,
        )
    )
    assert torch.equal(fake.take(policy, 8, workers=3)[0], fake.take(policy, 8)[0])
