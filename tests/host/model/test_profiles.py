"""The table of published checkpoints, row by row, and takes that follow a profile."""

import json
from pathlib import Path
from typing import NamedTuple

import comfy.model_sampling
import pytest
import torch
from comfy.patcher_extension import WrappersMP
from keepsake.host.model.file_names import rows_named
from keepsake.host.model.profiles import ARProfile, profile_of, with_profile
from keepsake.host.model.published import CHECKPOINTS, PROFILES
from keepsake.host.take.patch import patch
from keepsake.kv_policies import ContextRecompute, Geometry, Hierarchical, RollingForcing, Take
from keepsake.nodes.model import ARProfileNode
from support import tiny

HELP = (Path(__file__).parents[3] / "web/docs/KeepsakeARVideoModelLoader.md").read_text(
    encoding="utf-8"
)
FOUR, FIVE = (1000, 750, 500, 250), (1000, 800, 600, 400, 200)


class Released(NamedTuple):
    """What a checkpoint's authors published."""

    file: str
    width: int = 1536  # of the transformer
    channels: int = 16  # of its latents
    chunk_frames: int = 3
    step_list: tuple[float, ...] = FOUR  # their denoising_step_list
    warped: bool = True  # by the shift of 5: their warp_denoising_step
    window: int = 21
    sink: int = 0


AUTHORS = {
    "Self-Forcing (chunk-wise)": Released("checkpoints/self_forcing_dmd.pt"),
    "Causal-Forcing (chunk-wise)": Released("Causal-Forcing/chunkwise/causal_forcing.pt"),
    "Causal-Forcing (frame-wise)": Released("causal_forcing-framewise.safetensors", chunk_frames=1),
    "LongLive 1.3B": Released("LongLive-1.3B/models/longlive_base.pt", window=12, sink=3),
    "LongLive 2 5B": Released(
        "LongLive-2.0-5B/model_bf16.pt",
        width=3072,
        channels=48,
        chunk_frames=8,
        step_list=(1000, 946, 854, 681),
        warped=False,
        window=32,
        sink=8,
    ),
    "Causal-Forcing++ 1-step (frame-wise)": Released(
        "Causal-Forcing/causal-forcing++/framewise-1step.pt", chunk_frames=1, step_list=(1000,)
    ),
    "Causal-Forcing++ 2-step (frame-wise)": Released(
        "framewise-2step.pt", chunk_frames=1, step_list=(1000, 500)
    ),
    "Causal-Forcing long video": Released(
        "Causal-Forcing/chunkwise/longvideo.pt", step_list=FIVE, sink=3
    ),
    "Rolling Forcing": Released("checkpoints/rolling_forcing_dmd.pt", step_list=FIVE, sink=3),
    "HiAR": Released("ckpts/hiar.pt"),
    "RAVEN": Released("cmgrpo_raven_merge.pt"),
    "Krea Realtime 14B": Released("krea-realtime-video-14b.safetensors", width=5120, window=6),
    "FastVideo Self-Forcing 1.3B": Released(
        "SFWan2.1-T2V-1.3B-Diffusers/transformer/diffusion_pytorch_model.safetensors"
    ),
    "Reward Forcing 1.3B": Released("Reward-Forcing-T2V-1.3B/rewardforcing.pt", window=9, sink=3),
}


def sampling_of(shift: float):
    sampling = comfy.model_sampling.ModelSamplingDiscreteFlow()
    sampling.set_parameters(shift=shift, multiplier=1000)
    return sampling


@pytest.mark.parametrize(
    "row", [row for row in CHECKPOINTS if not row.kind], ids=lambda row: row.profile.name
)
def test_a_row_says_what_its_authors_do(row):
    profile = row.profile
    released = AUTHORS[profile.name]
    size = released.width, released.channels
    assert next(r for r in rows_named(released.file) if (r.width, r.channels) == size) is row
    levels = [step / 1000 for step in released.step_list]
    if released.warped:
        levels = [5 * level / (1 + 4 * level) for level in levels]
    assert torch.allclose(
        profile.take_sigmas(sampling_of(profile.shift)), torch.tensor([*levels, 0.0]), atol=1e-6
    )
    assert profile.chunk_frames == released.chunk_frames
    assert profile.steps == len(released.step_list)
    assert (profile.window_frames, profile.sink_frames) == (released.window, released.sink)
    assert (profile.shift, profile.context_noise, profile.temporal_compression) == (5.0, 0.0, 4)
    assert row.source.startswith("huggingface.co/") and row.licence
    assert f"\n| {profile.name} |" in HELP and row.source.removeprefix("huggingface.co/") in HELP


