"""LingBot-World through the whole path: a file, the loader, World Camera, the host's start image,
the sampler. Beside the authors' own loops, which `oracles/lingbot.safetensors` holds.
"""

import gc
import weakref
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from comfy_extras.nodes_wan import WanImageToVideo
from keepsake.host.model.camera import Lens, camera_control
from keepsake.host.model.checkpoint import load_ar_model
from keepsake.host.model.lingbot import LingBotWan
from keepsake.host.model.profiles import with_profile
from keepsake.host.model.published import PROFILES
from keepsake.host.take.patch import patch
from keepsake.kv_policies import (
    DirectedForcing,
    KVMemoryError,
    KVPolicy,
    KVStorage,
    RollingForcing,
    SinkWindow,
)
from safetensors.torch import load_file
from support import tiny

from ...cases import RETENTION_CASES, SCHEDULE_CASES

AUTHORS = load_file(Path(__file__).parent / "oracles/lingbot.safetensors")
LENS = Lens(500.0, 510.0, 416.0, 240.0)
WINDOW = KVPolicy(SinkWindow(2, 6))
CHUNK, FRAMES = 2, 12


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return tiny.lingbot_file(tmp_path_factory.mktemp("models") / "lingbot.safetensors")


@pytest.fixture(scope="module")
def model(file):
    return loaded(file, "LingBot-World v2")


def loaded(file, profile):
    return patch(load_ar_model(file, PROFILES[profile]))


