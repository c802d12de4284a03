"""World models, told by their tensors: each layout loads whole into its own class, and what only
looks like one is refused.
"""

from dataclasses import replace

import comfy.ops
import comfy.sd
import comfy.supported_models
import pytest
import torch
from keepsake.host.model import checkpoint, file_names
from keepsake.host.model.checkpoint import load_ar_model
from keepsake.host.model.kinds import KINDS
from keepsake.host.model.lingbot import LingBotWan
from keepsake.host.model.profiles import profile_of
from keepsake.host.model.published import CHECKPOINTS, PROFILES
from keepsake.nodes.model import ARProfileNode
from support import tiny

from .test_checkpoint import weights, write

WIDTH = 128
V2 = "lingbot-world-v2-14b-causal-fast/transformers/diffusion_pytorch_model"


@pytest.fixture(autouse=True)
def tiny_table(monkeypatch):
    """The table's checkpoints, at the width of the files here."""
    rows = tuple(replace(row, width=WIDTH) for row in CHECKPOINTS)
    monkeypatch.setattr(file_names, "CHECKPOINTS", rows)
    monkeypatch.setattr(checkpoint, "CHECKPOINTS", rows)


def in_comfy_prefix(state):
    return {f"model.diffusion_model.{name}": value for name, value in state.items()}


