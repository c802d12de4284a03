"""From a file to a MODEL with a profile, or a sentence."""
import json
import os

import pytest
import torch

if not os.environ.get("COMFYUI_PATH"):
    pytest.skip("no ComfyUI to test in", allow_module_level=True)

import tiny  # noqa: E402
from keepsake.host.checkpoint import load_ar_model  # noqa: E402
from keepsake.host.profiles import PROFILE, PROFILES, ARProfile, profile_of, with_profile  # noqa: E402
from keepsake.kv_policies import Geometry, Take  # noqa: E402
from safetensors.torch import save_file  # noqa: E402


def write(path, header_profile=None, **extra):
    state, config = tiny.tiny_state()
    metadata = {"config": json.dumps({"transformer": config}), **({PROFILE: header_profile.to_json()} if header_profile else {})}
    save_file({**state, **extra}, path, metadata)
    return str(path)


def test_a_file_that_names_its_profile_needs_no_choice(tmp_path):
    profile = ARProfile("mine", chunk_frames=2, steps=3, shift=7.0, window_frames=9, sink_frames=2)
    model = load_ar_model(write(tmp_path / "mine.safetensors", profile), None)
    assert profile_of(model.model_options) == profile
    assert model.get_model_object("model_sampling").shift == 7.0
    assert model.model.diffusion_model.blocks[0].self_attn.num_heads == 4


def test_a_file_that_does_not_is_asked_for(tmp_path):
    with pytest.raises(ValueError, match="'plain.safetensors' does not say how it was trained. Choose a profile"):
        load_ar_model(write(tmp_path / "plain.safetensors"), None)
    model = load_ar_model(write(tmp_path / "plain.safetensors"), PROFILES["LongLive 1.3B"])
    assert profile_of(model.model_options).policy().retention.window_frames == 12


def test_an_unknown_model_is_refused_in_words(tmp_path):
    save_file({"something.weight": torch.zeros(3, 3)}, tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match="does not recognise the model in 'other.safetensors'"):
        load_ar_model(str(tmp_path / "other.safetensors"), PROFILES["LongLive 1.3B"])


def test_the_sampler_follows_the_profile(tmp_path):
    profile = ARProfile("mine", chunk_frames=2, steps=3, shift=7.0, window_frames=4)
    model, stats = with_profile(tiny.patch(tiny.tiny_model()), profile), []
    tiny.guide(model, tiny.ARVideoSampler(on_stats=stats.append), tiny.noise_of(6, 4, 4))
    assert [row.frames for row in stats[0].chunks] == [2, 2, 2]
    assert stats[0].policy["retention"]["window_frames"] == 4
    assert [row.bank_tokens for row in stats[0].chunks] == [(0,), (8,), (8,)]


def test_a_profile_does_not_change_the_model_it_was_given_for():
    model = tiny.tiny_model()
    shift = model.get_model_object("model_sampling").shift
    tiny.prepared(model)
    assert profile_of(model.model_options) is None and model.get_model_object("model_sampling").shift == shift


@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda profile: profile.name)
def test_every_profile_survives_its_json_and_holds_a_chunk(profile):
    assert ARProfile.from_json(profile.to_json()) == profile
    geometry = Geometry(layers=1, heads=1, head_dim=4, grid=(1, 1), chunk_frames=profile.chunk_frames, temporal_channels=2)
    profile.policy().retention.check(geometry, Take(81, 0, (1., 0.), 0))
