"""Matrix-Game 2 through the whole path: a file, the loader, World Actions, the host's start image
and CLIP vision, the sampler. Beside the authors' own loop, which `oracles/matrix_game.safetensors`
holds: 12 latent frames of 8x12 in each mode.
"""

import gc
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import comfy.model_management
import comfy.samplers
import comfy.utils
import pytest
import torch
import torch._dynamo
from comfy_api.torch_helpers import set_torch_compile_wrapper
from comfy_extras.nodes_wan import WanImageToVideo
from keepsake.host.budget.of_inputs import budget_of_inputs
from keepsake.host.budget.report import budget_dict, budget_report
from keepsake.host.forward.prompts import add_prompt
from keepsake.host.model import checkpoint, file_names
from keepsake.host.model.checkpoint import load_ar_model
from keepsake.host.model.game_actions import action_control
from keepsake.host.model.profiles import profile_of
from keepsake.host.model.published import CHECKPOINTS
from keepsake.host.take.patch import patch
from keepsake.kv_policies import DeCoPrune, FullKV, KVPolicy, KVStorage, SinkWindow
from keepsake.kv_policies.cache.action_rows import ActionRows
from safetensors.torch import load_file
from support import tiny, tiny_worlds

from .test_input_matrix import POLICIES, PRUNING

AUTHORS = load_file(Path(__file__).parent / "oracles/matrix_game.safetensors")
TEXTS = {  # what the authors' loop was given, as text
    "universal": "w-9,wj-7,dl-6,none-5,sai-8,k-4",
    "gta_drive": "w-9,wa-7,d-6,none-5,sd-8,a-4",
    "templerun": "w-9,s-7,z-6,none-5,c-8,a-4,d-3",
}
FRAMES, HEIGHT, WIDTH = 12, 8, 12
# Of `matrix_game_file`: four heads, and an action module in the first of two blocks alone.
SMALL = dict(dim=128, layers=2, action_layers=1, heads=1, attention_heads=4)


def rows_at_width(width):
    """The table's checkpoints, at the width of the files here."""
    return tuple(replace(row, width=width) for row in CHECKPOINTS)


def loaded(folder, mode="universal", **sizes):
    path = tiny_worlds.matrix_game_file(folder / f"{mode}.safetensors", mode, **sizes)
    with pytest.MonkeyPatch.context() as patches:
        rows = rows_at_width(sizes.get("dim", 256))
        patches.setattr(file_names, "CHECKPOINTS", rows)
        patches.setattr(checkpoint, "CHECKPOINTS", rows)
        return patch(load_ar_model(path, None))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    with torch.inference_mode():
        return loaded(tmp_path_factory.mktemp("models"), **SMALL)


