"""Bad input: one sentence that says what came and what to change, before any sampling."""

import importlib

import pytest
import torch
from keepsake.host.budget.of_inputs import budget_of_inputs
from keepsake.host.model.profiles import ARProfile, with_profile
from keepsake.host.take.take import sample_take
from keepsake.kv_policies import KVPolicy, SinkWindow
from support import tiny


def refused(match, model, noise, chunk_frames=2, policy=None, **options):
    steps = []
    with pytest.raises(ValueError, match=match):
        tiny.ours(
            model, noise, chunk_frames, policy, callback=lambda *a: steps.append(a), **options
        )
    assert not steps


def test_an_image_latent_is_refused(model):
    refused("needs a video latent", model, torch.zeros(1, 16, 4, 4))


def test_a_window_smaller_than_a_chunk_is_refused(model):
    refused(
        "window_frames = 2 cannot hold",
        model,
        tiny.noise_of(6, **tiny.SIZE),
        3,
        KVPolicy(SinkWindow(0, 2)),
    )


def test_a_prefix_of_another_size_is_refused(model):
    refused(
        "height and width must agree",
        model,
        tiny.noise_of(4, **tiny.SIZE),
        prefix=tiny.noise_of(1, 6, 6),
    )


def test_a_prefix_longer_than_the_take_is_refused(model):
    refused(
        "nothing is left to make",
        model,
        tiny.noise_of(4, **tiny.SIZE),
        prefix=tiny.noise_of(4, **tiny.SIZE),
    )


def test_a_control_for_a_model_without_one_is_refused(model):
    refused(
        "Leave the control input open",
        model,
        tiny.noise_of(4, **tiny.SIZE),
        control=torch.zeros(1, 16, 4, 4, 4),
    )


def test_a_control_of_the_wrong_length_is_refused():
    refused(
        "made for 3 latent frames of 4x4, the take has 4",
        tiny.tiny_model(in_dim=32),
        tiny.noise_of(4, **tiny.SIZE),
        control=torch.zeros(1, 16, 3, 4, 4),
    )


def test_a_missing_control_is_refused():
    model = with_profile(
        tiny.patch(tiny.tiny_model(in_dim=32)), ARProfile(name="needs one", needs_control=True)
    )
    with pytest.raises(ValueError, match="follows a camera and none is connected"):
        tiny.guide(model, tiny.sampler(), tiny.noise_of(4, **tiny.SIZE))


def test_sigmas_that_stop_above_zero_are_refused(model):
    refused("down to 0", model, tiny.noise_of(4, **tiny.SIZE), sigmas=torch.tensor([1.0, 0.5, 0.2]))


def test_sigmas_without_a_step_are_refused(model):
    with pytest.raises(ValueError, match="no step at all"):
        sample_take(
            model,
            tiny.prompt(1),
            None,
            1.0,
            {"samples": tiny.noise_of(4, **tiny.SIZE)},
            seed=0,
            steps=2,
            chunk_frames=2,
            policy=None,
            prefix=None,
            control=None,
            sigmas=torch.tensor([]),
        )


def test_a_latent_of_another_model_is_refused(model):
    refused("latent has 4 channels, this model's have 16", model, torch.zeros(1, 4, 4, 4, 4))


def test_rising_sigmas_are_refused(model):
    refused(
        "fall from step to step",
        model,
        tiny.noise_of(4, **tiny.SIZE),
        sigmas=torch.tensor([0.5, 0.5, 0.0]),
    )


@pytest.mark.parametrize(
    "sigmas, says",
    [
        ([torch.nan, 0.5, 0.0], "finite; got .nan, 0.5, 0.0"),
        ([1.0, torch.nan, 0.0], "finite"),
        ([torch.inf, 0.5, 0.0], "finite"),
        ([14.6, 3.0, 0.0], "begin at 1 at most"),
        ([1.01, 0.5, 0.0], "begin at 1 at most"),
    ],
)
def test_sigmas_of_no_flow_model_are_refused(model, sigmas, says):
    refused(says, model, tiny.noise_of(4, **tiny.SIZE), sigmas=torch.tensor(sigmas))


@pytest.mark.parametrize("key, value", [("mask", torch.ones(1, 4, 4)), ("area", (4, 4, 0, 0))])
def test_a_prompt_for_a_region_is_refused(model, key, value):
    positive = tiny.prompt(1)
    positive[0][1][key] = value
    refused("cannot be cut into chunks", model, tiny.noise_of(4, **tiny.SIZE), positive=positive)


@pytest.mark.parametrize(
    "cfg, says", [(3.0, "needs a negative prompt"), (float("nan"), "no number to guide by")]
)
def test_guidance_without_a_negative_prompt_or_a_number_is_refused(model, cfg, says):
    latent = {"samples": tiny.noise_of(4, **tiny.SIZE)}
    with pytest.raises(ValueError, match=says):
        sample_take(
            model,
            tiny.prompt(1),
            None,
            cfg,
            latent,
            seed=0,
            steps=2,
            chunk_frames=2,
            policy=None,
            prefix=None,
            control=None,
            sigmas=None,
        )


def test_a_model_that_is_not_wan_is_refused(model):
    other = model.clone()
    other.add_object_patch("diffusion_model", torch.nn.Identity())
    with pytest.raises(ValueError, match="Wan family, and this MODEL is Identity"):
        sample_take(
            other,
            tiny.prompt(1),
            None,
            1.0,
            {"samples": tiny.noise_of(4, **tiny.SIZE)},
            seed=0,
            steps=2,
            chunk_frames=2,
            policy=None,
            prefix=None,
            control=None,
            sigmas=None,
        )


