"""What is no AR model of the Wan family, or no whole one, is refused in a sentence."""

import os
import pickle

import pytest
import torch
from keepsake.host.model.checkpoint import load_ar_model

from .test_checkpoint import tiny_table, weights, write  # noqa: F401


class Code:
    def __reduce__(self):
        return os.mkdir, (os.environ["KEEPSAKE_TEST_TRAP"],)


@pytest.mark.parametrize("keep", [0.5, 0], ids=["half of it", "nothing"])
@pytest.mark.parametrize("name", ["self_forcing.pt", "self_forcing.safetensors"])
def test_a_damaged_file_is_refused(name, keep, tmp_path):
    path = write(tmp_path, name, weights())
    with open(path, "r+b") as file:
        file.truncate(int(keep * os.path.getsize(path)))
    with pytest.raises(
        ValueError,
        match=f"'{name}' cannot be read \\(.+\\). If it is damaged or not complete, download it "
        "again.",
    ):
        load_ar_model(path, None)


def test_a_file_that_needs_code_is_refused_and_nothing_of_it_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("KEEPSAKE_TEST_TRAP", str(tmp_path / "trap"))
    path = write(tmp_path, "self_forcing_dmd.pt", {"generator": weights(), "config": Code()})
    with pytest.raises(
        ValueError,
        match="'self_forcing_dmd.pt' is no file of plain weights: .* could only be read by "
        "running Python code, which Keepsake never does",
    ):
        load_ar_model(path, None)
    (tmp_path / "self_forcing_sid.pt").write_bytes(
        pickle.dumps([Code()], protocol=2)
    )  # not written by torch
    with pytest.raises(
        ValueError,
        match="'self_forcing_sid.pt' is no file of plain weights: .* could only be read by "
        "running Python code",
    ):
        load_ar_model(str(tmp_path / "self_forcing_sid.pt"), None)
    assert not (tmp_path / "trap").exists()


@pytest.mark.parametrize("name", ["self_forcing_dmd.pt", "self_forcing_dmd.safetensors"])
@pytest.mark.parametrize(
    "text",
    [
        "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5676282643\n",
        "hello\n" * 100,
        "<!DOCTYPE html>" * 20,
    ],
)
def test_a_text_in_place_of_a_file_is_refused(name, text, tmp_path):
    (tmp_path / name).write_text(text)
    with pytest.raises(
        ValueError,
        match=f"'{name}' is neither a PyTorch nor a safetensors file: it begins with '{text[:5]}",
    ):
        load_ar_model(str(tmp_path / name), None)


def without(state, part):
    return {name: value for name, value in state.items() if part not in name}