def drawn(shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def begun(model, frames=FRAMES, clip_vision=True):
    """A prompt without text as the host's node gives it, with the authors' start image."""
    start = drawn((1, 16, FRAMES, HEIGHT, WIDTH), 5)
    latents = model.get_model_object("latent_format").process_out(start)
    vae = SimpleNamespace(encode=lambda pictures: latents[:, :, : (len(pictures) + 3) // 4])
    seen = SimpleNamespace(penultimate_hidden_states=drawn((1, 257, 1280), 6))
    size = dict(width=8 * WIDTH, height=8 * HEIGHT, length=4 * frames - 3, batch_size=1)
    nothing = [[torch.zeros(1, 1, 4096), {}]]
    return WanImageToVideo.execute(
        nothing,
        nothing,
        vae,
        **size,
        start_image=torch.zeros(1, 8 * HEIGHT, 8 * WIDTH, 3),
        clip_vision_output=seen if clip_vision else None,
    )[0]


def take(
    model,
    mode="universal",
    frames=FRAMES,
    policy=None,
    text=None,
    positive=None,
    noise=None,
    steps=0,
    cfg=1.0,
    **request,
):
    """Normalised latents of a take with the authors' noise."""
    control = request.pop("control", None) or action_control(mode, text or TEXTS[mode], frames)
    sampler = tiny.sampler(policy, control=control, **request)
    sigmas = profile_of(model.model_options).take_sigmas(
        model.get_model_object("model_sampling"), steps
    )
    positive = positive or begun(model, frames)
    noise = tiny.noise_of(frames, HEIGHT, WIDTH) if noise is None else noise
    latents = tiny.guide(model, sampler, noise, positive, positive, cfg=cfg, sigmas=sigmas)
    return model.get_model_object("latent_format").process_in(latents)


def apart(a, b) -> float:
    return float((a - b).abs().max())


@pytest.mark.parametrize("mode", TEXTS)
def test_a_take_equals_the_authors(mode, tmp_path):
    model = loaded(tmp_path, mode)
    assert profile_of(model.model_options).name == f"Matrix-Game 2 {mode}"
    assert apart(take(model, mode), AUTHORS[mode]) < 1e-4


def test_another_window_is_another_take(tmp_path):
    """gta_drive: one frame of history; chunks that leave whole would leave none."""
    model = loaded(tmp_path, "gta_drive")
    whole = take(model, "gta_drive", policy=KVPolicy(SinkWindow(0, 4)))
    assert apart(whole, AUTHORS["gta_drive"]) > 1e-2


@pytest.mark.parametrize("mode", TEXTS)
def test_the_text_is_the_authors_rows(mode):
    """Latent frame f is steered by pixel frames 4f - 12 to 4f - 1, the first before the take."""
    rows = AUTHORS[f"{mode}_rows"]
    values = action_control(mode, TEXTS[mode], FRAMES).values[0, :, :, 0, 0]
    assert values.shape == (12 * rows.shape[1], FRAMES)
    for frame, latest in enumerate(values.T.unflatten(1, (12, -1))):
        expected = torch.stack([rows[max(0, i)] for i in range(4 * frame - 12, 4 * frame)])
        assert torch.allclose(latest, expected)


# -- caches of the action modules

# layers, keys and values, frames, places of mouse and keyboard, heads, channels, fp32
ACTION_BYTES = 1 * 2 * 6 * (4 * 6 + 1) * 1 * 64 * 4


def stats_of(model, **options):
    found = []
    latents = take(model, on_stats=found.append, **options)
    assert torch.isfinite(latents).all()
    return found[0]


@pytest.mark.parametrize("frames", [3, 12])
def test_the_caches_are_in_the_stats_and_the_estimate_whatever_is_kept(model, frames):
    stats = stats_of(model, frames=frames, policy=KVPolicy(FullKV()))
    video = frames * stats.geometry.bytes_per_frame(4)
    assert stats.action_bytes == ACTION_BYTES
    assert stats.peak_cache_bytes == video + ACTION_BYTES
    assert stats.planned_bytes == (stats.peak_cache_bytes,) * 2
    assert json.loads(stats.to_json())["action_bytes"] == ACTION_BYTES
    assert "0.1 MiB of it for the keys and mouse of the latest 6 latent frames" in stats.report()


def test_the_estimate_says_what_they_take(model):
    latent = {"samples": torch.zeros(1, 16, FRAMES, HEIGHT, WIDTH)}
    asked = dict(steps=0, cfg=1.0, chunk_frames=0, policy=None, prefix=None, prompts=1)
    budget = budget_of_inputs(model, latent, **asked)
    video = 6 * budget.plan.geometry.bytes_per_frame(4)  # the profile's window
    assert budget.estimate.allocated == (video + ACTION_BYTES,) * 2
    assert "keys and mouse - 0.1 MiB for the latest 6 latent frames" in budget_report(budget)
    assert budget_dict(budget)["action_bytes"] == ACTION_BYTES


def test_guidance_has_caches_for_each_stream(model):
    stats = stats_of(model, frames=6, cfg=2.0)
    assert stats.streams == 2 and stats.action_bytes == 2 * ACTION_BYTES


RESUMED = {
    "profile": None,
    "full": KVPolicy(),
    "single frames": KVPolicy(SinkWindow(1, 5, whole_chunks=False)),
    "pruned": KVPolicy(DeCoPrune(**PRUNING)),
    "int8": KVPolicy(storage=KVStorage("int8")),
    "main memory": KVPolicy(storage=KVStorage("model", device="cpu")),
}


@pytest.mark.parametrize("name", RESUMED)
def test_two_runs_of_six_frames_are_one_of_twelve(name, model):
    policy, memories = RESUMED[name], []
    whole = take(model, policy=policy)
    first = take(model, policy=policy, stop_after=6, on_memory=memories.append)
    (memory,) = memories
    rows = memory.streams["prompt 0"]["memories"]["history"]["actions"]
    assert rows["frames"] == [0, 1, 2, 3, 4, 5] and rows["layer 0 mouse"]["k"].shape[1] == 6
    assert torch.equal(first, whole[:, :, :6])
    assert torch.equal(take(model, policy=policy, memory=memory)[:, :, 6:], whole[:, :, 6:])


def test_a_take_goes_on_under_other_keys(model):
    """Keys that differ from pixel frame 24 on change nothing of the first 6 latent frames."""
    memories = []
    take(model, text="w-24,d-24", stop_after=6, on_memory=memories.append)
    (memory,) = memories
    for keys, is_noted in (("w-24,d-24", False), ("w-24,s-24", True)):
        notes = stats_of(model, text=keys, memory=memory).notes
        assert any("The control is not the one" in note for note in notes) == is_noted
        assert torch.equal(take(model, text=keys, memory=memory), take(model, text=keys))


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_runs_or_is_refused_in_a_sentence(name, model):
    policy = POLICIES[name]
    steps = 4 if name == "TaylorSeer" else 0
    try:
        stats = stats_of(model, frames=9, policy=policy, steps=steps)
    except ValueError as error:
        assert policy.schedule.gathers and "follows keys and mouse from frame to frame" in str(
            error
        )
    else:
        assert stats.action_bytes == ACTION_BYTES and not policy.schedule.gathers
        assert stats.planned_bytes[0] <= stats.peak_cache_bytes <= stats.planned_bytes[1]


def test_a_batch_is_its_takes_one_after_the_other(model):
    noise = tiny.noise_of(6, HEIGHT, WIDTH, batch=2)
    both = take(model, frames=6, noise=noise)
    assert torch.equal(both[:1], take(model, frames=6, noise=noise[:1]))


def test_given_frames_are_read_with_their_keys(model):
    given = model.get_model_object("latent_format").process_out(
        tiny.noise_of(3, HEIGHT, WIDTH, 1, 8)
    )
    latents = take(model, frames=9, prefix=given)
    other = take(model, frames=9, prefix=given, text="s-9," + TEXTS["universal"])
    assert torch.equal(latents[:, :, :3], other[:, :, :3])
    assert apart(latents[:, :, 3:], other[:, :, 3:]) > 1e-3


def test_a_cancelled_take_leaves_nothing(model):
    def stop(step, *rest):
        if step == 4:
            comfy.model_management.interrupt_current_processing()

    with pytest.raises(comfy.model_management.InterruptProcessingException):
        control = action_control("universal", TEXTS["universal"], 12)
        tiny.guide(
            model,
            tiny.sampler(control=control),
            tiny.noise_of(12, HEIGHT, WIDTH),
            begun(model),
            sigmas=torch.tensor([1.0, 0.9, 0.7, 0.0]),
            callback=stop,
        )
    comfy.model_management.interrupt_current_processing(False)
    gc.collect()
    left = [each for each in gc.get_objects() if type(each) is ActionRows and each.nbytes()]
    assert not left


# -- keys


def test_keys_act_from_the_next_latent_frame_on(model):
    """Pixel frame 12 belongs to latent frame 3, and its row is first read by frame 4, which is made
    with frames 3 and 5.
    """
    before = action_control("universal", "w-12,none-40", 12)
    after = action_control("universal", "w-12,d-40", 12)
    differs = (before.values != after.values).any(1)[0, :, 0, 0].tolist()
    assert differs == [False] * 4 + [True] * 8
    a, b = (take(model, control=control) for control in (before, after))
    assert torch.equal(a[:, :, :3], b[:, :, :3])
    assert min(apart(a[:, :, i], b[:, :, i]) for i in range(3, 12)) > 1e-4


@pytest.mark.parametrize(
    "change, match",
    [
        (dict(control=None), "follows the node World Actions, and nothing is connected"),
        (
            dict(control=action_control("gta_drive", "w-9", 6)),
            "World Actions made keys for the mode gta_drive, and this model is universal. Set its",
        ),
        (
            dict(control=action_control("templerun", "w-9", 6)),
            "made keys for the mode templerun",
        ),
        (dict(control=action_control("universal", "w-9", 8)), "made 8 latent frames, and the take"),
        (dict(positive=tiny.prompt(1)), "goes on from a start image, and a prompt brings none"),
        (dict(positive="no clip vision"), "looks at the start image through CLIP vision, and a"),
        (dict(positive="later prompt"), "reads no text, so a prompt that comes in later changes"),
        (
            dict(chunk_frames=8, policy=KVPolicy()),
            "keys and mouse reach over 6 latent frames, and a forward would",
        ),
    ],
)
def test_what_a_take_lacks_is_said_before_it_begins(change, match, model):
    start = begun(model, 6)
    positives = {
        "no clip vision": begun(model, 6, clip_vision=False),
        "later prompt": add_prompt(start, start, 3, "cut", 0, 0),
    }
    frames = 9 if "chunk_frames" in change else 6
    given = dict(control=action_control("universal", "w-9", frames), positive=begun(model, frames))
    given |= change
    positive = given.pop("positive")
    positive = positives[positive] if isinstance(positive, str) else positive
    sampler = tiny.sampler(**given)
    with pytest.raises(ValueError, match=match):
        tiny.guide(model, sampler, tiny.noise_of(frames, HEIGHT, WIDTH), positive)


# -- as any Wan model


def changed_by(model, other, tolerance=1e-4) -> bool:
    return apart(take(model, frames=3), take(other, frames=3)) > tolerance


def test_a_lora_on_an_action_module_counts(model):
    other = model.clone()
    key = "diffusion_model.blocks.0.action_model.proj_keyboard.weight"
    patched = other.add_patches({key: (drawn((128, 64), 4),)}, 0.5)
    assert patched == [key] and changed_by(model, other)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn])
def test_weights_in_fewer_bits_run(dtype, tmp_path):
    with pytest.MonkeyPatch.context() as patches:
        patches.setitem(checkpoint.WEIGHT_DTYPES, "default", {"dtype": dtype})
        model = loaded(tmp_path, **SMALL)
    module = model.get_model_object("diffusion_model").blocks[0].action_model
    assert module.t_qkv.weight.dtype == module.keyboard_embed[0].weight.dtype == dtype
    assert torch.isfinite(take(model, frames=6)).all()


def test_a_prepared_model_still_runs_in_the_hosts_own_samplers(model):
    """All frames of the latent at once; each reads the actions of all."""
    values = action_control("universal", "w-9", 3).values
    noise, sigmas = tiny.noise_of(3, HEIGHT, WIDTH), torch.tensor([1.0, 0.5, 0.0])
    euler = comfy.samplers.ksampler("euler")

    def sampled(**options):
        positive = [[words, {**own, **options}] for words, own in begun(model, 3)]
        return tiny.guide(model, euler, noise, positive, positive, sigmas=sigmas)

    steered, free = sampled(world_actions=values), sampled()
    assert torch.isfinite(steered).all() and apart(steered, free) > 1e-4


def test_blocks_are_compiled_once_for_all_layers(tmp_path):
    """Two versions of a block, with an action module and without, whatever the layer and chunk."""
    blocks = [f"diffusion_model.blocks.{layer}" for layer in range(12)]
    model = loaded(tmp_path, **{**SMALL, "layers": len(blocks), "action_layers": 10})
    compiled = model.clone()
    set_torch_compile_wrapper(compiled, backend="eager", keys=blocks)
    plain = take(model, frames=9)
    torch._dynamo.reset()
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        assert torch.equal(take(compiled, frames=9), plain)
    torch._dynamo.reset()
    gc.collect()  # fake tensors that it was traced with
