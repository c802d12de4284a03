"""From a file in any layout to the same MODEL with a profile."""

import json
import os
from dataclasses import replace
from pathlib import Path

import comfy.ops
import comfy.sd
import folder_paths
import pytest
import torch
from comfy.ldm.wan.model import WanModel
from keepsake.host.keys import PROFILE
from keepsake.host.model import file_names
from keepsake.host.model.checkpoint import load_ar_model
from keepsake.host.model.layouts import DIFFUSERS, wan_name
from keepsake.host.model.profiles import ARProfile, profile_of
from keepsake.host.model.published import CHECKPOINTS, PROFILES
from keepsake.host.take.patch import patch
from keepsake.nodes.model import ARVideoModelLoader
from safetensors.torch import save_file
from support import tiny

WIDTH = 128  # one head: the least that the host reads out of a file without a header
CAUSAL = {"config": json.dumps({"transformer": {"causal_ar": True}})}


@pytest.fixture(autouse=True)
def tiny_table(monkeypatch):
    """The table's checkpoints, at the width of the files here."""
    monkeypatch.setattr(
        file_names, "CHECKPOINTS", tuple(replace(row, width=WIDTH) for row in CHECKPOINTS)
    )


def weights(seed=0, channels=16, blocks=2) -> dict[str, torch.Tensor]:
    model = WanModel(
        in_dim=channels,
        out_dim=channels,
        dim=WIDTH,
        ffn_dim=64,
        freq_dim=256,
        text_dim=4096,
        num_heads=1,
        num_layers=blocks,
        operations=comfy.ops.disable_weight_init,
        device="cpu",
        dtype=torch.float32,
    )
    random = torch.Generator().manual_seed(seed)
    return {
        name: torch.ones(p.shape)
        if "norm" in name and name.endswith("weight")
        else torch.randn(p.shape, generator=random) * (p[0].numel() if p.ndim > 1 else 16) ** -0.5
        for name, p in model.named_parameters()
    }


def in_wrappers(state):
    """As torch's FSDP, activation checkpointing and compile leave the names of an authors' wrapper
    class.
    """
    return {
        "model._fsdp_wrapped_module."
        + name.replace("blocks.1.", "blocks.1._checkpoint_wrapped_module._orig_mod."): value
        for name, value in state.items()
    }


def in_diffusers(state):
    """Diffusers' own names (its scripts/convert_wan_to_diffusers.py), the other way round than the
    loader goes.
    """
    lines = {"head.modulation": "scale_shift_table"}
    return {lines.get(name) or theirs_of(name): value for name, value in state.items()}


def theirs_of(name):
    attention = "attn1" if "self_attn" in name else "attn2"
    for ours, theirs in (
        ("self_attn.", "attn1."),
        ("cross_attn.", "attn2."),
        *((f"{attention}.{k}.", f"{attention}.to_{k}.") for k in "qkv"),
        (f"{attention}.o.", f"{attention}.to_out.0."),
        (".ffn.0.", ".ffn.net.0.proj."),
        (".ffn.2.", ".ffn.net.2."),
        ("norm3", "norm2"),
        (".modulation", ".scale_shift_table"),
        ("head.head", "proj_out"),
        ("time_projection.1", "condition_embedder.time_proj"),
        *(
            (f"{what}_embedding.{2 * i}", f"condition_embedder.{what}_embedder.linear_{i + 1}")
            for what in ("time", "text")
            for i in (0, 1)
        ),
    ):
        name = name.replace(ours, theirs)
    return name


def pair(state, other):
    return {
        "generator": in_wrappers(other),
        "generator_ema": in_wrappers(state),
        "critic": in_wrappers(other),
        "step": 600,
    }