@pytest.mark.parametrize(
    "kind",
    [
        "VaceWanModel",
        "CameraWanModel",
        "WanModel_S2V",
        "HumoWanModel",
        "SCAILWanModel",
        "AnimateWanModel",
    ],
)
def test_wans_side_models_are_refused(model, kind):
    module = importlib.import_module(
        "comfy.ldm.wan.model_animate" if kind == "AnimateWanModel" else "comfy.ldm.wan.model"
    )
    other = model.clone()
    other.add_object_patch("diffusion_model", object.__new__(getattr(module, kind)))
    with pytest.raises(ValueError, match=f"is a {kind}, whose extra inputs"):
        tiny.patch(other)


def test_an_unprepared_model_says_which_node_is_missing(model):
    with pytest.raises(ValueError, match="AR Profile node between"):
        tiny.guide(model, tiny.sampler(chunk_frames=2), tiny.noise_of(4, **tiny.SIZE))


def test_weights_that_give_no_finite_numbers_are_named():
    broken = tiny.tiny_model()
    broken.model.diffusion_model.head.head.weight.data.fill_(float("nan"))
    with pytest.raises(ValueError, match="Latent frames 0 to 1 are not finite numbers"):
        tiny.ours(broken, tiny.noise_of(2, **tiny.SIZE), 2)


def spoilt(shape, value):
    latent = torch.zeros(shape)
    latent.flatten()[5] = value
    return latent


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["latent", "prefix", "prompt", "negative prompt", "control"])
def test_an_input_that_is_not_finite_is_named_before_any_forward(name, value):
    model = tiny.tiny_model(in_dim=32 if name == "control" else 16)
    inputs = {
        "latent": lambda: dict(samples=spoilt((1, 16, 4, 4, 4), value)),
        "prefix": lambda: dict(prefix={"samples": spoilt((1, 16, 1, 4, 4), value)}),
        "prompt": lambda: dict(positive=[[spoilt(tiny.prompt(1)[0][0].shape, value), {}]]),
        "negative prompt": lambda: dict(
            negative=[[spoilt(tiny.prompt(1)[0][0].shape, value), {}]], cfg=3.0
        ),
        "control": lambda: dict(control=spoilt((1, 16, 4, 4, 4), value)),
    }[name]()
    steps = []
    with pytest.raises(ValueError, match=f"The {name} holds numbers that are not finite"):
        sample(model, **inputs, callback=lambda *progress: steps.append(progress))
    assert not steps


def test_a_latent_without_samples_is_refused(model):
    with pytest.raises(ValueError, match="The latent has no 'samples' .it holds frames."):
        sample(model, latent={"frames": 3})
    with pytest.raises(ValueError, match="The prefix has no 'samples' .it holds nothing."):
        sample(model, prefix={})


# -- numbers that come by wire, where no widget holds them to a range


def sample(model, **inputs):
    latent = {"samples": inputs.pop("samples", torch.zeros(1, 16, 4, 4, 4))}
    return sample_take(
        model,
        inputs.pop("positive", tiny.prompt(1)),
        inputs.pop("negative", None),
        inputs.pop("cfg", 1.0),
        inputs.pop("latent", latent),
        **{"seed": 0, "steps": 2, "chunk_frames": 2, **inputs},
    )


@pytest.mark.parametrize(
    "inputs, says",
    [
        (dict(chunk_frames=-1), "chunk_frames is -1. Use at least 1"),
        (dict(steps=-1), "steps is -1. Use at least 1"),
        (
            dict(samples=torch.zeros(1, 16, 0, 4, 4)),
            r"needs a video latent .* shape \[1, 16, 0, 4, 4\]",
        ),
        (dict(positive=[]), "No prompt reaches the sampler"),
    ],
    ids=str,
)
def test_a_take_of_nothing_is_refused(inputs, says, model):
    steps = []
    with pytest.raises(ValueError, match=says):
        sample(model, **inputs, callback=lambda *progress: steps.append(progress))
    assert not steps


@pytest.mark.parametrize(
    "inputs, says",
    [
        (dict(chunk_frames=-1), "chunk_frames is -1"),
        (dict(steps=-1), "steps is -1"),
        (dict(prompts=0), "prompts is 0. Use at least 1"),
    ],
    ids=str,
)
def test_an_estimate_of_nothing_is_refused(inputs, says, model):
    with pytest.raises(ValueError, match=says):
        budget_of_inputs(
            model,
            {"samples": torch.zeros(1, 16, 4, 4, 4)},
            **{"steps": 2, "chunk_frames": 2, "prompts": 1, **inputs},
            cfg=1.0,
            policy=None,
            prefix=None,
        )


@pytest.mark.parametrize(
    "number",
    [
        dict(chunk_frames=0),
        dict(steps=0),
        dict(shift=-1.0),
        dict(shift=float("nan")),
        dict(temporal_compression=0),
        dict(first_chunk_steps=-1),
        dict(window_frames=-1),
    ],
    ids=str,
)
def test_a_profile_of_nothing_is_refused(number):
    ((name, value),) = number.items()
    with pytest.raises(ValueError, match=f"An AR profile's {name} is {value}. Use at least"):
        ARProfile(**number)
