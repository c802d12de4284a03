"""With everything kept, a take is bit-equal to the stock AR sampler's at the same seed, on both
classes of the host.
"""

import json

import comfy.ops
import comfy.samplers
import comfy.sd
import pytest
import torch
from support import tiny


@pytest.mark.parametrize("causal", [True, False], ids=["causal class", "plain class"])
@pytest.mark.parametrize("chunk_frames", [1, 3])
@pytest.mark.parametrize("size", [(6, 10), (8, 4)])
def test_full_kv_equals_the_stock_sampler(causal, chunk_frames, size):
    noise = tiny.noise_of(7, *size)  # 7 frames: the last chunk of 3 is short
    assert torch.equal(
        tiny.stock(tiny.tiny_model(), noise, chunk_frames),
        tiny.ours(tiny.tiny_model(causal), noise, chunk_frames),
    )


@pytest.mark.parametrize("chunk_frames", [1, 2])
def test_a_start_image_equals_the_stock_samplers(chunk_frames):
    """The host's ARVideoI2V leaves the start latent on the model; our prefix input is the same
    latent by another way.
    """
    image = tiny.noise_of(1, seed=8)
    expected_model = tiny.tiny_model()
    expected_model.model_options["transformer_options"]["ar_config"] = {"initial_latent": image}
    noise = tiny.noise_of(5)
    expected = tiny.stock(expected_model, noise, chunk_frames)
    assert torch.equal(expected, tiny.ours(expected_model, noise, chunk_frames))
    assert torch.equal(expected, tiny.ours(tiny.tiny_model(), noise, chunk_frames, prefix=image))


def test_a_batch_equals_the_stock_samplers_to_rounding():
    """The stock sampler makes a batch's items together, ours one after another."""
    noise = tiny.noise_of(7, batch=2)
    stock, ours = tiny.stock(tiny.tiny_model(), noise, 3), tiny.ours(tiny.tiny_model(), noise, 3)
    assert float((stock - ours).abs().max()) < 1e-5


def test_a_batch_of_one_prompt_each_equals_its_items_alone():
    noise = tiny.noise_of(5, batch=2)
    prompts = torch.cat([tiny.prompt(1)[0][0], tiny.prompt(2)[0][0]])
    together = tiny.ours(tiny.tiny_model(), noise, 2, positive=[[prompts, {}]])
    assert torch.equal(
        together[:1], tiny.ours(tiny.tiny_model(), noise[:1], 2, positive=tiny.prompt(1))
    )
    sampler = tiny.sampler(chunk_frames=2, noise_index=[1])
    assert torch.equal(
        together[1:],
        tiny.guide(tiny.prepared(tiny.tiny_model()), sampler, noise[1:], positive=tiny.prompt(2)),
    )


def test_a_prepared_model_is_unchanged_in_the_stock_samplers():
    noise = tiny.noise_of(4)
    model = tiny.tiny_model()
    assert torch.equal(tiny.stock(model, noise, 2), tiny.stock(tiny.patch(model), noise, 2))
    sigmas = torch.tensor([1.0, 0.9, 0.5, 0.0])
    euler = comfy.samplers.ksampler("euler")
    assert torch.equal(
        tiny.guide(model, euler, noise, sigmas=sigmas),
        tiny.guide(tiny.patch(model), euler, noise, sigmas=sigmas),
    )


def test_two_branches_of_one_model_do_not_touch_each_other():
    model, noise = tiny.tiny_model(), tiny.noise_of(4)
    before = tiny.stock(model, noise, 2)
    ours = tiny.ours(model, noise, 2)
    assert torch.equal(tiny.stock(model, noise, 2), before)
    assert torch.equal(tiny.ours(model, noise, 2), ours)


def test_bf16_activations_equal_the_stock_samplers():
    def in_bf16():
        model = tiny.tiny_model(weights=torch.bfloat16)
        model.add_object_patch("manual_cast_dtype", None)  # as on a device that computes in bf16
        return model

    noise = tiny.noise_of(7)
    stock, stats = tiny.stock(in_bf16(), noise, 3), []
    assert torch.equal(stock, tiny.ours(in_bf16(), noise, 3, on_stats=stats.append))
    assert stats[0].dtype == "bfloat16"