# File, how its weights lie there beside another set, profile that it gets without asking.
LAYOUTS = {
    "self_forcing_dmd.pt": (pair, "Self-Forcing (chunk-wise)"),
    "Causal-Forcing/chunkwise/causal_forcing.pt": (
        lambda state, other: pair(other, state),
        "Causal-Forcing (chunk-wise)",
    ),
    "Causal-Forcing/framewise/causal_forcing.pt": (
        lambda state, other: {"generator_ema": in_wrappers(state)},
        "Causal-Forcing (frame-wise)",
    ),
    "causal-forcing++/framewise-1step.pt": (
        lambda state, other: {"generator_ema": in_wrappers(state)},
        "Causal-Forcing++ 1-step (frame-wise)",
    ),
    "causal-forcing++/framewise-2step.pt": (
        lambda state, other: {"generator_ema": in_wrappers(state)},
        "Causal-Forcing++ 2-step (frame-wise)",
    ),
    "causal_forcing_chunkwise_longvideo.pt": (pair, "Causal-Forcing long video"),
    "causal_forcing-framewise.safetensors": (
        lambda state, other: state,
        "Causal-Forcing (frame-wise)",
    ),
    "longlive_base.pt": (
        lambda state, other: {"generator": in_wrappers(state), "step": torch.tensor(700)},
        "LongLive 1.3B",
    ),
    "longlive_merged.pt": (lambda state, other: {"model": state}, "LongLive 1.3B"),
    "rolling_forcing_dmd.pt": (pair, "Rolling Forcing"),
    "hiar.pt": (pair, "HiAR"),
    "raven_model.pt": (lambda state, other: state, "RAVEN"),
    "krea-realtime-video-14b.safetensors": (lambda state, other: state, "Krea Realtime 14B"),
    "krea-realtime-video-14b-fp32-00001-of-00003.safetensors": (
        lambda state, other: state,
        "Krea Realtime 14B",
    ),
    "SFWan2.1-T2V-1.3B-Diffusers/transformer/diffusion_pytorch_model.safetensors": (
        lambda state, other: in_diffusers(state),
        "FastVideo Self-Forcing 1.3B",
    ),
    "SFWan2.1-T2V-1.3B-Diffusers/transformer/diffusion_pytorch_model-00002-of-00002.safetensors": (
        lambda state, other: in_diffusers(state),
        "FastVideo Self-Forcing 1.3B",
    ),
    "self-forcing-with-prefix.safetensors": (
        lambda state, other: {
            f"model.diffusion_model.{name}": value for name, value in state.items()
        },
        "Self-Forcing (chunk-wise)",
    ),
}


def write(folder, name, content, header=None) -> str:
    """A file, or all shards of which `name` is one; the path of `name`."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".pt":
        torch.save(content, path)
    elif "-of-" in name:
        stem, count = str(path)[: -len("-00001-of-00003.safetensors")], int(path.stem[-5:])
        keys = sorted(content)
        for i in range(count):
            save_file(
                {key: content[key] for key in keys[i::count]},
                f"{stem}-{i + 1:05}-of-{count:05}.safetensors",
            )
        index = {
            key: f"{os.path.basename(stem)}-{i % count + 1:05}-of-{count:05}.safetensors"
            for i, key in enumerate(keys)
        }
        (path.parent / f"{os.path.basename(stem)}.safetensors.index.json").write_text(
            json.dumps({"weight_map": index})
        )
    else:
        save_file({key: value.contiguous() for key, value in content.items()}, path, header)
    return str(path)


def video(model, channels=16, steps=4):
    text = [[torch.randn((1, 5, 4096), generator=torch.Generator().manual_seed(1)), {}]]
    noise = torch.randn((1, channels, 2, 4, 4), generator=torch.Generator().manual_seed(2))
    return tiny.guide(
        patch(model), tiny.sampler(tiny.KVPolicy(), 1), noise, text, text, steps=steps
    )


@pytest.fixture(scope="module")
def expected():
    """The host's own loader on the plain weights, and the video it makes."""
    model = tiny.prepared(comfy.sd.load_diffusion_model_state_dict(weights()))
    return model.model.diffusion_model.state_dict(), video(model)