@pytest.mark.parametrize(
    "name, content, says",
    [
        (
            "flux.safetensors",
            {
                "img_in.weight": torch.zeros(8, 4),
                "double_blocks.0.img_mod.lin.weight": torch.zeros(8, 8),
            },
            "does not recognise the model in 'flux.safetensors': it has no 'head.modulation'",
        ),
        (
            "raven.pt",
            weights(channels=48),
            "'raven.pt' is named like 'RAVEN', but that model is 128 wide with 16 latent channels "
            "and this one 128 with 48",
        ),
        (
            "wan2.1_t2v_1.3B_fp16.safetensors",
            weights(),
            "'wan2.1_t2v_1.3B_fp16.safetensors' is named like Wan's own bidirectional model",
        ),
        (
            "SFWan2.2-T2V-A14B.safetensors",
            weights(),
            "is named like one of the two experts of FastVideo's SFWan2.2",
        ),
        (
            "raven.pt",
            without(weights(), "blocks.1.ffn"),
            "'raven.pt' is no whole plain Wan model: 4 tensor\\(s\\) missing, "
            "'blocks.1.ffn.0.bias' first",
        ),
        (
            "raven.pt",
            {**weights(), "blocks.0.cam_injector_layer1.weight": torch.zeros(8, 8)},
            "'raven.pt' is no whole plain Wan model: 1 tensor\\(s\\) without a place, "
            "'blocks.0.cam_injector_layer1.weight' first",
        ),
        (
            "raven.pt",
            {**weights(), "blocks.1.self_attn.q.weight": torch.zeros(8, 8)},
            "Tensors of 'raven.pt' have other shapes than those of the model that ComfyUI makes "
            "of it",
        ),
        (
            "longlive_lora.pt",
            {"generator_lora": {"blocks.0.self_attn.q.lora_A.weight": torch.zeros(4, 8)}},
            "'longlive_lora.pt' is a LoRA. Choose",
        ),
        (
            "raven.pt",
            {"optimizer": {"lr": 0.1}, "step": 3},
            "'raven.pt' holds no weights where Keepsake looks for them .*, but 'optimizer', 'step'",
        ),
        (
            "raven.pt",
            {**weights(), **{f"model.{name}": value for name, value in weights().items()}},
            "holds more than one set of weights side by side",
        ),
        (
            "raven.safetensors.index.json",
            None,
            "'raven.safetensors.index.json' is no index of a sharded checkpoint",
        ),
    ],
    ids=[
        "image model",
        "other channels",
        "Wan's own",
        "one expert of two",
        "tensors missing",
        "side model",
        "other shapes",
        "LoRA",
        "no weights",
        "two sets",
        "no index",
    ],
)
def test_other_files_are_refused_in_a_sentence(name, content, says, tmp_path):
    if content is None:
        (tmp_path / name).write_text("[]")
    with pytest.raises(ValueError, match=says):
        load_ar_model(
            str(tmp_path / name) if content is None else write(tmp_path, name, content), None
        )


def test_a_missing_shard_is_named(tmp_path):
    path = write(tmp_path, "krea-00001-of-00003.safetensors", weights())
    os.remove(tmp_path / "krea-00002-of-00003.safetensors")
    for chosen in (path, str(tmp_path / "krea.safetensors.index.json")):
        with pytest.raises(
            ValueError,
            match="of 3 files, and 1 of them, 'krea-00002-of-00003.safetensors' first, are not in "
            "its folder",
        ):
            load_ar_model(chosen, None)


def fp8(scale_name, marker=()):
    """The tiny model in fp8 with a scale of 1/2 on each linear layer of its blocks."""
    state = weights()
    for name, value in weights().items():
        if "blocks" in name and name.endswith("weight") and value.ndim == 2:
            state[name] = (value / 0.5).to(torch.float8_e4m3fn)
            state[name.removesuffix("weight") + scale_name] = torch.tensor(0.5)
    return {**state, **dict(marker)}


def int8(with_scale=True):
    """As bitsandbytes saves Linear8bitLt: rows in int8 and each row's largest value."""
    state = weights()
    for name, value in weights().items():
        if "self_attn.q.weight" in name:
            state[name] = (value / value.abs().max() * 127).round().to(torch.int8)
            if with_scale:
                state[name.removesuffix("weight") + "SCB"] = value.abs().amax(1)
    return state


FP8_MARKER = {"scaled_fp8": torch.zeros(2, dtype=torch.float8_e4m3fn)}


@pytest.mark.parametrize(
    "content, first",
    [
        (fp8("weight_scale"), "blocks.0.cross_attn.k.weight_scale"),
        (fp8("weight_scale", FP8_MARKER), "blocks.0.cross_attn.k.weight_scale"),
        (fp8("scale_weight"), "blocks.0.cross_attn.k.scale_weight"),
        (fp8("weight_scale_inv"), "blocks.0.cross_attn.k.weight_scale_inv"),
        (fp8("weight._scale"), "blocks.0.cross_attn.k.weight._scale"),
        (int8(), "blocks.0.self_attn.q.SCB"),
    ],
    ids=["weight_scale", "other marker", "scale_weight", "weight_scale_inv", "quanto", "SCB"],
)
@pytest.mark.parametrize("suffix", ["pt", "safetensors"])
def test_scales_that_nobody_applies_are_refused(content, first, suffix, tmp_path):
    """Such a file loads as a whole model, whose weights are wrong by their scales."""
    with pytest.raises(
        ValueError,
        match=f"holds [0-9]+ scale\\(s\\) of quantised weights that ComfyUI does not apply, "
        f"'{first}' first, and would give a broken video. Choose a file that was quantised for",
    ):
        load_ar_model(write(tmp_path, f"raven.{suffix}", content), None)


