"""TaylorSeer: which steps are forecast, from what, and that nothing of it becomes history.

`taylorseer.safetensors` holds what the authors' functions gave for random features; none of their
code is here.
"""

from pathlib import Path

import pytest
import torch
from keepsake.kv_policies import DeCoPrune, Features, KVPolicy, RandomPrune, Take, TaylorSeer
from safetensors.torch import load_file

from ... import fake

AUTHORS = load_file(Path(__file__).parent / "taylorseer.safetensors")
CASES = [  # order, interval, first steps, steps; the authors' choice: c computed, f forecast
    (1, 5, 1, 12, "cffffcffffcf"),
    (1, 5, 3, 12, "cccffffcffff"),
    (1, 5, 3, 4, "cccf"),
    (2, 4, 1, 12, "cfffcfffcfff"),
    (2, 3, 3, 12, "cccffcffcffc"),
    (0, 2, 1, 6, "cfcfcf"),
    (1, 6, 3, 16, "cccfffffcfffffcf"),
]
SIGMAS = (1.0, 0.9, 0.8, 0.5, 0.0)
GEOMETRY = fake.geometry(3)


def take(schedule, frames=9, sigmas=SIGMAS, **options):
    return fake.take(KVPolicy(schedule=schedule), frames, 3, sigmas=sigmas, **options)


@pytest.mark.parametrize("number", range(len(CASES)))
def test_steps_and_forecasts_are_the_authors(number):
    order, interval, first, steps, choice = CASES[number]
    schedule = TaylorSeer(order=order, interval=interval, first_steps=first)
    forecast = schedule.forecast_steps(steps)
    assert "".join("f" if step in forecast else "c" for step in range(steps)) == choice

    random = torch.Generator().manual_seed(number)
    features, outputs = schedule.features(), []
    for step in range(steps):
        output = torch.randn(1, 3, 4, generator=random)
        if step in forecast:
            output = features.forecast("ffn", step)
        else:
            features.hold("ffn", step, output)
        outputs.append(output)
    authors = AUTHORS[f"order {order}, interval {interval}, first {first}, {steps} steps"]
    assert (torch.cat(outputs) - authors).abs().max() < 1e-5


def test_a_straight_line_is_forecast_exactly_by_order_1_and_lags_by_order_0():
    """Output 3 + 2 step, computed at steps 1 and 2."""
    ahead = {}
    for order in (0, 1):
        features = Features(order, first_steps=2)
        for step in (1, 2):
            features.hold("ffn", step, torch.tensor([3.0 + 2 * step]))
        ahead[order] = [float(features.forecast("ffn", step)) for step in (3, 4)]
    assert ahead == {0: [7.0, 7.0], 1: [9.0, 11.0]}


def test_what_is_held_does_not_change_with_what_it_was_made_of():
    features, output = Features(1, 1), torch.ones(1, 2, 2)
    features.hold("ffn", 0, output)
    output.zero_()
    assert features.forecast("ffn", 1).sum() == 4 and features.nbytes() == 16
    features.clear()
    assert "ffn" not in features and features.nbytes() == 0


def test_a_take_without_forecast_steps_is_the_clean_pass_loop():
    """Three first steps of three."""
    plain, *_ = fake.take(KVPolicy(), 9, 3)
    out, trace, _ = fake.take(KVPolicy(schedule=TaylorSeer(first_steps=3)), 9, 3)
    assert torch.equal(out, plain) and not any(row.forecast_steps for row in trace.rows)