def same(model, expected) -> bool:
    got = model.model.diffusion_model.state_dict()
    return got.keys() == expected[0].keys() and all(
        torch.equal(got[key], value) for key, value in expected[0].items()
    )


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_loads_to_the_same_tensors_and_video(name, tmp_path, expected):
    content, profile = LAYOUTS[name]
    lines = []
    model = load_ar_model(
        write(tmp_path, name, content(weights(), weights(seed=9))),
        None,
        name=name,
        tell=lines.append,
    )
    assert same(model, expected) and torch.equal(video(model), expected[1])
    assert profile_of(model.model_options) == PROFILES[profile]
    assert (
        lines[0].startswith(f"'{name}' is a Wan model 128 wide")
        and f"profile '{profile}', recognised by the file's name" in lines[0]
    )


@pytest.mark.parametrize("header", [None, CAUSAL], ids=["without metadata", "with causal metadata"])
def test_a_stock_file_loads_with_the_chosen_profile(header, tmp_path, expected):
    path = write(tmp_path, "mine.safetensors", weights(), header)
    model = load_ar_model(path, PROFILES["Causal-Forcing (frame-wise)"])
    assert type(model.model).__name__ == ("WAN21_CausalAR" if header else "WAN21")
    assert same(model, expected) and torch.equal(video(model), expected[1])
    with pytest.raises(
        ValueError, match="'mine.safetensors' does not say how it was trained. Choose a profile"
    ):
        load_ar_model(path, None)


def test_the_index_of_shards_loads_the_whole(tmp_path, expected):
    write(tmp_path, "longlive-00001-of-00003.safetensors", weights())
    assert same(load_ar_model(str(tmp_path / "longlive.safetensors.index.json"), None), expected)


def test_longlive_2_has_48_channels(tmp_path):
    state, lines = weights(channels=48), []
    name = "LongLive-2.0-5B/model_bf16.pt"
    model = load_ar_model(write(tmp_path, name, state), None, name=name, tell=lines.append)
    assert (
        profile_of(model.model_options) == PROFILES["LongLive 2 5B"]
        and "48 latent channels" in lines[0]
    )
    host = comfy.sd.load_diffusion_model_state_dict(weights(channels=48))
    assert torch.equal(video(model, 48), video(tiny.prepared(host), 48))
    with pytest.raises(
        ValueError,
        match="'Self-Forcing \\(chunk-wise\\)' is that of a model with 16 latent channels, and "
        "'model_bf16.pt' has 48",
    ):
        load_ar_model(
            write(tmp_path, "model_bf16.pt", state), PROFILES["Self-Forcing (chunk-wise)"]
        )


def test_a_file_that_names_its_profile_needs_no_choice(tmp_path):
    profile, lines = (
        ARProfile(
            name="mine",
            chunk_frames=2,
            steps=3,
            shift=7.0,
            window_frames=9,
            sink_frames=2,
            sigmas=(1.0, 0.9, 0.5),
        ),
        [],
    )
    model = load_ar_model(
        write(tmp_path, "longlive.safetensors", weights(), {PROFILE: profile.to_json()}),
        None,
        tell=lines.append,
    )
    assert (
        profile_of(model.model_options) == profile
        and "profile 'mine', from the file's header" in lines[0]
    )
    assert model.get_model_object("model_sampling").shift == 7.0


