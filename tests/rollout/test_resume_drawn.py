"""Policies drawn at random, each slot with its parameters: saved and carried on, a take is that of
one run. `--draws 500` draws more of them.
"""

import random
from dataclasses import replace

from keepsake.kv_policies import (
    RETENTIONS,
    SCHEDULES,
    CleanPass,
    ContextRecompute,
    DeCoPrune,
    DeCoPruneHS,
    DeepForcing,
    DeepSink,
    DirectedForcing,
    DummyForcing,
    FlashForward,
    ForcingKV,
    HeadMap,
    HeadTable,
    KVPolicy,
    KVStorage,
    MonarchRT,
    ReadAll,
    RollingForcing,
    SinkWindow,
    Storage,
)
from keepsake.kv_policies.retention.decoprune import MODES
from keepsake.kv_policies.retention.pruning_controls import PruneControl
from keepsake.kv_policies.retention.reindex import BANDS, REINDEX
from keepsake.kv_policies.retention.scores import SCORES

from .test_resume import compare, draw_take


def draw_retention(draw):
    kind = draw.choice(RETENTIONS)
    if kind is SinkWindow:
        sink = draw.randint(0, 4)
        return kind(sink, sink + draw.randint(1, 6), draw.choice(["absolute", "shifted"]))
    if kind is DeepForcing:
        sink, recent, chosen = draw.randint(1, 4), draw.randint(1, 4), draw.randint(0, 3)
        budget = sink + recent + chosen
        return kind(sink, budget, recent, budget + draw.randint(0, 4), draw.randint(0, 3))
    if kind is DeepSink:
        sink = draw.randint(1, 4)
        return kind(sink, sink + draw.randint(1, 6))
    if kind is ForcingKV:
        return kind(
            head_map=HeadMap("fake", 2, ((0,), (1,))),
            ar_start=draw.randint(0, 2),
            sink_frames=draw.randint(0, 2),
            static_frames=draw.randint(1, 3),
            dynamic_frames=draw.randint(1, 3),
            bank_share=draw.random(),
            patches=draw.randint(1, 6),
        )
    if kind is DummyForcing:
        return kind(
            dummy_share=draw.random(),
            ar_start=draw.randint(1, 2),
            local_frames=draw.randint(1, 5),
        )
    if not issubclass(kind, (DeCoPrune, PruneControl)):
        return kind()
    length = draw.randint(2, 9)
    more = {
        "head_map": HeadMap("fake", 2, ((0,), (1,))),
        "static_sink_frames": draw.randint(0, 3),
        "static_recent_frames": draw.randint(1, 4),
    }
    parameters = dict(
        mode=draw.choice(MODES),
        gamma=10 ** draw.uniform(-2, 1),
        target_keep=draw.random(),
        score=draw.choice(SCORES),
        dense_chunks=draw.randint(1, 3),
        sink_chunks=draw.randint(0, 2),
        min_keep_per_block=draw.randint(0, 2),
        floor_threshold=draw.choice([0.0, 0.5]),
        reindex=draw.choice(REINDEX),
        virtual_length=length,
        reindex_recent=draw.randint(0, length - 1),
        most_frames=draw.choice([0, 0, 3, 6]),
        reindex_bands=draw.choice(BANDS),
    )
    if issubclass(kind, PruneControl):
        return kind(DeCoPrune(**parameters))
    return kind(**parameters, **more if kind is DeCoPruneHS else {})


def draw_selection(draw):
    table = draw.choice([None, HeadTable("fake", "drift", ((0.1, 0.9), (0.6, 0.4)))])
    least = draw.randint(1, 5)
    return draw.choice(
        [
            ReadAll(),
            ReadAll(),
            DirectedForcing(
                draw.random(),
                2.0,
                least,
                least + draw.randint(0, 4),
                draw.randint(3, 7),
                draw.randint(0, 8),
                table,
            ),
            MonarchRT(draw.randint(1, 2)),
        ]
    )


def draw_schedule(draw):
    anchors = FlashForward(
        draw.randint(2, 5),
        draw.randint(1, 3),
        draw.randint(0, 3),
        draw.randint(1, 3),
        draw.randint(1, 3),
        draw.randint(6, 12),
    )
    drawn = [
        anchors,
        RollingForcing(draw.randint(9, 18)),
        ContextRecompute(draw.randint(3, 7)),
    ]
    listed = {CleanPass, *map(type, drawn)}
    drawn += [kind() for kind in SCHEDULES if kind.pauses and kind not in listed]
    return draw.choice([*[CleanPass(draw.choice([0.0, 0.1]))] * 6, *drawn])


def draw_storage(draw):
    return draw.choice(
        [
            Storage(),
            KVStorage("model", device="cpu"),
            *(
                KVStorage(dtype, draw.randint(1, 3), draw.randint(0, 3))
                for dtype in ("fp8", "int8", "int4")
            ),
        ]
    )


def test_what_is_drawn_resumes_to_the_last_bit(request, tmp_path):
    compared, seed = 0, 0
    while compared < request.config.getoption("draws"):
        draw, seed = random.Random(seed), seed + 1
        plain = draw.random() < 0.3  # schedules with memories of their own work with nothing else
        policy = KVPolicy(
            *[] if plain else [draw_retention(draw), draw_selection(draw)],
            schedule=draw_schedule(draw),
            storage=draw_storage(draw),
        )
        movable = (
            policy.storage.anywhere() == Storage() and type(policy.schedule) is CleanPass
        )  # the place may change from run to run
        later = (
            replace(policy, storage=draw.choice([Storage(), KVStorage("model", device="cpu")]))
            if movable
            else policy
        )
        try:
            options = draw_take(policy, draw, 22)
        except ValueError:
            continue
        try:
            compare(policy, draw, options, tmp_path / "memory.safetensors", later)
        except Exception as error:
            raise AssertionError(f"draw {seed - 1}: {policy}, {options}") from error
        compared += 1