def test_a_clone_onto_another_model_runs_on_its_own_weights():
    """The host does this for conditionings with hooks, and for other devices."""
    ours, other, noise = tiny.prepared(tiny.tiny_model()), tiny.tiny_model(seed=7), tiny.noise_of(4)
    moved = ours.clone(model_override=other.get_clone_model_override())
    sampler = tiny.sampler(chunk_frames=2)
    assert torch.equal(tiny.guide(moved, sampler, noise), tiny.ours(other, noise, 2))
    euler, sigmas = comfy.samplers.ksampler("euler"), torch.tensor([1.0, 0.5, 0.0])
    assert torch.equal(
        tiny.guide(moved, euler, noise, sigmas=sigmas),
        tiny.guide(tiny.prepared(other), euler, noise, sigmas=sigmas),
    )


def test_half_precision_weights_run():
    """The stock sampler allocates its cache in the weights' dtype and stops where the host computes
    in another one.
    """
    out = tiny.ours(tiny.tiny_model(weights=torch.bfloat16), tiny.noise_of(4), 2)
    assert torch.isfinite(out).all()


def test_a_lora_on_the_model_counts():
    noise = tiny.noise_of(4)
    model = tiny.tiny_model()
    key = "diffusion_model.blocks.1.self_attn.k.weight"
    model.add_patches(
        {key: (torch.randn(64, 64, generator=torch.Generator().manual_seed(4)),)}, 0.5
    )
    changed = tiny.ours(model, noise, 2)
    assert torch.equal(changed, tiny.stock(model, noise, 2))
    assert not torch.equal(changed, tiny.ours(tiny.tiny_model(), noise, 2))


def test_fp8_weights_equal_the_same_weights_in_fp32():
    state, config = tiny.tiny_state()
    rounded = {
        name: value if "patch_embedding" in name else value.to(torch.float8_e4m3fn).to(value.dtype)
        for name, value in state.items()
    }  # the host keeps the patch embedding in fp32
    fp8 = tiny.tiny_model(causal=False, weights=torch.float8_e4m3fn)
    fp32 = comfy.sd.load_diffusion_model_state_dict(
        rounded, metadata={"config": json.dumps({"transformer": config})}
    )
    noise = tiny.noise_of(4)
    assert torch.allclose(tiny.ours(fp8, noise, 2), tiny.ours(fp32, noise, 2), atol=1e-4)


def test_the_users_attention_function_does_the_reading():
    calls = []

    def override(function, q, k, v, heads, **options):
        calls.append((q.shape[1], k.shape[1]))
        return function(q, k, v, heads=heads, **options)

    noise, model = tiny.noise_of(4), tiny.tiny_model()
    expected = tiny.ours(model, noise, 2, steps=2)
    model.model_options["transformer_options"]["optimized_attention_override"] = override
    assert torch.equal(tiny.ours(model, noise, 2, steps=2), expected)
    assert {pair for pair in calls if pair[1] != 7} == {
        (30, 30),
        (30, 60),
    }  # own chunk, then with the one before; 7 is the text


class PackedOps(comfy.ops.manual_cast):
    """Weights that lie packed and are unpacked for each forward, in operations of another pack: as
    GGUF's do.
    """

    class Linear(comfy.ops.manual_cast.Linear):
        def _load_from_state_dict(self, state_dict, prefix, *args):
            weight = state_dict[f"{prefix}weight"]
            self.scale = weight.abs().amax(1, keepdim=True) / 127
            self.weight = torch.nn.Parameter(
                (weight / self.scale).round().to(torch.int8), requires_grad=False
            )
            self.bias = torch.nn.Parameter(state_dict[f"{prefix}bias"], requires_grad=False)

        def forward_comfy_cast_weights(self, x):
            return torch.nn.functional.linear(x, self.weight * self.scale, self.bias)


def test_packed_weights_in_operations_of_another_pack_equal_the_stock_samplers():
    state, config = tiny.tiny_state()
    metadata = {"config": json.dumps({"transformer": {**config, "causal_ar": True}})}
    model = comfy.sd.load_diffusion_model_state_dict(
        state, model_options={"custom_operations": PackedOps}, metadata=metadata
    )
    assert model.model.diffusion_model.blocks[0].self_attn.q.weight.dtype == torch.int8
    noise, kept = tiny.noise_of(7), []
    stock = tiny.stock(model, noise, 3)
    assert torch.equal(stock, tiny.ours(model, noise, 3)) and not torch.equal(
        stock, tiny.ours(tiny.tiny_model(), noise, 3)
    )
    first = tiny.sampler(chunk_frames=3, stop_after=3, on_memory=kept.append)
    tiny.guide(tiny.prepared(model), first, noise)
    assert torch.equal(
        stock,
        tiny.guide(tiny.prepared(model), tiny.sampler(chunk_frames=3, memory=kept[0]), noise),
    )
