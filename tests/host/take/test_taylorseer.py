"""TaylorSeer in the real host, on tiny Wan models."""

import pytest
import torch
from comfy.patcher_extension import WrappersMP
from comfy_extras import nodes_slg
from keepsake.host.budget.of_inputs import budget_of_inputs
from keepsake.host.budget.report import budget_dict, budget_report, size
from keepsake.kv_policies import KVPolicy, KVStorage, SinkWindow, TaylorSeer
from keepsake.rollout.estimate import estimate
from support import tiny

CHUNK, LAYERS, WIDTH = 3, 2, 64
FORECAST = KVPolicy(schedule=TaylorSeer())


def take(model, policy, frames=9, on_stats=lambda stats: None, **options):
    sampler = tiny.sampler(policy, CHUNK, on_stats=on_stats)
    return tiny.guide(model, sampler, tiny.noise_of(frames, **tiny.SIZE), **options)


@pytest.fixture(scope="module")
def prepared(model):
    return tiny.prepared(model)


class InTheStep:
    """A module whose output is a straight line in the number of the step, whatever comes in; in a
    clean pass that of the step after the last.
    """

    def __init__(self, clock, seed):
        self.clock, self.calls = clock, 0
        random = torch.Generator().manual_seed(seed)
        self.offset, self.slope = torch.randn(2, WIDTH, generator=random) * 0.3

    def __call__(self, x, *args, **options):
        self.calls += 1
        return (self.offset + self.slope * self.clock["step"]).expand(*x.shape[:2], WIDTH)


def in_the_step(steps=4):
    """A MODEL whose self-attentions give nothing but a constant, and whose other modules are
    straight lines in the step.
    """
    model = tiny.tiny_model(layers=LAYERS)
    clock, levels = {}, []

    def tick(executor, x, timestep, *args, **options):
        level = float(timestep.flatten()[0])
        if level and level not in levels:
            levels.append(level)
        clock["step"] = levels.index(level) if level else steps
        return executor(x, timestep, *args, **options)

    model.add_wrapper_with_key(WrappersMP.DIFFUSION_MODEL, "clock", tick)
    lines = []
    for layer in range(LAYERS):
        block = f"diffusion_model.blocks.{layer}"
        torch.nn.init.zeros_(model.get_model_object(f"{block}.self_attn.o.weight"))
        for part in ("cross_attn", "ffn"):
            lines.append(InTheStep(clock, len(lines)))
            model.add_object_patch(f"{block}.{part}.forward", lines[-1])
    return tiny.prepared(model), lines


@pytest.mark.parametrize("steps, first_steps", [(4, 3), (4, 2), (8, 2)])
def test_a_model_that_can_be_forecast_makes_the_same_take(steps, first_steps):
    """All else of the model is computed: the new noisy latents, the time step, the head."""
    model, lines = in_the_step(steps)
    schedule = TaylorSeer(interval=4, first_steps=first_steps)
    plain = take(model, KVPolicy(), steps=steps)
    calls = [line.calls for line in lines]
    assert calls == [3 * steps + 2] * len(lines)  # two clean passes
    out = take(model, KVPolicy(schedule=schedule), steps=steps)
    assert (out - plain).abs().max() < 1e-4 * plain.abs().max()
    computed = steps - len(schedule.forecast_steps(steps))
    assert [line.calls - before for line, before in zip(lines, calls)] == [3 * computed + 2] * 4
    reused = TaylorSeer(order=0, interval=4, first_steps=first_steps)
    apart = take(model, KVPolicy(schedule=reused), steps=steps) - plain
    assert apart.abs().max() > 1e-2  # order 0 gives the last output again


@pytest.mark.parametrize("cfg", [1.0, 3.0])
def test_the_stats_say_what_was_forecast_and_the_plan_what_is_held_for_it(prepared, cfg, plans):
    """Chunks of 3, 3 and 1 frames of 4 tokens of 64 fp32 numbers: three modules in two layers, of
    orders 0 and 1.
    """
    stats = []
    policy = KVPolicy(SinkWindow(1, 5), schedule=TaylorSeer())
    take(prepared, policy, 7, stats.append, cfg=cfg)
    streams = 1 if cfg == 1 else 2
    held = [streams * 3 * LAYERS * 2 * frames * 4 * WIDTH * 4 for frames in (3, 3, 1)]
    rows = stats[0].chunks
    assert [(row.forecast_steps, row.feature_bytes) for row in rows] == [
        ((3,), nbytes) for nbytes in held
    ]
    chunks = estimate(plans[-1].take_plan).least
    assert [(chunk.row.forecast_steps, chunk.row.feature_bytes) for chunk in chunks] == [
        ((3,), nbytes) for nbytes in held
    ]
    without = KVPolicy(SinkWindow(1, 5))
    take(prepared, without, 7, cfg=cfg)
    assert plans[-2].take_bytes - plans[-1].take_bytes == held[0]
    assert "forecast - 3 of the 12 steps of new chunks were not computed (step 3" in (
        stats[0].report()
    )
    assert stats[0].policy["schedule"]["interval"] == 5


