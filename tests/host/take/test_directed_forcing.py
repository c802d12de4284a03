"""Directed Forcing in the real host, on tiny random Wan models."""

import re

import pytest
import torch
from keepsake.kv_policies import (
    DeCoPrune,
    DeCoPruneHS,
    DirectedForcing,
    DummyForcing,
    ForcingKV,
    FullKV,
    HeadMap,
    HeadTable,
    KVPolicy,
    RollingForcing,
    SinkWindow,
)
from keepsake.nodes.policies.directed_forcing import PolicyDirectedForcing
from keepsake.nodes.schedules import PolicyRollingForcing
from support import tiny

from ...kv_policies.selection.slow import Slow

TABLE = HeadTable(
    "tiny", "x0_drift", ((0.0, 0.3, 0.6, 1.0), (1.0, 0.0, 0.0, 0.5), (0.0, 0.0, 0.0, 1.0))
)
RETENTIONS = [
    FullKV(),
    SinkWindow(2, 9, "shifted"),
    DeCoPrune(mode="target_keep", target_keep=0.5),
    DeCoPruneHS(mode="target_keep", head_map=HeadMap("tiny", 4, ((), (0, 2), (3,)))),
    DummyForcing(local_frames=6),
    ForcingKV(head_map=HeadMap("tiny", 4, ((), (0, 2), (3,))), dynamic_frames=5),
]


def take(policy, noise, **options):
    stats = []
    out = tiny.ours(tiny.tiny_model(), noise, 2, policy, on_stats=stats.append, **options)
    return out, stats[0]


@pytest.mark.parametrize("retention", RETENTIONS, ids=lambda retention: type(retention).__name__)
@pytest.mark.parametrize(
    "options",
    [{}, dict(cfg=3.0), dict(prefix=tiny.noise_of(7, 7, 9, seed=8))],
    ids=["plain", "cfg", "prefix"],
)
def test_it_runs_with_every_retention_at_an_odd_size_and_repeats(retention, options):
    policy, noise = (
        KVPolicy(
            retention, DirectedForcing(budget_min=3, budget_max=6, active_from=7, head_table=TABLE)
        ),
        tiny.noise_of(15, 7, 9),
    )
    first, stats = take(policy, noise, **options)
    assert torch.isfinite(first).all() and torch.equal(first, take(policy, noise, **options)[0])
    report = stats.report()
    # Chunks of 2: of 7 frames in reach or, where the history has an even number, 8.
    assert re.search("ragged attention by sdpa, from [78] latent frames in reach on", report)
    assert (
        stats.policy["selection"]["head_table"].scores == TABLE.scores
        and '"lambda' not in stats.to_json()
    )


def test_before_the_window_is_full_it_is_bit_equal_to_dense_reads():
    noise = tiny.noise_of(15)
    dense, _ = take(KVPolicy(SinkWindow(2, 9, "shifted")), noise)
    directed, _ = take(
        KVPolicy(SinkWindow(2, 9, "shifted"), DirectedForcing(uniform_budget=4)), noise
    )
    assert torch.equal(dense[:, :, :6], directed[:, :, :6]) and not torch.equal(
        dense[:, :, 8:], directed[:, :, 8:]
    )


def test_budgets_that_reach_everything_are_bit_equal_to_dense_reads():
    noise = tiny.noise_of(15)
    assert torch.equal(
        take(KVPolicy(FullKV(), DirectedForcing(uniform_budget=20, active_from=1)), noise)[0],
        take(KVPolicy(), noise)[0],
    )


def test_a_table_of_another_model_is_refused_before_sampling():
    with pytest.raises(
        ValueError, match="'Wan' is for 1 layers of 2 heads, and this model has 3 layers of 4"
    ):
        take(
            KVPolicy(
                selection=DirectedForcing(head_table=HeadTable("Wan", "x0_drift", ((0.0, 1.0),)))
            ),
            tiny.noise_of(5),
        )


def test_a_backend_that_cannot_work_here_is_refused_in_words():
    with pytest.raises(
        ValueError, match="ragged attention backend is 'flash-attn'.* Use one of: auto, sdpa"
    ):
        take(
            KVPolicy(
                selection=DirectedForcing(uniform_budget=4, active_from=1, backend="flash-attn")
            ),
            tiny.noise_of(9),
        )


ROLLING = DirectedForcing(budget_min=3, budget_max=6, head_table=TABLE)


@pytest.mark.parametrize(
    "options",
    [{}, dict(cfg=3.0), dict(prefix=tiny.noise_of(3, 7, 9, seed=8))],
    ids=["plain", "cfg", "prefix"],
)
def test_it_runs_with_rolling_forcing_as_planned_and_repeats(options):
    """Two steps in chunks of 2: 4 frames in flight; the window of 8 is full with frame 7."""
    policy, noise = KVPolicy(selection=ROLLING, schedule=RollingForcing(8)), tiny.noise_of(13, 7, 9)
    first, stats = take(policy, noise, steps=2, **options)
    assert torch.isfinite(first).all()
    assert torch.equal(first, take(policy, noise, steps=2, **options)[0])
    assert "ragged attention by sdpa, from 8 latent frames in reach on" in stats.report()
    assert stats.planned_bytes == (stats.peak_cache_bytes,) * 2
    dense, _ = take(KVPolicy(schedule=RollingForcing(8)), noise, steps=2, **options)
    assert not torch.allclose(first, dense, atol=1e-3)


def test_with_rolling_forcing_it_equals_the_slow_reading():
    schedule, noise, seen = RollingForcing(8), tiny.noise_of(11, **tiny.SIZE), []
    fast, _ = take(KVPolicy(selection=ROLLING, schedule=schedule), noise, steps=2)
    slow, _ = take(KVPolicy(selection=Slow(ROLLING, seen), schedule=schedule), noise, steps=2)
    assert seen and torch.allclose(fast, slow, atol=1e-4)


def test_the_nodes_of_both_go_together_in_either_order():
    rolling, directed = (
        lambda policy=None: PolicyRollingForcing.execute(8, kv_policy=policy)[0],
        lambda policy=None: PolicyDirectedForcing.execute(
            2.0, 4, 12, 7, 0, kv_policy=policy, **{"lambda": 0.46}
        )[0],
    )
    assert rolling(directed()) == directed(rolling())
    assert rolling(directed()).retention == FullKV()
    # A window that was asked for stays, and is refused with Rolling Forcing as before.
    window = KVPolicy(SinkWindow(2, 9))
    assert rolling(directed(window)).retention == SinkWindow(2, 9)
