"""FlashForward in the host: a MODEL for each role, loaded in turns, and what is refused or told."""

from dataclasses import replace

import comfy.model_management
import comfy.sd
import pytest
import torch
from keepsake.host.model.profiles import ARProfile, with_profile
from keepsake.host.take.patch import patch
from keepsake.kv_policies import FlashForward, KVPolicy
from keepsake.nodes.schedules import PolicyFlashForward
from support import tiny

SMALL = FlashForward(
    anchor_stride=4,
    block_anchors=2,
    anchor_window=2,
    planner_history=1,
    stage_history=1,
    budget_frames=6,
)
KEY, LAYERS = (
    "diffusion_model.blocks.0.cross_attn.k.weight",
    2,
)  # a LoRA on the text keys shows where one role's are used for the other


def models(change=0.5):
    """A MODEL, the same weights with a change as a LoRA's patch on a clone, and that change in a
    file of its own.
    """
    base = tiny.tiny_model(layers=LAYERS)
    delta = torch.randn((64, 64), generator=torch.Generator().manual_seed(5)) * change
    lora = base.clone()
    lora.add_patches({KEY: ("diff", (delta,))})
    state, config = tiny.tiny_state(layers=LAYERS)
    state[KEY.removeprefix("diffusion_model.")] += delta
    separate = comfy.sd.load_diffusion_model_state_dict(
        state, metadata={"config": tiny.json.dumps({"transformer": {**config, "causal_ar": True}})}
    )
    return base, lora, separate


def take(model, planner=None, renderer=None, frames=9, **options):
    roles = {"planner": planner, "renderer": renderer}
    stats = []
    out = tiny.ours(
        model,
        options.pop("noise", tiny.noise_of(frames, **tiny.SIZE)),
        2,
        KVPolicy(
            schedule=SMALL,
            models={role: patch(model) for role, model in roles.items() if model},
        ),
        steps=2,
        on_stats=stats.append,
        **options,
    )
    return out, stats[0]


def forwards(model):
    """Latent frames of each forward of a MODEL's module."""
    seen = []
    model.model.diffusion_model.patch_embedding.register_forward_pre_hook(
        lambda module, args: seen.append(args[0].shape[2])
    )
    return seen


def test_each_role_runs_its_own_model():
    base, _, other = models()
    rendered, planned = forwards(base), forwards(other)
    take(base, planner=other)
    # 9 frames: anchors 0 4 | 8, each block two steps and a clean forward; five chunks, the last of
    # one frame, two steps each.
    assert planned == [2, 2, 2, 1, 1, 1] and rendered == [2] * 8 + [1] * 2


@pytest.mark.parametrize("role", ["planner", "renderer"])
def test_a_lora_on_the_same_weights_equals_a_model_of_its_own(role):
    base, lora, separate = models()
    plain, _ = take(base)
    by_lora, _ = take(base, **{role: lora})
    assert torch.equal(by_lora, take(base, **{role: separate})[0]) and not torch.equal(
        by_lora, plain
    )
    assert torch.equal(take(base)[0], plain)  # the sampler's model comes back as it was


def test_both_roles_on_one_lora_equal_that_model_as_the_samplers():
    base, lora, _ = models()
    assert torch.equal(take(base, lora, lora)[0], take(lora)[0])
    assert torch.equal(take(base, base, base)[0], take(base)[0])


def test_guidance_batch_and_prefix_go_to_both_roles():
    base, lora, separate = models()
    for options in (
        dict(cfg=3.0),
        dict(noise=tiny.noise_of(9, batch=2, **tiny.SIZE)),
        dict(prefix=tiny.noise_of(5, seed=8, **tiny.SIZE)),
    ):
        out, stats = take(base, planner=lora, **options)
        assert torch.equal(
            out, take(base, planner=separate, **options)[0]
        ) and stats.streams == 1 + ("cfg" in options)


def test_control_goes_to_both_roles():
    base = tiny.tiny_model(layers=LAYERS, in_dim=32)
    control = torch.randn((1, 16, 9, 4, 4), generator=torch.Generator().manual_seed(6))
    plain = take(base, control=control)[0]
    assert torch.equal(take(base, base, control=control)[0], plain) and not torch.equal(
        take(base, base, control=-control)[0], plain
    )