# As the authors' loops came by them, run as they are: profile, shift, chunk, window, sink, then
# timestep, level of x0 and level of re-noise of each step. A take begins with noise alone.
TABLES = {
    "LingBot-World v2": (
        (10.0, 4, 18, 6),
        (999, 0.999900, 1.0),
        (967, 0.967949, 0.967783),
        (908, 0.908925, 0.908594),
        (768, 0.768994, 0.768044),
    ),
    "LingBot-World v1 fast": (
        (10.0, 3, 21, 0),
        (999, 0.999900, 1.0),
        (978, 0.978971, 0.978830),
        (947, 0.947909, 0.947693),
        (825, 0.825853, 0.825193),
    ),
    "LingBot-World v2 (CMBench)": (
        (5.0, 4, 0, 0),
        (999, 0.999800, 1.0),
        (957, 0.957993, 0.957720),
        (899, 0.899804, 0.899411),
        (702, 0.702407, 0.702407),
    ),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_of_steps_is_its_authors_to_the_last_digit(name):
    profile, (numbers, *steps) = PROFILES[name], TABLES[name]
    got = (profile.shift, profile.chunk_frames, profile.window_frames, profile.sink_frames)
    assert got == numbers and profile.steps == len(steps)
    assert [tuple(round(number, 6) for number in step) for step in profile.table] == steps
    row = next(row for row in CHECKPOINTS if row.profile is profile)
    assert f"\n| {name} |" in HELP and row.source.removeprefix("huggingface.co/") in HELP


def test_the_flow_of_a_table_has_three_numbers_for_a_step():
    profile = PROFILES["LingBot-World v2"]
    model = with_profile(patch(tiny.tiny_model()), profile)
    flow = model.get_model_object("model_sampling")
    sigmas = profile.take_sigmas(flow)
    assert flow.timestep(sigmas).tolist() == [999, 967, 908, 768, 0]
    levels = [*(step.renoise for step in profile.table), 0.0]
    assert flow.renoise_levels(sigmas).tolist() == torch.tensor(levels).tolist()
    other = torch.tensor([0.95, 0.5])
    assert torch.equal(flow.timestep(other), 1000 * other)
    assert torch.equal(flow.renoise_levels(other), other)
    noise = torch.randn(1, 16, 2, 4, 4)
    assert torch.equal(flow.noise_scaling(sigmas[0], noise, torch.zeros_like(noise)), noise)


def test_a_table_and_its_number_of_steps_agree():
    with pytest.raises(ValueError, match="a table of 2 steps and says 4. Let both agree"):
        ARProfile(table=PROFILES["LingBot-World v2"].table[:2])


@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda profile: profile.name)
def test_every_profile_survives_its_json_and_holds_a_chunk(profile):
    assert ARProfile.from_json(profile.to_json()) == profile
    assert (
        ARProfile.from_json(
            json.dumps({**json.loads(profile.to_json()), "from a newer Keepsake": 1})
        )
        == profile
    )
    geometry = Geometry(
        layers=1,
        heads=1,
        head_dim=4,
        grid=(1, 1),
        chunk_frames=profile.chunk_frames,
        temporal_channels=2,
    )
    take, policy = Take(81, 0, (1.0, 0.0), 0), profile.policy()
    policy.retention.check(geometry, take)
    policy.schedule.check(geometry, take)