def test_what_is_forecast_never_enters_the_cache():
    """Keys and values that a chunk leaves are those of its clean pass, which is computed: another
    model run over the finished latents, all computed, leaves the same.
    """
    left = {}

    def on_chunk(name):
        def look(session, chunk):
            bank = fake.bank(session)
            left[name, chunk.index] = [bank.read(layer) for layer in range(fake.LAYERS)]

        return look

    out, trace, model = take(TaylorSeer(), 9, on_chunk=on_chunk("forecast"))
    assert [row.forecast_steps for row in trace.rows] == [(3,)] * 3
    fake.take(KVPolicy(), 12, 3, prefix=out, sigmas=SIGMAS, on_chunk=on_chunk("given"))
    for chunk in range(2):  # nothing reads what the last chunk would leave
        for one, other in zip(left["forecast", chunk], left["given", chunk]):
            assert all(torch.equal(a, b) for a, b in zip(one, other))


def test_rows_in_work_are_not_written_by_a_forecast():
    written = []

    def on_forward(session, forward, x, sigma):
        bank = fake.bank(session)
        k = bank.read(0)[0][:, bank.committed :]
        written.append((forward.step, float(k.sum())))

    take(TaylorSeer(), 3, on_forward=on_forward)
    by_step = dict(written)
    assert by_step[3] == by_step[2] != by_step[1]


@pytest.mark.parametrize("streams", [("a",), ("a", "b")])
def test_held_features_are_counted_and_forgotten_with_the_last_step(streams):
    """Three modules in two layers, orders 0 and 1, of 3 frames of 6 tokens of 16 fp64 numbers."""
    seen = []

    def on_chunk(session, chunk):
        seen.append([stream.features.nbytes() for stream in session.streams.values()])

    _, trace, _ = take(TaylorSeer(), 9, streams=streams, on_chunk=on_chunk)
    each = 3 * fake.LAYERS * 2 * 3 * 6 * 16 * 8
    assert [row.feature_bytes for row in trace.rows] == [each * len(streams)] * 3
    assert seen == [[0] * len(streams)] * 3


def test_given_chunks_are_computed_and_hold_nothing():
    _, trace, _ = take(TaylorSeer(), 9, prefix=fake.noise_of(3, seed=9))
    assert [(row.given, row.forecast_steps) for row in trace.rows] == [
        (True, ()),
        (False, (3,)),
        (False, (3,)),
    ]
    assert trace.rows[0].feature_bytes == 0


@pytest.mark.parametrize("steps", [1, 3])
def test_fewer_than_four_steps_are_refused(steps):
    sigmas = (1.0, 0.9, 0.8)[:steps] + (0.0,)
    with pytest.raises(ValueError, match=f"this take has {steps}, too few.*at least 4 steps"):
        KVPolicy(schedule=TaylorSeer()).check(GEOMETRY, Take(9, 0, sigmas, 0))


@pytest.mark.parametrize(
    "parameters, match",
    [
        (dict(order=-1), "order is -1"),
        (dict(interval=1), "interval is 1. Use at least 2"),
        (dict(first_steps=0), "first_steps is 0"),
    ],
)
def test_parameters_that_say_nothing_are_refused(parameters, match):
    with pytest.raises(ValueError, match=match):
        TaylorSeer(**parameters)


def test_first_steps_that_leave_nothing_to_forecast_are_refused():
    with pytest.raises(ValueError, match="first_steps is 4 and this take has 4.*at most 3"):
        KVPolicy(schedule=TaylorSeer(first_steps=4)).check(GEOMETRY, Take(9, 0, SIGMAS, 0))


@pytest.mark.parametrize("retention", [DeCoPrune(), RandomPrune(DeCoPrune())], ids=repr)
def test_a_retention_that_decides_by_a_forecast_step_is_refused(retention):
    """DeCoPrune scores the prediction of step 2 of four."""
    about = Take(30, 0, (1.0, 0.97, 0.9, 0.6, 0.0), 0)
    KVPolicy(retention, schedule=TaylorSeer()).check(GEOMETRY, about)
    with pytest.raises(ValueError, match="looks at step 2 of 4.*TaylorSeer forecasts that step"):
        KVPolicy(retention, schedule=TaylorSeer(first_steps=2)).check(GEOMETRY, about)