def test_what_the_line_says(tmp_path, caplog):
    lines, name = [], "Causal-Forcing/framewise/causal_forcing.pt"
    with caplog.at_level("INFO"):
        load_ar_model(
            write(tmp_path, name, LAYOUTS[name][0](weights(), None)),
            None,
            name=name,
            tell=lines.append,
        )
    assert lines == [
        f"'{name}' is a Wan model 128 wide with 2 blocks and 16 latent channels "
        "(weights under 'generator_ema'); profile 'Causal-Forcing (frame-wise)', "
        "recognised by the file's name: chunks of 1 latent frame, 4 steps, shift 5, window 21, "
        "sink 0. "
        "The profile is that of the weights at huggingface.co/zhuhz22/Causal-Forcing (Apache-2.0)."
    ]
    assert f"Keepsake: {lines[0]}" in caplog.text
    load_ar_model(
        write(tmp_path, "rolling_forcing_dmd.pt", pair(weights(), weights())),
        None,
        tell=lines.append,
    )
    assert (
        "(weights under 'generator_ema'); profile 'Rolling Forcing', recognised" in lines[1]
        and "five chunks together" in lines[1]
    )


def test_the_host_can_make_the_model_again(tmp_path, expected):
    name = "Causal-Forcing/chunkwise/causal_forcing.pt"
    make, arguments = load_ar_model(
        write(tmp_path, name, LAYOUTS[name][0](weights(), weights(seed=9))), None, name=name
    ).cached_patcher_init
    assert same(make(*arguments, disable_dynamic=True), expected)


def test_scaled_fp8_files_keep_their_scales(tmp_path):
    state, scaled = weights(), {}
    for name, value in state.items():
        linear = name.endswith("weight") and value.ndim == 2 and "blocks" in name
        scaled[name] = (value / 0.5).to(torch.float8_e4m3fn) if linear else value
        if linear:
            state[name], scaled[name.removesuffix("weight") + "scale_weight"] = (
                scaled[name].float() * 0.5,
                torch.tensor(0.5),
            )
    path = write(
        tmp_path,
        "a.safetensors",
        {**scaled, "scaled_fp8": torch.zeros(2, dtype=torch.float8_e4m3fn)},
    )
    model = load_ar_model(path, PROFILES["Self-Forcing (chunk-wise)"])
    assert torch.allclose(
        video(model),
        video(tiny.prepared(comfy.sd.load_diffusion_model_state_dict(state))),
        atol=1e-4,
    )


def test_diffusers_names_of_image_models_are_known():
    theirs = (
        "condition_embedder.image_embedder.norm2.bias",
        "blocks.3.attn2.add_k_proj.weight",
        "blocks.3.attn2.norm_added_k.weight",
        "condition_embedder.image_embedder.ff.net.0.proj.bias",
    )
    assert [wan_name(name) for name in theirs] == [
        "img_emb.proj.4.bias",
        "blocks.3.cross_attn.k_img.weight",
        "blocks.3.cross_attn.norm_k_img.weight",
        "img_emb.proj.1.bias",
    ]
    assert not any(
        theirs in wan_name(name)
        for name in in_diffusers(weights())
        for theirs in DIFFUSERS
        if theirs != ".norm2."
    )


PEFT = {
    "blocks.0.self_attn.q": (WIDTH, WIDTH),
    "blocks.1.ffn.2": (WIDTH, 64),
    "time_embedding.0": (WIDTH, 256),
}


def lora(name, rank=4) -> tuple[torch.Tensor, torch.Tensor]:
    """A [rank, in] and B [out, rank] of a layer."""
    random, (out, width) = torch.Generator().manual_seed(len(name)), PEFT[name]
    return torch.randn((rank, width), generator=random) * 0.1, torch.randn(
        (out, rank), generator=random
    ) * 0.1


def merged() -> dict[str, torch.Tensor]:
    state = weights()
    for name in PEFT:
        a, b = lora(name)
        state[f"{name}.weight"] = state[f"{name}.weight"] + b @ a
    return state