@pytest.mark.parametrize(
    "name",
    [
        "causal_forcing.pt",
        "framewise.pt",
        "model_bf16.pt",
        "diffusion_pytorch_model.safetensors",  # says too little
        "chiaroscuro.safetensors",
        "ravenclaw.safetensors",
        "SFWan2.2-T2V-A14B.safetensors",
        "Self-Forcing-Plus.pt",  # means another
        "Causal-Forcing/framewise/ar_diffusion.pt",
        "Causal-Forcing/chunkwise/causal_ode.pt",
        "Self-Forcing/ode_init.pt",  # not made for a few steps
        "LongLive-RAG/causal_forcing.pt",
        "LongLive/wan_models/Wan2.1-T2V-1.3B/diffusion_pytorch_model.safetensors",
    ],
)
def test_a_name_that_does_not_tell_is_not_guessed(name):
    assert not [row for row in rows_named(name) if (row.width, row.channels) == (1536, 16)]


def test_a_14b_model_named_self_forcing_is_not_the_one_of_the_table():
    """Bidirectional step-distilled 14B models go by that name."""
    assert [row.width for row in rows_named("Wan2.1-T2V-14B-Self-Forcing.safetensors")] == [1536]


def test_rows_whose_own_loop_is_not_here_say_so():
    names = {name for name, profile in PROFILES.items() if "Keepsake" in profile.note}
    assert names == {"Rolling Forcing", "Causal-Forcing long video", "HiAR", "Krea Realtime 14B"}
    assert PROFILES["HiAR"].policy().schedule == Hierarchical(21) and PROFILES[
        "Krea Realtime 14B"
    ].policy().schedule == ContextRecompute(6)
    assert (
        PROFILES["Rolling Forcing"].policy().schedule
        == PROFILES["Causal-Forcing long video"].policy().schedule
        == RollingForcing(21)
    )


def test_steps_of_the_users_own_take_the_plain_schedule():
    profile, sampling = PROFILES["LongLive 2 5B"], sampling_of(5.0)
    assert profile.take_sigmas(sampling, 4).tolist() == pytest.approx(
        [1.0, 0.946, 0.854, 0.681, 0.0]
    )
    assert profile.take_sigmas(sampling, 2).tolist() == pytest.approx([1.0, 5 / 6, 0.0])


def test_the_sampler_follows_the_profile():
    profile = ARProfile(
        name="mine",
        chunk_frames=2,
        steps=3,
        shift=7.0,
        window_frames=4,
        context_noise=0.1,
        note="Not its own loop.",
    )
    model, stats = with_profile(tiny.patch(tiny.tiny_model()), profile), []
    tiny.guide(model, tiny.sampler(on_stats=stats.append), tiny.noise_of(6, 4, 4))
    assert [row.frames for row in stats[0].chunks] == [2, 2, 2]
    assert (
        stats[0].policy["retention"]["window_frames"] == 4
        and stats[0].policy["schedule"]["context_noise"] == 0.1
    )
    assert [row.bank_tokens for row in stats[0].chunks] == [(0,), (8,), (8,)]
    assert stats[0].notes == ("Not its own loop.",)


def test_hiar_goes_step_by_step():
    stats = []
    tiny.guide(
        with_profile(tiny.patch(tiny.tiny_model()), PROFILES["HiAR"]),
        tiny.sampler(on_stats=stats.append),
        tiny.noise_of(6, 4, 4),
    )
    assert stats[0].policy["schedule"] == {"name": "Hierarchical", "window_frames": 21}


def test_a_profile_does_not_change_the_model_it_was_given_for():
    model = tiny.tiny_model()
    shift = model.get_model_object("model_sampling").shift
    tiny.prepared(model)
    assert (
        profile_of(model.model_options) is None
        and model.get_model_object("model_sampling").shift == shift
    )


def test_a_model_without_a_profile_is_told_what_is_assumed():
    stats = []
    tiny.guide(
        tiny.patch(tiny.tiny_model(causal=False)),
        tiny.sampler(on_stats=stats.append),
        tiny.noise_of(3, 4, 4),
    )
    assert stats[0].notes == (
        "This MODEL carries no AR profile: chunks of 3 latent frames are a guess, and a model "
        "that was never trained to be "
        "rolled out, as Wan's own, gives a broken video. Put an AR Profile node in front.",
    )