def test_integers_without_scales_are_refused(tmp_path):
    with pytest.raises(
        ValueError,
        match="holds 2 weight\\(s\\) as whole numbers or of another kind, "
        "'blocks.0.self_attn.q.weight' first, and not the scales",
    ):
        load_ar_model(write(tmp_path, "raven.pt", int8(with_scale=False)), None)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64])
@pytest.mark.parametrize(
    "name", ["head.head.weight", "blocks.0.ffn.0.bias", "blocks.0.modulation"], ids=str
)
def test_numbers_that_are_no_weights_are_refused(name, dtype, tmp_path):
    content = weights()
    content[name] = content[name].to(dtype)
    with pytest.raises(ValueError, match=f"holds 1 weight\\(s\\) .* '{name}' first"):
        load_ar_model(write(tmp_path, "raven.safetensors", content), None)


DEEP = 100_000 * "["  # JSON that no reader follows to its end


@pytest.mark.parametrize(
    "header, says",
    [
        ({"keepsake_profile": DEEP}, "The AR profile in the header of 'raven.safetensors' cannot"),
        ({"_quantization_metadata": DEEP}, "says of its quantised layers cannot be read"),
        ({"config": DEEP}, "ComfyUI cannot make a model of 'raven.safetensors' \\(RecursionError"),
        ({"config": "three"}, "ComfyUI cannot make a model of 'raven.safetensors' \\(JSONDecodeEr"),
        (
            {"config": '{"transformer": {"num_heads": 3}}'},
            "ComfyUI cannot make a model of 'raven.safetensors' \\(AssertionError.*no plain Wan",
        ),
    ],
    ids=["profile", "layers", "deep config", "no config", "other heads"],
)
def test_a_header_that_cannot_be_is_refused(header, says, tmp_path):
    with pytest.raises(ValueError, match=says):
        load_ar_model(write(tmp_path, "raven.safetensors", weights(), header), None)


def test_an_index_that_cannot_be_read_is_refused(tmp_path):
    path = tmp_path / "raven.safetensors.index.json"
    path.write_text(DEEP, encoding="utf-8")
    with pytest.raises(ValueError, match=f"'{path.name}' is no index of a sharded checkpoint"):
        load_ar_model(str(path), None)


LTX = {  # names of LTX-Video in Diffusers, two of which look like Wan's there
    "scale_shift_table": torch.zeros(2, 128),
    "proj_out.weight": torch.zeros(128, 128),
    "patchify_proj.weight": torch.zeros(128, 128),
    "transformer_blocks.0.attn1.to_q.weight": torch.zeros(128, 128),
}


def narrow(width=64):
    return {
        name: value[tuple(slice(0, width if size == 128 else size) for size in value.shape)].clone()
        for name, value in weights().items()
    }