# File, how its weights lie in it, the profile that it gets without asking.
LAYOUTS = {
    f"{V2}-00002-of-00004.safetensors": (dict, "LingBot-World v2"),
    "lingbot_world_v2_14b_causal_fast.safetensors": (dict, "LingBot-World v2"),
    "lingbot-world-v2-fast-comfy.safetensors": (in_comfy_prefix, "LingBot-World v2"),
    "lingbot_world_fast/diffusion_pytorch_model-00001-of-00003.safetensors": (
        dict,
        "LingBot-World v1 fast",
    ),
    "LingBot-World-Fast.safetensors": (dict, "LingBot-World v1 fast"),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_of_lingbot_loads_whole(name, tmp_path):
    lay, profile = LAYOUTS[name]
    state, lines = tiny.lingbot_state(), []
    model = load_ar_model(
        write(tmp_path, name, lay(dict(state))), None, name=name, tell=lines.append
    )
    backbone = model.get_model_object("diffusion_model")
    assert type(backbone) is LingBotWan and profile_of(model.model_options) == PROFILES[profile]
    loaded = backbone.state_dict()
    assert loaded.keys() == state.keys()
    assert all(torch.equal(loaded[key], value) for key, value in state.items())
    assert lines[0].startswith(f"'{name}' is a LingBot-World model 128 wide with 2 blocks")
    assert "needs a camera (World Camera" in lines[0] and "WanImageToVideo" in lines[0]
    assert ("CC BY-NC-SA" in lines[0]) == ("v2" in profile)


def test_the_index_of_shards_loads_too(tmp_path):
    write(tmp_path, f"{V2}-00001-of-00002.safetensors", tiny.lingbot_state())
    model = load_ar_model(str(tmp_path / f"{V2}.safetensors.index.json"), None, name=V2)
    assert type(model.get_model_object("diffusion_model")) is LingBotWan


def test_cmbenchs_schedule_is_a_choice(tmp_path):
    path = write(tmp_path, "lingbot-world-v2-fast.safetensors", tiny.lingbot_state())
    model = load_ar_model(path, PROFILES["LingBot-World v2 (CMBench)"])
    assert profile_of(model.model_options).shift == 5.0


def test_the_version_is_asked_for_where_no_name_says_it(tmp_path):
    path = write(tmp_path, "world.safetensors", tiny.lingbot_state())
    with pytest.raises(
        ValueError,
        match=r"'world.safetensors' is a LingBot-World model, and its tensors and name do not say "
        r"which. Choose .*: 'LingBot-World v2', 'LingBot-World v2 \(CMBench\)', "
        "'LingBot-World v1 fast'",
    ):
        load_ar_model(path, None)
    assert load_ar_model(path, PROFILES["LingBot-World v1 fast"])


@pytest.mark.parametrize(
    "name, state, profile, match",
    [
        (
            "lingbot_world_fast.safetensors",
            lambda: weights(),
            None,
            "is named like 'LingBot-World v1 fast', and has not the tensors of a LingBot-World",
        ),
        (
            "mine.safetensors",
            lambda: weights(),
            "LingBot-World v2",
            "The profile 'LingBot-World v2' is for LingBot-World models, and 'mine.safetensors' "
            "is a plain Wan model",
        ),
        (
            "lingbot_world_fast.safetensors",
            lambda: tiny.lingbot_state(),
            "LongLive 1.3B",
            "The profile 'LongLive 1.3B' is for plain Wan models, and .* is a LingBot-World model",
        ),
        (
            "lingbot-world-base-cam.safetensors",
            lambda: tiny.lingbot_state(),
            None,
            "named like LingBot-World's bidirectional model",
        ),
        (
            "lingbot_world_fast.safetensors",
            lambda: {
                name: value
                for name, value in tiny.lingbot_state().items()
                if "blocks.1.cam_" not in name
            },
            None,
            "8 tensor\\(s\\) missing, 'blocks.1.cam_injector_layer1.bias' first",
        ),
        (
            "lingbot_world_fast.safetensors",
            lambda: {
                **tiny.lingbot_state(),
                "patch_embedding_wancamctrl.weight": torch.zeros(WIDTH, 1792),
            },
            None,
            "other shapes than those of the model",
        ),
    ],
    ids=["camera dropped", "plain file", "plain profile", "bidirectional", "damaged", "act model"],
)
def test_what_only_looks_like_one_is_refused(name, state, profile, match, tmp_path):
    with pytest.raises(ValueError, match=match):
        load_ar_model(write(tmp_path, name, state()), PROFILES.get(profile))


def test_the_hosts_own_loader_is_as_it_was(tmp_path):
    before = list(comfy.supported_models.models)
    load_ar_model(write(tmp_path, "lingbot_world_fast.safetensors", tiny.lingbot_state()), None)
    assert comfy.supported_models.models == before
    assert all(kind.config not in before for kind in KINDS)
    host = comfy.sd.load_diffusion_model_state_dict(weights())
    assert type(host.get_model_object("diffusion_model")).__name__ == "WanModel"


def of_the_hosts_loader(**sizes):
    """What ComfyUI's own loader makes of a LingBot file: the camera's tensors are left out."""
    return comfy.sd.load_diffusion_model_state_dict(dict(tiny.lingbot_state(**sizes)))


def test_a_model_that_lost_its_camera_is_named_by_ar_profile():
    lost, numbers = of_the_hosts_loader(), (4, 4, 10.0, 18, 6, "absolute", 4)
    with pytest.raises(
        ValueError,
        match="'LingBot-World v2' is for LingBot-World models, and this MODEL is a plain Wan one. "
        "ComfyUI's own loaders drop the tensors .* load it with AR Video Model Loader",
    ):
        ARProfileNode.execute(lost, *numbers, profile="LingBot-World v2")
    (text,) = ARProfileNode.execute(lost, *numbers).ui["text"]
    assert "If the file is LingBot-World, load it with AR Video Model Loader" in text
    (text,) = ARProfileNode.execute(tiny.tiny_model(), *numbers).ui["text"]
    assert "LingBot" not in text


def test_a_world_model_refuses_a_plain_profile(tmp_path):
    path = write(tmp_path, "lingbot_world_fast.safetensors", tiny.lingbot_state())
    model, numbers = load_ar_model(path, None), (4, 4, 10.0, 18, 6, "absolute", 4)
    with pytest.raises(ValueError, match="'LongLive 1.3B' is for plain Wan models, and this"):
        ARProfileNode.execute(model, *numbers, profile="LongLive 1.3B")
    assert ARProfileNode.execute(model, *numbers, profile="LingBot-World v1 fast")
    assert ARProfileNode.execute(model, *numbers)


def test_loras_and_weight_dtypes_work_on_the_camera_as_on_the_rest(tmp_path):
    path = write(tmp_path, "lingbot_world_fast.safetensors", tiny.lingbot_state())
    small = load_ar_model(path, None, "fp8_e4m3fn").get_model_object("diffusion_model")
    assert small.blocks[0].cam_scale_layer.weight.dtype == torch.float8_e4m3fn
    name = "blocks.1.cam_injector_layer1"
    lora = {
        f"diffusion_model.{name}.lora_A.weight": torch.ones(2, WIDTH),
        f"diffusion_model.{name}.lora_B.weight": torch.ones(WIDTH, 2),
    }
    patched, _ = comfy.sd.load_lora_for_models(load_ar_model(path, None), None, lora, 1.0, 0)
    assert list(patched.patches) == [f"diffusion_model.{name}.weight"]