@pytest.mark.parametrize("suffix", ["weight", "default.weight"])
def test_longlive_and_its_lora_are_one_load(suffix, tmp_path):
    named = {
        f"base_model.model._fsdp_wrapped_module.{name}.lora_{side}.{suffix}": tensor
        for name in PEFT
        for side, tensor in zip("AB", lora(name))
    }
    base, lines = write(tmp_path, "longlive_base.pt", {"generator": in_wrappers(weights())}), []
    file = write(tmp_path, "lora.pt", {"generator_lora": named, "critic_lora": {}, "step": 3000})
    model = load_ar_model(base, None, lora_path=file, tell=lines.append)
    want = video(tiny.prepared(comfy.sd.load_diffusion_model_state_dict(merged())))
    assert torch.allclose(video(model), want, atol=1e-4)
    assert not torch.allclose(video(load_ar_model(base, None, tell=lines.append)), want, atol=1e-2)
    assert (
        "with the LoRA 'lora.pt' on 3 layer(s); profile 'LongLive 1.3B'" in lines[0]
        and "belongs on it" not in lines[0]
    )
    assert (
        "Its LoRA file lora.pt belongs on it, unless it is merged in: choose it in lora_name."
        in lines[1]
    )


def test_a_base_with_its_lora_packed_in_is_one_load(tmp_path):
    """RAVEN's cmgrpo_raven_full.pt: the state dict of a PEFT model."""
    state, lines = {f"base_model.model.{name}": value for name, value in weights().items()}, []
    for name in PEFT:
        state[f"base_model.model.{name}.base_layer.weight"] = state.pop(
            f"base_model.model.{name}.weight"
        )
        state.update(
            {
                f"base_model.model.{name}.lora_{side}.default.weight": tensor
                for side, tensor in zip("AB", lora(name))
            }
        )
    model = load_ar_model(write(tmp_path, "cmgrpo_raven_full.pt", state), None, tell=lines.append)
    assert torch.allclose(
        video(model),
        video(tiny.prepared(comfy.sd.load_diffusion_model_state_dict(merged()))),
        atol=1e-4,
    )
    assert "with the LoRA packed with it on 3 layer(s); profile 'RAVEN'" in lines[0]


def strengthened(factor: dict[str, float]) -> dict[str, torch.Tensor]:
    """What PEFT's own merge makes of the weights: W + factor B A."""
    state = weights()
    for name in PEFT:
        a, b = lora(name)
        state[f"{name}.weight"] = state[f"{name}.weight"] + factor.get(name, factor[""]) * (b @ a)
    return state


def diffusers_header(config):
    return {"lora_adapter_metadata": json.dumps({f"transformer.{k}": v for k, v in config.items()})}


