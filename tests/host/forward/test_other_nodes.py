"""The host's other nodes on the same MODEL: they work in a take, or are refused before it; none
makes it wrong unseen.
"""

from types import MethodType

import pytest
import torch
from comfy.ldm.wan.ar_model import CausalWanSelfAttention
from comfy_extras import (
    nodes_apg,
    nodes_cfg,
    nodes_context_windows,
    nodes_easycache,
    nodes_fresca,
    nodes_mahiro,
    nodes_model_advanced,
    nodes_nag,
    nodes_rope,
    nodes_slg,
    nodes_tcfg,
)
from keepsake.kv_policies import DeepForcing, FlashForward, Hierarchical, KVPolicy, RollingForcing
from support import tiny

CHUNK = 3


@pytest.fixture(scope="module")
def model(model):
    return tiny.prepared(model)


def behind(node, model, *values):
    """The MODEL that a node of the host makes of ours."""
    if hasattr(node, "execute"):
        return node.execute(model, *values)[0]
    return getattr(node(), node.FUNCTION)(model, *values)[0]


def take(model, cfg=1.0, **options):
    return tiny.guide(
        model,
        tiny.sampler(chunk_frames=CHUNK),
        tiny.noise_of(7, **tiny.SIZE),
        cfg=cfg,
        steps=options.pop("steps", 2),
        **options,
    )


def windows(model, frames):
    return behind(
        nodes_context_windows.WanContextWindowsManualNode,
        model,
        frames,
        0,
        "standard_static",
        1,
        False,
        "pyramid",
        False,
    )


