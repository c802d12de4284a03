"""History in main memory: the same take to the last bit, and when each layer's rows are fetched."""

import gc
import weakref

import pytest
import torch
from keepsake.kv_policies import (
    DirectedForcing,
    FlashForward,
    FullKV,
    KVPolicy,
    KVStorage,
    SinkWindow,
)
from keepsake.kv_policies.storage import main_pages
from keepsake.rollout.timeline import PromptStart

from ... import fake
from ...cases import RETENTION_CASES
from .test_storage import TAKE

HOST = KVStorage("model", device="cpu")
SELECTIONS = [DirectedForcing(uniform_budget=4, active_from=5)]


class LateLink(main_pages.Link):
    """Copies as late as a device may: when its work must find them, or when the source is about to
    change. Until then the target holds no numbers.
    """

    def __init__(self):
        self.begun = []

    def fetch(self, source, target):
        target.fill_(float("nan"))
        self.begun.append((source, target, source.clone()))

    def arrive(self):
        for source, target, before in self.begun:
            assert torch.equal(source, before)  # nobody wrote to rows that were still to be read
            target.copy_(source)
        self.begun = []

    wait = arrive


@pytest.fixture
def late(monkeypatch):
    links = []
    monkeypatch.setattr(main_pages, "link_to", lambda device: links.append(LateLink()) or links[-1])
    return links


@pytest.mark.parametrize(
    "policy",
    [
        *(KVPolicy(case) for case in RETENTION_CASES),
        *(KVPolicy(SinkWindow(2, 7), select) for select in SELECTIONS),
    ],
    ids=repr,
)
@pytest.mark.parametrize(
    "options",
    [
        dict(
            streams=("a", "b"),
            starts=(PromptStart(4, "recache", recache_frames=4), PromptStart(8, "cut")),
        ),
        dict(chunk_frames=3, prefix=fake.noise_of(4, seed=9)),
    ],
    ids=("prompts", "given"),
)
def test_a_take_from_main_memory_is_the_same_to_the_last_bit(late, policy, options):
    here, trace, _ = fake.take(policy, 13, **options)
    there, held, _ = fake.take(
        KVPolicy(policy.retention, policy.selection, storage=HOST), 13, **options
    )
    assert late and torch.equal(here, there)
    assert [(row.kept_tokens, row.bank_bytes) for row in trace.rows] == [
        (row.kept_tokens, row.bank_bytes) for row in held.rows
    ]


@pytest.mark.parametrize("stop", [3, 7])
def test_it_is_saved_and_goes_on_to_the_last_bit(stop):
    for retention in RETENTION_CASES:
        kept, policy = [], KVPolicy(retention, storage=HOST)
        fake.take(policy, 12, stop_after=stop, on_memory=kept.append)
        assert torch.equal(
            fake.take(policy, 12, memory=kept[0])[0], fake.take(KVPolicy(retention), 12)[0]
        )


def test_a_layer_is_asked_for_before_the_one_before_it_is_attended_to(monkeypatch):
    events, layers = [], 3

    class Listening(main_pages.Link):
        def fetch(self, source, target):
            events.append(
                (
                    "fetch",
                    number[source.untyped_storage().data_ptr()],
                    target.untyped_storage().data_ptr(),
                )
            )
            super().fetch(source, target)

    monkeypatch.setattr(main_pages, "link_to", lambda device: Listening())
    geometry = fake.geometry(layers=layers)
    pages = HOST.pages(24, [2] * layers, geometry, torch.float64, torch.device("cpu"))
    number = {
        side.untyped_storage().data_ptr(): layer
        for layer, each in enumerate(pages.layers)
        for side in (each.k, each.v)
    }
    rows = torch.ones(1, 12, 2, 8, dtype=torch.float64)
    for layer in range(layers):
        pages.write(layer, slice(0, 12), rows, rows)
    pages.commit(torch.arange(2).repeat_interleave(6), 0)
    for _ in range(2):  # forwards
        for layer in range(layers):
            pages.write(layer, slice(12, 24), rows + layer, rows)
            assert pages.read(layer, slice(0, 24))[0][0, 12, 0, 0] == 1 + layer
            events.append(("attend", layer))
    flat = [event[:2] for i, event in enumerate(events) if i == 0 or events[i - 1][:2] != event[:2]]
    assert flat == [
        ("fetch", 0),
        ("fetch", 1),
        ("attend", 0),
        ("fetch", 2),
        ("attend", 1),
        ("fetch", 0),
        ("attend", 2),
        ("fetch", 1),
        ("attend", 0),
        ("fetch", 2),
        ("attend", 1),
        ("fetch", 0),
        ("attend", 2),
    ]
    assert (
        len({event[2] for event in events if event[0] == "fetch"}) == 4
    )  # keys and values of two layers


def test_bytes_are_told_apart():
    _, trace, _ = fake.take(KVPolicy(FullKV(), storage=HOST), 10)
    frame = fake.geometry().bytes_per_frame(8)
    row = trace.rows[-1]
    assert row.host_bytes == 10 * frame
    assert (
        row.allocated_bytes - row.host_bytes == 2 * 10 * frame // fake.LAYERS + 2 * frame
    )  # two layers, and the chunk of two frames


@pytest.mark.parametrize("fails", [None, 3])
def test_nothing_stays_behind(fails):
    seen = []

    def on_chunk(session, chunk):
        seen.extend(
            weakref.ref(pages)
            for stream in session.streams
            for pages in fake.bank(session, stream).pages
        )
        if chunk.index == fails:
            raise KeyboardInterrupt

    gc.collect()
    gc.disable()
    try:
        fake.take(KVPolicy(storage=HOST), 10, on_chunk=on_chunk)
    except KeyboardInterrupt:
        pass
    finally:
        gc.enable()
    assert seen and not any(ref() for ref in seen)


@pytest.mark.parametrize(
    "make, sentence",
    [
        (lambda: KVStorage("int8", device="cpu"), "Use dtype model there"),
        (lambda: KVStorage(device="gpu"), "Use one of: model, cpu"),
        (
            lambda: KVPolicy(schedule=FlashForward(), storage=HOST).check(fake.geometry(), TAKE),
            "has short caches of its own",
        ),
    ],
)
def test_what_cannot_be_held_so_is_refused(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()
