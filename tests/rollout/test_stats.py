"""The numbers in the stats, counted by hand. Six tokens a frame, two layers, two heads, two frames
a chunk.
"""

import json
from dataclasses import replace

import pytest
from keepsake.kv_policies import (
    CleanPass,
    DeCoPruneHS,
    FlashForward,
    HeadMap,
    Hierarchical,
    KVPolicy,
    SinkWindow,
)
from keepsake.rollout import trace as trace_module
from keepsake.rollout.stats import KVStats
from keepsake.rollout.timeline import PromptStart
from keepsake.rollout.trace import Trace

from .. import fake


def stats_of(policy, **options):
    _, trace, _ = fake.take(policy, **options)
    return KVStats(
        policy=policy.describe(),
        geometry=fake.geometry(),
        dtype="float64",
        steps=3,
        temporal_compression=4,
        streams=trace.streams,
        chunks=tuple(trace.rows),
        seconds=1.0,
        peak_cache_bytes=trace.peak_cache_bytes,
    )


def test_keeping_everything_prunes_nothing():
    stats = stats_of(KVPolicy())
    assert stats.prune_ratio == 0
    assert [row.bank_tokens for row in stats.chunks] == [(0,), (12,), (24,), (36,)]
    assert stats.peak_cache_bytes == 8 * fake.geometry().bytes_per_frame(8)


def test_the_prune_ratio_counts_history_only():
    stats = stats_of(KVPolicy(SinkWindow(0, 4)))  # history of 0, 2, 2, 2 frames out of 0, 2, 4, 6
    assert stats.prune_ratio == 1 - 6 / 12
    assert [row.kept_tokens for row in stats.chunks] == [0, 12 * 4, 12 * 4, 12 * 4]


def test_after_a_cut_all_history_is_the_new_shots():
    stats = stats_of(KVPolicy(), starts=[PromptStart(4, "cut")])
    assert [(row.kept_tokens, row.full_tokens) for row in stats.chunks] == [
        (0, 0),
        (12 * 4, 12 * 4),
    ] * 2


def test_given_chunks_do_not_count_in_the_prune_ratio():
    stats = stats_of(KVPolicy(SinkWindow(0, 4)), prefix=fake.noise_of(4))
    assert stats.prune_ratio == 1 - 4 / 10
    assert [row.bank_tokens for row in stats.chunks] == [(0,), (12,), (12,), (12,)]


def test_a_run_that_goes_on_tells_which_chunks_its_prune_ratio_counts():
    whole = stats_of(KVPolicy(SinkWindow(0, 4)))
    rest = replace(whole, chunks=whole.chunks[2:])  # history of 2, 2 frames out of 4, 6
    assert (
        "60.0% of all history tokens were not kept, counted from latent frame 4 on" in rest.report()
    )
    assert "counted from" not in whole.report()


def test_two_streams_hold_twice_the_bytes_and_the_same_ratio():
    stats = stats_of(KVPolicy(SinkWindow(0, 4)), streams=("a", "b"))
    assert (
        stats.prune_ratio == 0.5
        and stats.peak_cache_bytes == 2 * 4 * fake.geometry().bytes_per_frame(8)
    )


def test_stats_are_json_and_say_what_ran():
    result = json.loads(stats_of(KVPolicy(SinkWindow(2, 6))).to_json())
    assert result["policy"]["retention"] == {
        "name": "SinkWindow",
        "sink_frames": 2,
        "window_frames": 6,
        "sink_rope": "absolute",
        "whole_chunks": True,
    }
    assert result["frames"] == 8 and len(result["chunks"]) == 4
    assert "prune ratio" in stats_of(KVPolicy()).report()


def test_banks_have_names():
    heads = DeCoPruneHS(
        head_map=HeadMap("fake", 2, ((0,), (1,))), static_sink_frames=1, static_recent_frames=2
    )
    assert fake.take(KVPolicy())[1].bank_names == ("history",)
    assert fake.take(KVPolicy(heads))[1].bank_names == ("history 1", "history 2")
    assert fake.take(KVPolicy(schedule=FlashForward()))[1].bank_names == (
        "anchors",
        "stage 0",
        "stage 1",
        "stage 2",
    )
    assert fake.take(KVPolicy(schedule=Hierarchical()))[1].bank_names == ("matched noise",)


@pytest.mark.parametrize(
    "schedule",
    [CleanPass(), FlashForward(), Hierarchical()],
    ids=lambda schedule: type(schedule).__name__,
)
def test_a_chunks_seconds_are_those_of_the_work_on_it(schedule, monkeypatch):
    """The clock goes on by one with every forward: each chunk of this take has three, and whatever
    anchors and writes ask for.
    """
    clock = [0.0]

    def tick(*forward):
        clock[0] += 1

    monkeypatch.setattr(trace_module, "perf_counter", lambda: clock[0])
    _, trace, transformer = fake.take(KVPolicy(schedule=schedule), on_forward=tick)
    assert [row.seconds_by_phase["denoise"] >= 3 for row in trace.rows] == [True] * 4
    assert [row.seconds for row in trace.rows] == [
        sum(row.seconds_by_phase.values()) for row in trace.rows
    ]
    assert sum(row.seconds for row in trace.rows) == len(transformer.calls)


def test_a_note_that_holds_for_some_items_of_a_batch_names_them():
    trace = Trace()
    for item, texts in enumerate((["all", "one"], ["all"], ["all", "two"])):
        trace.item = item
        for text in (*texts, *texts):
            trace.note(text)
    assert trace.notes == ["all", "Take 1 of the batch: one", "Take 3 of the batch: two"]
