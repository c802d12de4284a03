"""Files of Matrix-Game 2: each mode is told by its tensors and loads whole."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from comfy.model_sampling import ModelSamplingDiscreteFlow
from keepsake.host.model import checkpoint, file_names
from keepsake.host.model.checkpoint import load_ar_model
from keepsake.host.model.game_actions import action_control, read_actions
from keepsake.host.model.matrix_game import MatrixGameWan
from keepsake.host.model.profiles import profile_of
from keepsake.host.model.published import CHECKPOINTS, PROFILES
from keepsake.kv_policies import KVPolicy, SinkWindow
from safetensors.torch import save_file
from support import tiny_worlds

HELP = Path(__file__).parents[3] / "web/docs/KeepsakeARVideoModelLoader.md"
SMALL = dict(dim=128, layers=2, action_layers=1, heads=1)
FILES = {  # as they are called where they are published
    "universal": "base_distilled_model/base_distill.safetensors",
    "gta_drive": "gta_distilled_model/gta_keyboard2dim.safetensors",
    "templerun": "templerun_distilled_model/templerun_7dim_onlykey.safetensors",
}


@pytest.fixture(autouse=True)
def tiny_table(monkeypatch):
    """The table's checkpoints, at the width of the files here."""
    rows = tuple(replace(row, width=128) for row in CHECKPOINTS)
    monkeypatch.setattr(file_names, "CHECKPOINTS", rows)
    monkeypatch.setattr(checkpoint, "CHECKPOINTS", rows)


def written(folder, mode="universal", name="file.safetensors", **changes) -> str:
    """A file with its tensors under `model.`; `changes` by the tensors' names, None: left out."""
    state = {**tiny_worlds.matrix_game_state(mode, **SMALL), **changes}
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({f"model.{key}": value for key, value in state.items() if value is not None}, path)
    return str(path)


STEPS = {mode: (1000, 666, 333) for mode in FILES} | {"templerun": (1000, 750, 500, 250)}
WINDOWS = {"universal": 6, "gta_drive": 4, "templerun": 6}


@pytest.mark.parametrize("mode", FILES)
def test_a_profile_says_what_its_authors_do(mode):
    """Their denoising_step_list, warped by the shift of 5, num_frame_per_block, local_attn_size."""
    profile = PROFILES[f"Matrix-Game 2 {mode}"]
    sampling = ModelSamplingDiscreteFlow()
    sampling.set_parameters(shift=5.0, multiplier=1000)
    levels = [5 * step / (1000 + 4 * step) for step in STEPS[mode]]
    assert profile.take_sigmas(sampling).tolist() == pytest.approx([*levels, 0.0], abs=1e-7)
    assert (profile.shift, profile.chunk_frames, profile.steps) == (5.0, 3, len(levels))
    window = SinkWindow(0, WINDOWS[mode], whole_chunks=mode != "gta_drive")
    assert profile.policy() == KVPolicy(window)
    assert f"\n| {profile.name} |" in HELP.read_text(encoding="utf-8")


@pytest.mark.parametrize("mode", FILES)
def test_every_mode_loads_whole_and_gets_its_profile(mode, tmp_path):
    lines, state = [], tiny_worlds.matrix_game_state(mode, **SMALL)
    model = load_ar_model(written(tmp_path, mode, FILES[mode]), None, tell=lines.append)
    backbone = model.get_model_object("diffusion_model")
    assert type(backbone) is MatrixGameWan
    assert profile_of(model.model_options) == PROFILES[f"Matrix-Game 2 {mode}"]
    loaded = backbone.state_dict()
    assert loaded.keys() == state.keys()
    assert all(torch.equal(loaded[key], value) for key, value in state.items())
    assert "is a Matrix-Game 2 model 128 wide with 2 blocks" in lines[0]
    assert f"profile 'Matrix-Game 2 {mode}', recognised by its tensors" in lines[0]
    assert "needs keys and mouse (World Actions" in lines[0] and "CLIP vision" in lines[0]