def test_ar_profile_takes_the_numbers_or_a_row():
    numbers = {
        "chunk_frames": 2,
        "steps": 3,
        "shift": 7.0,
        "window_frames": 9,
        "sink_frames": 2,
        "sink_rope": "shifted",
        "temporal_compression": 4,
    }
    (model,) = (output := ARProfileNode.execute(tiny.tiny_model(), **numbers)).args
    assert profile_of(model.model_options) == ARProfile(name="custom", **numbers)
    assert output.ui["text"] == [
        "'custom': chunks of 2 latent frames, 3 steps, shift 7, window 9, sink 2."
    ]
    (model,) = ARProfileNode.execute(tiny.tiny_model(), **numbers, first_chunk_steps=4).args
    assert profile_of(model.model_options).first_chunk_steps == 4
    (model,) = (
        output := ARProfileNode.execute(tiny.tiny_model(), **numbers, profile="Krea Realtime 14B")
    ).args
    assert (
        profile_of(model.model_options) == PROFILES["Krea Realtime 14B"]
        and "encoded anew" in output.ui["text"][0]
    )


def first_chunk_take(steps, first_chunk_steps, prefix=None, frames=4):
    """Latents and the time steps of all forwards, chunk by chunk."""
    profile, forwards, stats = (
        ARProfile(name="few", chunk_frames=1, steps=steps, first_chunk_steps=first_chunk_steps),
        [],
        [],
    )

    def watch(executor, x, timestep, *args, **kwargs):
        forwards.append(round(float(timestep.flatten()[0]), 1))
        return executor(x, timestep, *args, **kwargs)

    model = with_profile(tiny.patch(tiny.tiny_model()), profile)
    model.add_wrapper_with_key(WrappersMP.DIFFUSION_MODEL, "watch", watch)
    out = tiny.guide(
        model,
        tiny.sampler(prefix=prefix, on_stats=stats.append),
        tiny.noise_of(frames, 4, 4),
        steps=steps,
    )
    return out, forwards, stats[0]


@pytest.mark.parametrize("steps, own", [(1, [1000.0]), (2, [1000.0, 833.3])])
def test_causal_forcing_plus_plus_makes_its_first_chunk_in_four_steps(steps, own):
    out, forwards, stats = first_chunk_take(steps, 4)
    assert (
        forwards == [1000.0, 937.5, 833.3, 625.0, 0.0] + [*own, 0.0] * 2 + own
    )  # each but the last with its clean pass
    assert torch.equal(
        out[:, :, :1], first_chunk_take(4, 0)[0][:, :, :1]
    )  # the very chunk of a 4-step take
    assert not torch.equal(out[:, :, 1:], first_chunk_take(4, 0)[0][:, :, 1:])
    assert (
        stats.steps == steps
        and stats.notes[-1] == "The first new chunk took 4 steps, as the model was trained."
    )


def test_after_a_prefix_the_first_new_chunk_is_the_first():
    """As the authors' loop, which counts generated blocks."""
    _, forwards, _ = first_chunk_take(1, 4, prefix=tiny.noise_of(2, 4, 4, seed=8))
    assert forwards == [0.0, 0.0] + [1000.0, 937.5, 833.3, 625.0, 0.0] + [1000.0]


def test_a_take_of_more_steps_than_the_first_chunk_needs_is_left_alone():
    assert torch.equal(first_chunk_take(4, 4)[0], first_chunk_take(4, 0)[0])


def test_the_first_chunk_steps_of_a_batch_item_are_its_own():
    profile = ARProfile(name="few", chunk_frames=1, steps=1, first_chunk_steps=4)
    model, noise = (
        with_profile(tiny.patch(tiny.tiny_model()), profile),
        tiny.noise_of(2, 4, 4, batch=2),
    )
    together = tiny.guide(model, tiny.sampler(), noise, steps=1)
    alone = tiny.guide(model, tiny.sampler(noise_index=[1]), noise[1:], steps=1)
    assert torch.equal(together[1:], alone)