@pytest.mark.parametrize(
    "node, values",
    [
        (nodes_cfg.CFGZeroStar, ()),
        (nodes_cfg.CFGNorm, (0.7,)),
        (nodes_fresca.FreSca, (1.0, 1.25, 20)),
        (nodes_mahiro.Mahiro, ()),
        (nodes_tcfg.TCFG, ()),
        (nodes_apg.APG, (1.0, 5.0, 0.5)),
        (nodes_model_advanced.RescaleCFG, (0.7,)),
        (nodes_nag.NAGuidance, (5.0, 0.5, 1.5)),
        (nodes_slg.SkipLayerGuidanceDiT, (3.0, 0.0, 1.0, "1", "")),
        (nodes_model_advanced.ModelSamplingAuraFlow, (3.0,)),
        (nodes_rope.ScaleROPE, (1.5, 0.0, 1.5, 0.0, 1.0, 0.0)),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_node_of_the_host_works_and_leaves_the_model_alone(node, values, model):
    plain = take(model, 3.0)
    assert torch.isfinite(take(behind(node, model, *values), 3.0)).all()
    assert torch.equal(take(model, 3.0), plain)


@pytest.mark.parametrize("node", [nodes_easycache.EasyCacheNode, nodes_easycache.LazyCacheNode])
def test_forwards_that_a_cache_would_leave_out_are_refused(node, model):
    steps = []
    with pytest.raises(ValueError, match="EasyCache or LazyCache .* Remove it"):
        take(
            behind(node, model, 0.2, 0.15, 0.95, False),
            callback=lambda *progress: steps.append(progress),
            steps=4,
        )
    assert not steps


def test_a_forward_that_another_pack_leaves_out_ends_the_take(model):
    """TeaCache and its kin give an earlier forward's output again."""
    other, outputs = model.clone(), []

    def skip(apply_model, call):
        if not outputs:
            outputs.append(apply_model(call["input"], call["timestep"], **call["c"]))
        return outputs[0]

    other.set_model_unet_function_wrapper(skip)
    with pytest.raises(
        ValueError,
        match="latent frames 0 to 2 did not reach the model's attention.* Remove the node",
    ):
        take(other)


def nothing(x, *args, **options):
    return 0 * x


def nothing_as_a_method(self, x, *args, **options):
    return 0 * x


def with_attention(model, layer, part="self_attn", bound=False):
    """Another pack's patch on one layer, as Enhance-A-Video's on all: a function, or a method that
    is bound to the host's own module.
    """
    other = model.clone()
    key = f"diffusion_model.blocks.{layer}.{part}"
    method = MethodType(nothing_as_a_method, other.get_model_object(key))
    other.add_object_patch(f"{key}.forward", method if bound else nothing)
    return other


@pytest.mark.parametrize("bound", [False, True], ids=["function", "method"])
@pytest.mark.parametrize("layer", [0, 1])
def test_a_self_attention_of_another_pack_is_refused_and_not_left_out(layer, bound, model):
    says = "has another node's self-attention in 1 of its layers"
    with pytest.raises(ValueError, match=says):
        take(tiny.prepared(with_attention(tiny.tiny_model(layers=2), layer, bound=bound)))
    behind_ours = with_attention(model, layer, bound=bound)
    with pytest.raises(ValueError, match="has not been prepared"):
        take(behind_ours)
    with pytest.raises(ValueError, match=says):
        take(tiny.prepared(behind_ours))


def test_a_self_attention_whose_class_another_pack_has_changed_is_refused(model, monkeypatch):
    monkeypatch.setattr(CausalWanSelfAttention, "forward", nothing_as_a_method)
    with pytest.raises(ValueError, match="has another node's self-attention in 2 of its layers"):
        take(tiny.prepared(tiny.tiny_model(layers=2)))


@pytest.mark.parametrize("bound", [False, True], ids=["function", "method"])
@pytest.mark.parametrize("first", [False, True], ids=["behind ours", "before ours"])
def test_a_cross_attention_of_another_pack_works_in_a_take(first, bound, model):
    """It gives nothing in any layer, so the words are never heard."""
    other = tiny.tiny_model(layers=2) if first else model
    for layer in range(2):
        other = with_attention(other, layer, "cross_attn", bound)
    other = tiny.prepared(other)
    assert torch.equal(take(other), take(other, positive=tiny.prompt(5)))
    assert not torch.equal(take(model), take(model, positive=tiny.prompt(5)))


FLASH = KVPolicy(
    schedule=FlashForward(
        anchor_stride=4, block_anchors=2, anchor_window=2, planner_history=2, stage_history=2
    )
)
SCHEDULES = pytest.mark.parametrize(
    "policy",
    [
        KVPolicy(),
        KVPolicy(DeepForcing(1, 5, 3, 6)),  # its layers choose in each chunk's first forward
        KVPolicy(schedule=Hierarchical(9)),
        KVPolicy(schedule=RollingForcing(12)),
        FLASH,
    ],
    ids=["CleanPass", "DeepForcing", "Hierarchical", "RollingForcing", "FlashForward"],
)


@pytest.fixture(scope="module")
def deep():
    """Of three layers: where layer 1 is left out, layer 2 has other keys and values."""
    return tiny.prepared(tiny.tiny_model(layers=3))


def skipping(model, scale=1e-6):
    """The host's Skip Layer Guidance: it runs the positive prompt once more, without layer 1."""
    return behind(nodes_slg.SkipLayerGuidanceDiT, model, scale, 0.0, 1.0, "1", "")


def take_of(policy, model, **options):
    return tiny.guide(
        model,
        tiny.sampler(policy, CHUNK),
        tiny.noise_of(15, **tiny.SIZE),
        cfg=3.0,
        steps=3,
        **options,
    )


@SCHEDULES
def test_history_is_the_steps_own_forward(policy, deep):
    """At a scale of next to nothing, one more forward a step changes next to nothing; under
    FlashForward it was 1.1, since that forward's keys and values were remembered.
    """
    plain = take_of(policy, deep)
    assert (take_of(policy, skipping(deep)) - plain).abs().max() < 1e-3
    assert (take_of(policy, skipping(deep, 3.0)) - plain).abs().max() > 0.1


@SCHEDULES
def test_a_layer_that_is_left_out_of_the_negative_prompts_forwards(policy, model):
    """Its keys and values do not exist. Where a clean pass writes them, the take works."""
    simple = behind(nodes_slg.SkipLayerGuidanceDiTSimple, model, 0.0, 1.0, "1", "")
    if policy is FLASH:
        with pytest.raises(ValueError, match=r"leaves layers of the model \(1\) out of a forward"):
            take_of(policy, simple)
    else:
        assert torch.isfinite(take_of(policy, simple)).all()


@SCHEDULES
def test_a_layer_that_runs_for_a_part_of_the_prompts_is_refused(policy, model):
    def first_row(args, original):
        one = {name: args[name][:1] for name in ("img", "txt", "vec")}
        part = original["original_block"]({**args, **one})
        return {"img": torch.cat([part["img"], args["img"][1:]])}

    other, steps = model.clone(), []
    other.set_model_patch_replace(first_row, "dit", "double_block", 1)
    with pytest.raises(ValueError, match="runs layer 1 of the model for 1 of the 2 prompts"):
        take_of(policy, other, callback=lambda *progress: steps.append(progress))
    assert not steps


def test_windows_over_a_chunk_are_refused_and_longer_ones_do_nothing(model):
    assert torch.equal(
        take(windows(model, 9)), take(model)
    )  # three latent frames, as many as a chunk
    steps = []
    with pytest.raises(
        ValueError, match="windows of 2, and 3 belong together in a chunk here. Remove it"
    ):
        take(windows(model, 5), callback=lambda *progress: steps.append(progress))
    assert not steps


def test_a_sampling_rule_that_is_no_flow_is_refused(model):
    with pytest.raises(ValueError, match="is sampled by ModelSamplingAdvanced, .* rectified flow"):
        take(behind(nodes_model_advanced.ModelSamplingDiscrete, model, "v_prediction", False))