def test_the_name_of_the_file_does_not_matter(tmp_path):
    path = written(tmp_path, "gta_drive", "self-forcing.safetensors")
    assert profile_of(load_ar_model(path, None).model_options).name == "Matrix-Game 2 gta_drive"
    chosen = load_ar_model(path, PROFILES["Matrix-Game 2 gta_drive"])
    assert profile_of(chosen.model_options).window_frames == 4


@pytest.mark.parametrize(
    "mode, name, changes, profile, match",
    [
        (
            "universal",
            "file.safetensors",
            {},
            "Matrix-Game 2 templerun",
            "is not that of 'file.safetensors', whose tensors are those of 'Matrix-Game 2 univ",
        ),
        (
            "universal",
            "file.safetensors",
            {},
            "LongLive 1.3B",
            "The profile 'LongLive 1.3B' is for plain Wan models, and .* is a Matrix-Game 2 model",
        ),
        (
            "universal",
            "Matrix-Game-2.0-base_model.safetensors",
            {},
            None,
            "named like Matrix-Game 2's foundation model",
        ),
        (
            "universal",
            "file.safetensors",
            {"blocks.0.action_model.t_qkv.weight": None},
            None,
            "no whole Matrix-Game 2 model: 1 tensor\\(s\\) missing, 'blocks.0.action_model.t_qkv.",
        ),
        (
            "universal",
            "file.safetensors",
            {"text_embedding.0.weight": torch.zeros(128, 64)},
            None,
            "1 tensor\\(s\\) without a place, 'text_embedding.0.weight' first",
        ),
        (
            "universal",
            "file.safetensors",
            {"blocks.0.action_model.keyboard_embed.0.weight": torch.zeros(16, 5)},
            None,
            "follows 5 keys, and Keepsake knows those of its published modes \\(universal 4, gta_",
        ),
        (
            "universal",
            "file.safetensors",
            {"blocks.0.action_model.keyboard_embed.0.weight": torch.tensor(1.0)},
            None,
            "follows 0 keys",
        ),
    ],
    ids=["other mode", "plain profile", "foundation", "damaged", "more", "other keys", "no keys"],
)
def test_what_is_no_file_of_its_mode_is_refused(mode, name, changes, profile, match, tmp_path):
    with pytest.raises(ValueError, match=match):
        load_ar_model(written(tmp_path, mode, name, **changes), PROFILES.get(profile))


def row(mode, text):
    """What the first latent frame is steered by: the first pixel frame's keys, 12 times."""
    rows = action_control(mode, text, 1).values[0, :, 0, 0, 0].unflatten(0, (12, -1))
    assert (rows == rows[0]).all()
    return [round(value, 3) for value in rows[0].tolist()]


def test_keys_are_rows_as_the_authors_write_them():
    assert row("universal", "w-1") == [1, 0, 0, 0, 0, 0]
    assert row("universal", "sdil-1") == [0, 1, 0, 1, 0.1, 0.1]  # pitch up, yaw right
    assert row("universal", "ajk-1") == [0, 0, 1, 0, -0.1, -0.1]
    assert row("universal", "none-1") == [0] * 6
    assert row("gta_drive", "wa-1") == [1, 0, 0, -0.1]
    assert row("templerun", "none-1") == [1, 0, 0, 0, 0, 0, 0]
    for number, letter in enumerate("wszcad", 1):
        assert row("templerun", f"{letter}-1") == [float(i == number) for i in range(7)]


@pytest.mark.parametrize(
    "mode, text, match",
    [
        ("gta_drive", "w-4,wj-4", "'wj-4' holds the key 'j', and there are w s a d"),
        ("templerun", "i-4", "holds the key 'i', and there are w s z c a d"),
        ("templerun", "wa-4", "'aw-4' holds 2 keys, and templerun is played with one at a time"),
        ("universal", "w16", "is no part of a walk"),
        ("universal", " ", "The keys are empty"),
        ("doom", "w-4", "There is no mode 'doom'. Use one of: universal, gta_drive, templerun"),
    ],
)
def test_keys_that_a_mode_does_not_know_are_refused(mode, text, match):
    with pytest.raises(ValueError, match=match):
        read_actions(mode, text)