@pytest.mark.parametrize(
    "content, says",
    [
        (
            without(weights(), "patch_embedding"),
            "is no whole plain Wan model: it has no 'patch_embedding.weight'. It is damaged, or "
            "one file of several",
        ),
        (
            without(weights(), "ffn"),
            "is no whole plain Wan model: it has no 'blocks.0.ffn.0.weight'. It is damaged",
        ),
        (
            without(weights(), "head."),
            "is no whole plain Wan model: it has no 'head.modulation' and no 'head.head.weight'",
        ),
        (
            LTX,
            "does not recognise the model in 'raven.pt': it has no 'patch_embedding.weight' and no "
            "'blocks.0.self_attn.q.weight', as every Wan model has, and begins with "
            "'patchify_proj.weight'",
        ),
        (
            narrow(),
            "'raven.pt' is 64 wide, and ComfyUI divides a Wan model into heads of 128 channels",
        ),
        (
            dict(enumerate(weights().values())),
            "holds 69 tensor\\(s\\) under keys that are no names, 0 first",
        ),
        (
            {name: value.to("meta") for name, value in weights().items()},
            "holds the shapes of 69 tensor\\(s\\) and not their values, 'patch_embedding.weight'",
        ),
        (
            {"model.diffusion_model." + name: value for name, value in weights().items()}
            | {"first_stage_model.conv1.weight": torch.zeros(3, 3)},
            "is an all-in-one checkpoint: a diffusion model with other models beside it "
            "\\('first_stage_model.conv1.weight' first\\). Put it into models/checkpoints, load it "
            "with ComfyUI's Load Checkpoint, and put AR Profile behind that",
        ),
        ([torch.zeros(3)], "holds something else than named weights"),
    ],
    ids=[
        "no patch_embedding",
        "no ffn",
        "no head",
        "LTX",
        "64 wide",
        "numbers for names",
        "meta tensors",
        "all in one",
        "a list",
    ],
)
def test_what_the_host_would_stumble_over_is_refused(content, says, tmp_path):
    with pytest.raises(ValueError, match=says):
        load_ar_model(write(tmp_path, "raven.pt", content), None)


def test_a_missing_shard_of_few_digits_is_named(tmp_path):
    half = dict(list(weights().items())[::2])
    with pytest.raises(ValueError, match="of 2 files, and 1 of them, 'raven-2-of-2.pt' first, are"):
        load_ar_model(write(tmp_path, "raven-1-of-2.pt", half), None)


@pytest.mark.parametrize("name", ["Self-Forcing/ode_init.pt", "Causal-Forcing/causal_ode.pt"])
def test_an_unfinished_stage_of_training_is_refused_as_such(name, tmp_path):
    with pytest.raises(
        ValueError,
        match=f"'{name}' is named like an unfinished stage of training \\('ode(-init)?'\\), from "
        "which .* Load the finished checkpoint",
    ):
        load_ar_model(write(tmp_path, name, weights()), None, name=name)


@pytest.mark.parametrize(
    "tensors, says",
    [
        (
            {
                "blocks.7.self_attn.q.lora_A.weight": torch.zeros(4, 128),
                "blocks.7.self_attn.q.lora_B.weight": torch.zeros(128, 4),
            },
            "The LoRA 'l.safetensors' fits nothing in this model; it begins with "
            "'blocks.7.self_attn.q",
        ),
        (
            {
                "blocks.0.self_attn.q.lora_A.weight": torch.zeros(4, 256),
                "blocks.0.self_attn.q.lora_B.weight": torch.zeros(256, 4),
            },
            "The LoRA 'l.safetensors' was made for another size of model: "
            r"for 'diffusion_model.blocks.0.self_attn.q.weight' it is \[256, 256\]",
        ),
    ],
    ids=["other blocks", "other size"],
)
def test_a_lora_of_another_model_is_refused(tensors, says, tmp_path):
    with pytest.raises(ValueError, match=says):
        load_ar_model(
            write(tmp_path, "raven.pt", weights()),
            None,
            lora_path=write(tmp_path, "l.safetensors", tensors),
            lora_alpha=4,
        )


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"chunk_frames": 0}', '{"chunk_frames": "three"}', '{"steps": null}']
)
def test_a_damaged_profile_in_a_header_is_refused(text, tmp_path):
    path = write(tmp_path, "mine.safetensors", weights(), {"keepsake_profile": text})
    with pytest.raises(
        ValueError,
        match=r"The AR profile in the header of 'mine.safetensors' cannot be read \(.+\). "
        "Choose one in AR Video Model Loader",
    ):
        load_ar_model(path, None)