@pytest.mark.parametrize("where", ["adapter_config.json", "safetensors header"])
@pytest.mark.parametrize(
    "config, factor",
    [
        ({"r": 4, "lora_alpha": 8}, {"": 2}),
        ({"r": 4, "lora_alpha": 8, "use_rslora": True}, {"": 4}),
        ({"r": 4, "lora_alpha": 4, "alpha_pattern": {"ffn.2": 1}}, {"": 1, "blocks.1.ffn.2": 0.25}),
        (
            {"r": 8, "lora_alpha": 8, "rank_pattern": {r"blocks.\d+.*": 4, "time_embedding.0": 4}},
            {"": 2},
        ),
    ],
    ids=["alpha is twice the rank", "rank-stabilised", "one layer's own", "ranks of their own"],
)
def test_a_lora_of_peft_counts_by_its_alpha(config, factor, where, tmp_path):
    named = {
        f"base_model.model.{name}.lora_{side}.weight": tensor
        for name in PEFT
        for side, tensor in zip("AB", lora(name))
    }
    header = diffusers_header(config) if where == "safetensors header" else None
    file = write(tmp_path, "adapter_model.safetensors", named, header)
    if header is None:
        (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    base = write(tmp_path, "raven.pt", weights())
    lines = []
    got = video(load_ar_model(base, None, lora_path=file, tell=lines.append))
    want = tiny.prepared(comfy.sd.load_diffusion_model_state_dict(strengthened(factor)))
    assert torch.allclose(got, video(want), atol=1e-4)
    assert "times its rank" in lines[0]


def test_a_lora_that_does_not_say_its_alpha_is_asked_for(tmp_path):
    """Twice the rank was 6.3 off in a video, and nothing in the file shows it."""
    named = {
        f"{name}.lora_{side}.weight": tensor
        for name in PEFT
        for side, tensor in zip("AB", lora(name))
    }
    file, base = write(tmp_path, "mine.safetensors", named), write(tmp_path, "raven.pt", weights())
    # One beside it that is another LoRA's, by its rank.
    (tmp_path / "adapter_config.json").write_text('{"r": 16, "lora_alpha": 16}')
    with pytest.raises(
        ValueError,
        match="LoRA 'mine.safetensors' does not say its alpha, .* Its rank is 4: set lora_alpha",
    ):
        load_ar_model(base, None, lora_path=file)
    got = video(load_ar_model(base, None, lora_path=file, lora_alpha=8))
    want = tiny.prepared(comfy.sd.load_diffusion_model_state_dict(strengthened({"": 2})))
    assert torch.allclose(got, video(want), atol=1e-4)


def test_a_lora_with_magnitudes_is_refused(tmp_path):
    a, b = lora("time_embedding.0")
    named = {
        "time_embedding.0.lora_A.weight": a,
        "time_embedding.0.lora_B.weight": b,
        "time_embedding.0.lora_magnitude_vector": torch.ones(WIDTH),
    }
    with pytest.raises(ValueError, match="1 tensor.s. that ComfyUI does not apply, .*magnitude"):
        load_ar_model(
            write(tmp_path, "raven.pt", weights()),
            None,
            lora_path=write(tmp_path, "dora.safetensors", named),
        )


def test_a_safetensors_file_of_another_name_loads(tmp_path, expected):
    for kind, other in ((".safetensors", ".pt"), (".pt", ".safetensors")):
        path = write(tmp_path, f"raven{kind}", weights())
        os.rename(path, tmp_path / f"raven_renamed{other}")
        assert same(load_ar_model(str(tmp_path / f"raven_renamed{other}"), None), expected)


@pytest.mark.parametrize("first", [b"\x80", b"PK"], ids=["a pickle", "an archive"])
def test_a_safetensors_file_that_begins_like(first, tmp_path, expected):
    """It begins with its header's length in eight bytes, the lowest first, which can be any."""
    path = write(tmp_path, "raven.safetensors", weights(), {"note": ""})
    length = int.from_bytes(Path(path).read_bytes()[: len(first)], "little")
    note = " " * ((int.from_bytes(first, "little") - length) % 256 ** len(first))
    write(tmp_path, "raven.safetensors", weights(), {"note": note})
    assert Path(path).read_bytes().startswith(first)
    assert same(load_ar_model(path, None), expected)


def test_the_only_key_of_a_file_is_named(tmp_path, expected):
    lines = []
    for key in ("generator", "net"):
        path = write(tmp_path, "raven.pt", {key: weights()})
        assert same(load_ar_model(path, None, tell=lines.append), expected)
    assert "(weights under 'generator')" in lines[0] and "(weights under 'net')" in lines[1]


@pytest.mark.parametrize("prefix", ["", "model.diffusion_model."])
def test_shards_of_quantised_layers_under_a_prefix_keep_their_scales(prefix, tmp_path):
    """Each shard's header names its own layers, as their names are in the file."""
    state, parts = weights(), [{}, {}]
    headers = [{}, {}]
    for i, (name, value) in enumerate(sorted(weights().items())):
        part = parts[i % 2]
        if name.endswith("weight") and value.ndim == 2 and "blocks" in name:
            layer = prefix + name.removesuffix(".weight")
            part[prefix + name] = (value / 0.5).to(torch.float8_e4m3fn)
            part[f"{layer}.weight_scale"] = torch.tensor(0.5)
            state[name] = part[prefix + name].float() * 0.5
            headers[i % 2][layer] = {"format": "float8_e4m3fn"}
        else:
            part[prefix + name] = value
    for number, (part, layers) in enumerate(zip(parts, headers)):
        header = {"_quantization_metadata": json.dumps({"layers": layers})}
        save_file(part, tmp_path / f"raven-0000{number + 1}-of-00002.safetensors", header)
    model = load_ar_model(str(tmp_path / "raven-00001-of-00002.safetensors"), None)
    want = tiny.prepared(comfy.sd.load_diffusion_model_state_dict(state))
    assert torch.allclose(video(model), video(want), atol=1e-4)


def test_an_attention_that_the_file_prefers_is_no_damage(tmp_path, expected):
    """ComfyUI's newer INT8 files have a tensor of JSON beside each attention."""
    lines = []
    content = torch.tensor(list(b'{"attention": "comfy_kitchen_int8"}'), dtype=torch.uint8)
    preferred = {f"blocks.{i}.self_attn.comfy_attention.config": content + 0 for i in range(2)}
    path = write(tmp_path, "raven.safetensors", {**weights(), **preferred})
    assert same(load_ar_model(path, None, tell=lines.append), expected)
    assert lines[0].endswith(
        "It prefers an attention of its own in 2 layers, which this ComfyUI does not know; they "
        "use ComfyUI's."
    )


def test_tensors_that_the_host_does_not_use_are_named_on_the_node(tmp_path, expected):
    lines = []
    content = {**weights(), "blocks.0.self_attn.q.input_offset": torch.zeros(3)}
    model = load_ar_model(write(tmp_path, "raven.pt", content), None, tell=lines.append)
    assert same(model, expected)
    assert lines[0].endswith(
        "ComfyUI does not use 1 of its tensors, 'blocks.0.self_attn.q.input_offset' first."
    )


def test_a_lora_that_fits_in_part_says_so(tmp_path):
    tensors, lines = (
        {
            f"{prefix}.lora_{side}.weight": tensor
            for prefix in ("blocks.0.self_attn.q", "blocks.9.self_attn.q")
            for side, tensor in zip("AB", lora("blocks.0.self_attn.q"))
        },
        [],
    )
    load_ar_model(
        write(tmp_path, "raven.pt", weights()),
        None,
        lora_path=write(tmp_path, "l.safetensors", tensors),
        tell=lines.append,
        lora_alpha=4,
    )
    assert "with the LoRA 'l.safetensors' on 1 layer(s) (1 more fit nothing)" in lines[0]


def test_the_node_loads_a_file_and_hands_out_the_line(tmp_path, monkeypatch, expected):
    for kind in ("diffusion_models", "loras"):
        monkeypatch.setitem(folder_paths.folder_names_and_paths, kind, ([str(tmp_path)], {".pt"}))
    name = "Causal-Forcing/framewise/causal_forcing.pt"
    write(tmp_path, name, LAYOUTS[name][0](weights(), None))
    (model,) = (output := ARVideoModelLoader.execute(name, "from file", "default")).args
    assert (
        same(model, expected)
        and profile_of(model.model_options) == PROFILES["Causal-Forcing (frame-wise)"]
    )
    assert output.ui["text"][0].startswith(f"'{name}' is a Wan model")
    named = {
        f"{layer}.lora_{side}.weight": tensor
        for layer in PEFT
        for side, tensor in zip("AB", lora(layer))
    }
    write(tmp_path, "lora.pt", {"generator_lora": named})
    output = ARVideoModelLoader.execute(
        name, "Self-Forcing (chunk-wise)", "default", "lora.pt", lora_alpha=8.0
    )
    assert (
        "with the LoRA 'lora.pt' on 3 layer(s) with alpha 2 times its rank; profile "
        "'Self-Forcing (chunk-wise)', as chosen" in output.ui["text"][0]
    )