def test_the_estimate_says_what_is_held_for_the_forecast(prepared):
    latent = {"samples": tiny.noise_of(9, **tiny.SIZE)}
    options = dict(cfg=1.0, chunk_frames=CHUNK, prefix=None, prompts=1)
    budgets = [
        budget_of_inputs(prepared, latent, steps=4, policy=policy, **options)
        for policy in (KVPolicy(), FORECAST)
    ]
    held = 3 * LAYERS * 2 * 3 * 4 * WIDTH * 4
    plain, forecast = map(budget_dict, budgets)
    assert (plain["feature_bytes"], forecast["feature_bytes"]) == (0, held)
    assert forecast["needed_bytes"][0] - plain["needed_bytes"][0] == held
    plain, forecast = map(budget_report, budgets)
    says = f"for the steps that are forecast - {size(held)} of outputs"
    assert says in forecast and "forecast" not in plain


def test_it_is_another_take_that_repeats_and_leaves_the_model_alone(prepared):
    plain = take(prepared, KVPolicy())
    out = take(prepared, FORECAST)
    assert torch.isfinite(out).all() and not torch.equal(out, plain)
    assert torch.equal(take(prepared, FORECAST), out)
    assert torch.equal(take(prepared, KVPolicy()), plain)


@pytest.mark.parametrize(
    "storage", [KVStorage("int8", 1, 0), KVStorage("model", device="cpu")], ids=repr
)
def test_it_goes_with_what_holds_the_history(prepared, storage):
    policy = KVPolicy(SinkWindow(1, 7), schedule=TaylorSeer(), storage=storage)
    out = take(prepared, policy, 12)
    assert torch.isfinite(out).all()
    if storage.device == "cpu":
        on_device = KVPolicy(SinkWindow(1, 7), schedule=TaylorSeer())
        assert torch.equal(out, take(prepared, on_device, 12))


def test_items_of_a_batch_hold_features_of_their_own(prepared):
    both = tiny.guide(
        prepared, tiny.sampler(FORECAST, CHUNK), tiny.noise_of(6, batch=2, **tiny.SIZE)
    )
    first = tiny.guide(
        prepared, tiny.sampler(FORECAST, CHUNK), tiny.noise_of(6, batch=2, **tiny.SIZE)[:1]
    )
    assert torch.allclose(both[:1], first, atol=1e-5)


def prompt_from(prompt, start, end):
    """Of a part of the steps."""
    return [[prompt[0][0], {"start_percent": start, "end_percent": end}]]


def test_a_prompt_that_begins_at_a_forecast_step_is_computed_there(prepared):
    """The first prompt's streams have held outputs there, the second's have not."""
    positive = prompt_from(tiny.prompt(1), 0.0, 0.55) + prompt_from(tiny.prompt(4), 0.55, 1.0)
    stats = []
    out = take(prepared, FORECAST, 6, stats.append, positive=positive)
    assert torch.isfinite(out).all()
    assert [row.forecast_steps for row in stats[0].chunks] == [()] * 2


def test_an_extra_forward_of_a_guider_is_computed(prepared):
    """Skip Layer Guidance runs the positive prompt once more without layer 1. At a scale of next
    to nothing it changes next to nothing.
    """
    (skipping,) = nodes_slg.SkipLayerGuidanceDiT.execute(prepared, 1e-6, 0.0, 1.0, "1", "").args
    plain = take(prepared, FORECAST, cfg=3.0)
    assert (take(skipping, FORECAST, cfg=3.0) - plain).abs().max() < 1e-3


def test_few_steps_are_refused_before_any_work(prepared):
    steps = []
    with pytest.raises(ValueError, match="this take has 2, too few.*remove TaylorSeer"):
        take(prepared, FORECAST, steps=2, callback=lambda *progress: steps.append(progress))
    assert not steps
