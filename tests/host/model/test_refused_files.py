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
