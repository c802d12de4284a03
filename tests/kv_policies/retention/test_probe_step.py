"""Which step DeCoPrune scores when probe_step is -1, by hand.

At shift s, step k of n has sigma s u / (1 + (s - 1) u), u = 1 - k / n.
"""

import pytest
from keepsake.kv_policies import DeCoPrune, Take
from keepsake.kv_policies.retention.probe_step import probe_step_of

from ... import fake


def take_of(*sigmas):
    return Take(9, 0, (*sigmas, 0.0), 0)


def shifted(steps, shift):
    us = [1 - step / steps for step in range(steps)]
    return take_of(*[shift * u / (1 + (shift - 1) * u) for u in us])


@pytest.mark.parametrize(
    "steps, step",
    [
        (1, None),  # 1: the finished chunk itself
        (2, None),  # 1, .833: pure noise, and the finished chunk
        (3, 1),  # 1, .909, .714
        (4, 2),  # 1, .938, .833, .625: the paper's
        (5, 2),  # 1, .952, .882, .769, .556
        (8, 3),  # 1, .972, .938, .893, .833, ...
        (50, 18),  # ..., .904, .899, .893, ...
    ],
)
def test_at_shift_5(steps, step):
    assert probe_step_of(shifted(steps, 5)) == step


@pytest.mark.parametrize(
    "sigmas, step",
    [
        ((1.0, 0.9375, 0.8333, 0.625), 2),  # Self-Forcing, Causal-Forcing, LongLive, HiAR, RAVEN
        ((1.0, 0.946, 0.854, 0.681), 2),  # LongLive 2
        ((1.0, 0.95238, 0.88235, 0.76923, 0.55556), 2),  # Rolling Forcing
        ((1.0, 0.90884, 0.71398), 1),  # Matrix-Game 2
        ((1.0, 0.968, 0.909, 0.769), 2),  # LingBot-World 2
        ((0.999, 0.957, 0.899, 0.702), 2),  # the same in CMBench
        ((1.0,), None),  # Causal-Forcing++, one step
        ((1.0, 0.8333), None),  # and two
        ((1.0, 0.9, 0.75, 0.5), 1),  # the demo world in 4 steps: step 2 is at .75
        ((1.0, 0.9545, 0.9, 0.8333, 0.75, 0.6429, 0.5, 0.3), 2),  # and in its 8
    ],
)
def test_published_schedules(sigmas, step):
    assert probe_step_of(take_of(*sigmas)) == step


@pytest.mark.parametrize(
    "sigmas, step",
    [
        ((1.0, 0.75, 0.5, 0.25), None),  # no shift: between pure noise and .75 there is no step
        ((1.0, 0.98, 0.96, 0.91), 2),  # the last step is nearest, and is the chunk itself
        ((1.0, 0.99, 0.98, 0.90), None),
        ((1.0, 0.80, 0.5), 1),
        ((1.0, 0.79, 0.5), None),
    ],
)
def test_a_step_near_pure_noise_or_near_the_end_is_not_scored(sigmas, step):
    assert probe_step_of(take_of(*sigmas)) == step


@pytest.mark.parametrize(
    "policy, sigmas, note",
    [
        (DeCoPrune(), (1.0, 0.9, 0.75, 0.5), "step 1 (counted from 0), at sigma 0.900"),
        (
            DeCoPrune(probe_step=2),
            (1.0, 0.9, 0.75, 0.5),
            "step 2 (counted from 0), at sigma 0.750",
        ),
        (DeCoPrune(), (1.0, 0.75, 0.5, 0.25), "noised again to sigma 0.9"),
        (DeCoPrune(probe_step=0), (1.0, 0.8333), "noised again to sigma 0.9"),
    ],
    ids=str,
)
def test_the_take_says_what_was_scored(policy, sigmas, note):
    run = policy.start(fake.geometry(), take_of(*sigmas))
    assert note in run.scored.note and not run.notes  # nothing was scored yet