def begun(model, frames=FRAMES):
    """A prompt as the host's node gives it, with the start image's latents that the authors had."""
    latents = model.get_model_object("latent_format").process_out(AUTHORS["start_image"])
    vae = SimpleNamespace(encode=lambda pictures: latents[:, :, : (len(pictures) + 3) // 4])
    words = torch.nn.functional.pad(AUTHORS["text"], (0, 0, 0, 500))
    picture = torch.zeros(1, 64, 80, 3)
    size = dict(width=80, height=64, length=4 * frames - 3, batch_size=1)
    text = [[words, {}]]
    return WanImageToVideo.execute(text, text, vae, **size, start_image=picture)[0]


def camera(frames=FRAMES, scale=0.0):
    return camera_control(AUTHORS["poses"][: 4 * frames - 3], scale, LENS)


def take(model, control=None, policy=WINDOW, frames=FRAMES, noise=None, **request):
    """Normalised latents of a take with the authors' noise."""
    sampler = tiny.sampler(policy, CHUNK, control=control or camera(frames), **request)
    profile = model.model_options["transformer_options"]["keepsake_profile"]
    sigmas = profile.take_sigmas(model.get_model_object("model_sampling"))
    noise = tiny.noise_of(frames, 8, 10) if noise is None else noise
    latents = tiny.guide(model, sampler, noise, begun(model, frames), sigmas=sigmas)
    return model.get_model_object("latent_format").process_in(latents)


@pytest.mark.parametrize(
    "name, profile", [("v2", "LingBot-World v2"), ("v1", "LingBot-World v1 fast")]
)
def test_a_take_equals_the_authors(name, profile, file):
    apart = (take(loaded(file, profile)) - AUTHORS[name]).abs()
    assert float(apart.max()) < 1e-4


def apart(a, b) -> float:
    return float((a - b).abs().max())


def test_one_level_for_a_step_is_another_take(model, file):
    plain = replace(PROFILES["LingBot-World v2"], table=())
    sigmas = tuple(step.sigma for step in PROFILES["LingBot-World v2"].table)
    other = patch(load_ar_model(file, PROFILES["LingBot-World v2"]))
    other = with_profile(other, replace(plain, sigmas=sigmas))
    assert apart(take(other), AUTHORS["v2"]) > 1e-2


def test_a_camera_that_stands_still_is_not_no_camera(model):
    still = camera_control(torch.eye(4).repeat(9, 1, 1), 0.0, LENS)
    none = replace(still, values=torch.zeros_like(still.values))
    none.values[:, 12:] = still.values[:, 12:]  # no pose, so no rays, and the same lens
    assert apart(take(model, still, frames=3), take(model, none, frames=3)) > 1e-2
    again = replace(still, values=still.values.clone())
    assert apart(take(model, still, frames=3), take(model, again, frames=3)) == 0


def test_two_runs_of_six_frames_are_one_of_twelve(model):
    whole, memories = take(model), []
    first = take(model, stop_after=6, on_memory=memories.append)
    (memory,) = memories
    assert torch.equal(first, whole[:, :, :6])
    assert torch.equal(take(model, memory=memory)[:, :, 6:], whole[:, :, 6:])
    # Another scale would make other steps of the same path.
    with pytest.raises(KVMemoryError, match=r"Set scale in World Camera to \d.\d+\."):
        take(model, camera(scale=7.0), memory=memory)
    for scale in ("7", float("nan"), -1.0):
        memory.about["control_scale"] = scale
        with pytest.raises(KVMemoryError, match="damaged.*its camera's scale is"):
            take(model, memory=memory)


def test_a_path_that_was_planned_in_parts_needs_its_scale(model):
    """The first half of the path has a smaller largest step than all of it."""
    scale = camera().scale
    assert camera(6).scale < scale
    first, whole = camera(6, scale).values, camera().values
    assert torch.equal(first, whole[:, :, :6])
    assert not torch.equal(camera(6).values, whole[:, :, :6])


def test_the_camera_is_embedded_once_a_chunk_and_nothing_of_it_stays(model, monkeypatch):
    made, embed = [], LingBotWan.embed_camera

    def counting(self, rays):
        made.append(embed(self, rays))
        return made[-1]

    monkeypatch.setattr(LingBotWan, "embed_camera", counting)
    take(model, frames=6)
    assert [len(tokens) for tokens in made] == [1, 1, 1]
    assert all(tokens.shape == (1, CHUNK * 20, 256) for tokens in made)
    kept = [weakref.ref(tokens) for tokens in made]
    made.clear()
    gc.collect()
    assert not any(ref() is not None for ref in kept)


@pytest.mark.parametrize(
    "change, match",
    [
        (dict(control=None), "follows the node World Camera, and nothing is connected"),
        (
            dict(control=torch.zeros(1, 20, 6, 8, 10)),
            "follows the node World Camera, and another control is connected",
        ),
        (dict(control="longer"), "World Camera made 8 latent frames, and the take has 6"),
        (dict(positive="no image"), "goes on from a start image, and a prompt brings none"),
        (dict(positive="longer"), "start image for 8 latent frames, and the take has 6. Set the"),
        (dict(positive="small"), "start image of 9x8 latent cells, and the take has 10x8. Give"),
        (dict(positive="other text"), "text is 24 wide, and this model reads 64. Encode it by"),
    ],
)
def test_what_a_take_lacks_is_said_before_it_begins(change, match, model):
    ((text, start),) = begun(model, 6)
    narrow = {**start, "concat_latent_image": start["concat_latent_image"][..., :9]}
    others = {
        "longer": dict(control=camera(8), positive=begun(model, 8)),
        "no image": dict(positive=[[text, {}]]),
        "small": dict(positive=[[text, narrow]]),
        "other text": dict(positive=[[text[..., :24], start]]),
    }
    given = dict(control=camera(6), positive=begun(model, 6))
    for name, value in change.items():
        given[name] = others[value][name] if isinstance(value, str) else value
    sampler = tiny.sampler(WINDOW, CHUNK, control=given["control"])
    with pytest.raises(ValueError, match=match):
        tiny.guide(model, sampler, tiny.noise_of(6, 8, 10), given["positive"])


def test_a_camera_is_refused_by_another_model():
    plain = tiny.prepared(tiny.tiny_model())
    with pytest.raises(
        ValueError, match="is that of a LingBot-World model, and this MODEL is none"
    ):
        tiny.guide(plain, tiny.sampler(control=camera(6)), tiny.noise_of(6))


EVERY = [
    *(KVPolicy(retention) for retention in RETENTION_CASES),
    *(KVPolicy(schedule=case) for case in SCHEDULE_CASES if type(case) is not RollingForcing),
    KVPolicy(schedule=RollingForcing(11)),  # four chunks of two and the sink
    KVPolicy(SinkWindow(2, 6, "shifted"), DirectedForcing()),
    KVPolicy(storage=KVStorage("int4")),
    KVPolicy(storage=KVStorage("model", device="cpu")),
]


def name_of(policy):
    parts = policy.retention, policy.selection, policy.schedule, policy.storage
    return " ".join(type(part).__name__ for part in parts)


@pytest.mark.parametrize("policy", EVERY, ids=name_of)
def test_every_policy_follows_the_camera(policy, model):
    """Forwards of other frames than a chunk's, as anchors and chunks in flight, get their share."""
    latents = take(model, policy=policy, frames=10)
    assert torch.isfinite(latents).all()
    still = camera_control(torch.eye(4).repeat(37, 1, 1), 0.0, LENS)
    assert apart(latents, take(model, still, policy, 10)) > 1e-2


def test_a_batch_is_its_takes_and_guidance_has_the_camera_in_both_streams(model):
    noise = tiny.noise_of(6, 8, 10, batch=2)
    both = take(model, frames=6, noise=noise)
    assert torch.equal(both[:1], take(model, frames=6, noise=noise[:1]))
    stats = []
    sampler = tiny.sampler(WINDOW, CHUNK, on_stats=stats.append, control=camera(6))
    text = begun(model, 6)
    latents = tiny.guide(model, sampler, noise[:1], text, text, cfg=3.0)
    assert torch.isfinite(latents).all() and stats[0].streams == 2
