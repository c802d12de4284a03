"""Schedules with a loop of their own, in the host: guidance, batch, given frames, control, cancel,
progress, and what is refused.
"""

import comfy.model_management
import pytest
import torch
from comfy.ldm.wan.model import WanModel
from keepsake.host.model.profiles import ARProfile, with_profile
from keepsake.kv_policies import ContextRecompute, KVPolicy, RollingForcing
from support import tiny

STEPS = 2
LOOPS = pytest.mark.parametrize(
    "schedule",
    [RollingForcing(8), ContextRecompute(5)],
    ids=lambda schedule: type(schedule).__name__,
)


def take(schedule, model=None, frames=7, **options):
    """A take in chunks of 2, and its stats."""
    stats = []
    noise = options.pop("noise", tiny.noise_of(frames, **tiny.SIZE))
    out = tiny.ours(
        model or tiny.tiny_model(layers=2),
        noise,
        2,
        KVPolicy(schedule=schedule),
        steps=STEPS,
        on_stats=stats.append,
        **options,
    )
    return out, stats[0]


@LOOPS
def test_guidance_pulls_away_from_the_negative(schedule):
    plain = take(schedule)[0]
    guided, stats = take(schedule, cfg=3.0)
    assert stats.streams == 2 and not torch.allclose(guided, plain, atol=0.01)
    same = take(schedule, cfg=3.0, positive=tiny.prompt(1), negative=tiny.prompt(1))[0]
    assert torch.allclose(same, plain, atol=1e-4)  # both branches agree: x + 3 (x - x)


@LOOPS
def test_a_batch_equals_its_items_alone(schedule):
    noise = tiny.noise_of(5, batch=2, **tiny.SIZE)
    together = take(schedule, noise=noise)[0]
    assert torch.equal(together[:1], take(schedule, noise=noise[:1])[0])
    assert not torch.equal(together[:1], together[1:])


@LOOPS
@pytest.mark.parametrize("given", [1, 2, 4])
def test_given_frames_come_out_as_they_came_in_and_are_read(schedule, given):
    prefix = tiny.noise_of(given, seed=8, **tiny.SIZE)
    out, stats = take(schedule, prefix=prefix)
    assert (
        torch.allclose(out[:, :, :given], prefix, atol=1e-5) and out.shape[2] == 7
    )  # the host scales there and back
    assert sum(row.frames for row in stats.chunks if row.given) == given
    assert not torch.allclose(
        out[:, :, given:], take(schedule, prefix=-prefix)[0][:, :, given:], atol=0.01
    )


@LOOPS
def test_control_is_cut_along(schedule):
    model = tiny.tiny_model(layers=2, in_dim=32)
    control = torch.randn((1, 16, 7, 4, 4), generator=torch.Generator().manual_seed(6))
    plain, changed = (
        take(schedule, model, control=c)[0]
        for c in (control, torch.cat([control[:, :, :6], -control[:, :, 6:]], 2))
    )
    early = (
        2 if isinstance(schedule, RollingForcing) else 6
    )  # chunks in flight with the last one hear of its control
    assert torch.equal(plain[:, :, :early], changed[:, :, :early]) and not torch.allclose(
        plain[:, :, 6:], changed[:, :, 6:], atol=1e-3
    )


@LOOPS
@pytest.mark.parametrize("given", [0, 2])
def test_progress_counts_to_its_end(schedule, given):
    seen = []
    take(
        schedule,
        prefix=tiny.noise_of(given, seed=8, **tiny.SIZE) if given else None,
        callback=lambda step, x0, x, total: seen.append((step, total)),
    )
    assert [step for step, _ in seen] == list(range(len(seen))) and {
        total for _, total in seen
    } == {len(seen)}


@LOOPS
def test_a_cancel_leaves_the_next_take_equal(schedule):
    model = tiny.tiny_model(layers=2)
    plain = take(schedule, model)[0]

    def stop(step, x0, x, total):
        if step == 2:
            comfy.model_management.interrupt_current_processing()

    with pytest.raises(comfy.model_management.InterruptProcessingException):
        take(schedule, model, callback=stop)
    assert torch.equal(take(schedule, model)[0], plain)


@LOOPS
def test_both_classes_of_the_host_give_the_same(schedule):
    assert torch.equal(
        take(schedule, tiny.tiny_model(causal=True))[0],
        take(schedule, tiny.tiny_model(causal=False))[0],
    )


def test_frames_in_flight_are_told_their_own_noise_levels(monkeypatch):
    seen, original = [], WanModel.forward_orig

    def watch(self, x, t, *args, **kwargs):
        seen.append([round(float(step), 1) for step in t[0]])
        return original(self, x, t, *args, **kwargs)

    monkeypatch.setattr(WanModel, "forward_orig", watch)
    take(RollingForcing(8), tiny.tiny_model(causal=False, layers=2), frames=5)
    assert seen == [
        [1000.0] * 2,
        [833.3] * 2 + [1000.0] * 2,
        [0.0] * 2,
        [833.3] * 2 + [1000.0],
        [0.0] * 2,
        [833.3],
    ]


def test_the_host_is_told_the_activations_of_all_that_is_in_flight():
    from keepsake.host.take.planning import plan_take
    from keepsake.host.take.request import TakeRequest
    from keepsake.host.take.sampling_call import SamplingCall

    guider = tiny.comfy.samplers.CFGGuider(tiny.prepared(tiny.tiny_model(layers=2)))
    guider.inner_set_conds({"positive": tiny.prompt(1)})
    guider.conds = guider.original_conds
    plans = [
        plan_take(
            guider,
            SamplingCall.of(guider, (1, 16, 12, 4, 4), torch.tensor([1.0, 0.5, 0.0]), 0),
            TakeRequest(policy=policy, chunk_frames=2),
        )
        for policy in (KVPolicy(), KVPolicy(schedule=RollingForcing(8)))
    ]
    assert [
        plan.shape_to_load(guider.model_patcher, (1, 16, 12, 4, 4), cache=False)[2]
        for plan in plans
    ] == [2, 4]


def test_a_prompt_for_a_range_of_noise_levels_is_refused():
    ranged = [[tiny.prompt(1)[0][0], {"start_percent": 0.0, "end_percent": 0.5}]]
    with pytest.raises(
        ValueError, match="range of noise levels cannot be used with Rolling Forcing"
    ):
        take(RollingForcing(8), positive=ranged)
    whole = [[tiny.prompt(1)[0][0], {"start_percent": 0.0, "end_percent": 1.0}]]
    assert torch.isfinite(take(RollingForcing(8), positive=whole)[0]).all()


def test_a_model_with_a_longer_first_chunk_is_refused():
    model = with_profile(
        tiny.patch(tiny.tiny_model(layers=2)),
        ARProfile(name="few", chunk_frames=2, steps=2, first_chunk_steps=4),
    )
    with pytest.raises(ValueError, match="first chunk in 4 steps, and Rolling Forcing"):
        tiny.guide(
            model,
            tiny.sampler(KVPolicy(schedule=RollingForcing(8))),
            tiny.noise_of(7, **tiny.SIZE),
            steps=2,
        )