def test_a_cancel_leaves_the_samplers_model_as_it_was():
    base, lora, _ = models()
    plain = take(base)[0]

    def stop(step, x0, x, total):
        if step == 1:  # the planner has the weights
            comfy.model_management.interrupt_current_processing()

    with pytest.raises(comfy.model_management.InterruptProcessingException):
        take(base, planner=lora, callback=stop)
    assert torch.equal(take(base)[0], plain)


def test_a_change_of_role_tells_the_host_what_is_needed(monkeypatch):
    """The cache counts until it is allocated, by the first forward, which is the planner's."""
    base, lora, _ = models()
    collected, load = [], comfy.model_management.load_models_gpu

    def spy(models, memory_required=0, minimum_memory_required=None, **kwargs):
        collected.append(minimum_memory_required)
        return load(
            models,
            memory_required=memory_required,
            minimum_memory_required=minimum_memory_required,
            **kwargs,
        )

    monkeypatch.setattr(comfy.model_management, "load_models_gpu", spy)
    _, stats = take(base, planner=lora)
    chunk = base.model.memory_required([1, 16, 2, 4, 4])
    assert len(collected) == 5  # the host's own, then planner, renderer, planner, renderer
    assert min(collected[:2]) >= chunk + stats.peak_cache_bytes and collected[2:] == [chunk] * 3


def test_the_stats_tell_the_roles_and_warn_once():
    base, lora, _ = models()
    _, alone = take(base)
    assert (
        alone.report().count("expect the take to drift") == 1
        and "planner_model the sampler's" in alone.report()
    )
    trained, collected = with_profile(patch(base), ARProfile(noisy_history=True)), []
    tiny.guide(
        trained,
        tiny.sampler(KVPolicy(schedule=SMALL), 2, on_stats=collected.append),
        tiny.noise_of(9, **tiny.SIZE),
        steps=2,
    )
    assert "drift" not in collected[0].report()
    _, roles = take(base, planner=lora)
    assert (
        "drift" not in roles.report()
        and "planner_model its own" in roles.report()
        and '"renderer_model": "the sampler\'s"' in roles.to_json()
    )


@pytest.mark.parametrize(
    "other, words",
    [
        (dict(layers=3), "planner_model has layers 3, the sampler's model 2"),
        (
            dict(layers=LAYERS, in_dim=32),
            "planner_model has control_channels 16, the sampler's model 0",
        ),
    ],
)
def test_a_model_that_cannot_share_the_memory_is_refused(other, words):
    base = models()[0]
    with pytest.raises(ValueError, match=words):
        take(base, planner=tiny.tiny_model(**other))


def test_a_model_that_is_not_prepared_is_refused():
    base, lora, _ = models()
    with pytest.raises(ValueError, match="renderer_model has not been prepared"):
        tiny.ours(
            base,
            tiny.noise_of(5, **tiny.SIZE),
            2,
            KVPolicy(schedule=SMALL, models={"renderer": lora}),
        )


def test_the_node_prepares_its_models_and_appends_its_inputs():
    base, lora, _ = models()
    inputs = [part.id for part in PolicyFlashForward.define_schema().inputs]
    assert inputs == [
        "anchor_stride",
        "block_anchors",
        "anchor_window",
        "planner_history",
        "stage_history",
        "budget_frames",
        "kv_policy",
        "planner_model",
        "renderer_model",
    ]
    numbers = dict(
        anchor_stride=4,
        block_anchors=2,
        anchor_window=2,
        planner_history=1,
        stage_history=1,
        budget_frames=6,
    )
    policy = PolicyFlashForward.execute(**numbers, planner_model=lora)[0]
    assert (
        hash(policy) == hash(replace(policy))
        and policy == replace(policy)
        and policy.schedule == SMALL
        and list(policy.models) == ["planner"]
    )
    out = tiny.ours(base, tiny.noise_of(9, **tiny.SIZE), 2, policy, steps=2)
    assert torch.equal(out, take(base, planner=lora)[0])
