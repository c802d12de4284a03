"""Takes beside the authors' own inference code: the same tiny random weights, prompt and noise,
chunk by chunk.

`oracle.safetensors` holds what their code gave, in fp32; its header names repository and commit.
None of that code is here.
"""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from keepsake.host.forward.prompts import add_prompt
from keepsake.host.model.profiles import with_profile
from keepsake.host.model.published import PROFILES
from keepsake.kv_policies import (
    CleanPass,
    ContextRecompute,
    Hierarchical,
    KVPolicy,
    RollingForcing,
    SinkWindow,
)
from safetensors.torch import load_file
from support import tiny

AUTHORS = load_file(Path(__file__).parent / "oracle.safetensors")
# Latents are of size 1; host and authors round differently (theirs is fp64 in places), which came
# to 1.6e-5 at most.
TOLERANCE = 1e-4
CASES = {  # profile, given frames, and the policy where it is not the profile's
    "self_forcing": ("Self-Forcing (chunk-wise)", 0, None),
    "self_forcing_prefix": ("Self-Forcing (chunk-wise)", 6, None),
    "causal_forcing_frame": ("Causal-Forcing (frame-wise)", 0, None),
    "causal_forcing_frame_i2v": ("Causal-Forcing (frame-wise)", 1, None),
    "causal_forcing_1step": ("Causal-Forcing++ 1-step (frame-wise)", 0, None),
    "causal_forcing_2step": ("Causal-Forcing++ 2-step (frame-wise)", 0, None),
    "longlive": ("LongLive 1.3B", 0, None),
    "hiar": ("HiAR", 0, None),
    "hiar_prefix": ("HiAR", 6, None),
    "rolling_forcing": ("Rolling Forcing", 0, None),
    "krea": ("Krea Realtime 14B", 0, None),
    "krea_start": ("Krea Realtime 14B", 3, None),
    "krea_wide": (
        "Krea Realtime 14B",
        0,
        KVPolicy(schedule=ContextRecompute(9)),
    ),  # more context than a chunk: run in parts
}


def padded_prompt(seed=1):
    """As the text encoder gives it: 512 tokens, of which the last are zero."""
    words = tiny.prompt(seed)[0][0]
    return [[torch.nn.functional.pad(words, (0, 0, 0, 512 - words.shape[1])), {}]]


def sample(profile, frames, given=0, policy=None, positive=None, size=(4, 4), **request):
    """Normalised latents of a take with the authors' prompt and noise; `size` is (height,
    width), `request` as in `tiny.sampler`.
    """
    model = with_profile(tiny.patch(tiny.tiny_model(causal=False)), profile)
    scaling = model.get_model_object("latent_format")
    prefix = scaling.process_out(tiny.noise_of(given, *size, seed=8)) if given else None
    sigmas = profile.take_sigmas(model.get_model_object("model_sampling"))
    return scaling.process_in(
        tiny.guide(
            model,
            tiny.sampler(policy, prefix=prefix, **request),
            tiny.noise_of(frames, *size),
            positive or padded_prompt(),
            sigmas=sigmas,
        )
    )


def differences(name, policy=None):
    """Largest difference to the authors' latents, by chunk."""
    (row, given, own), expected = CASES[name], AUTHORS[name]
    apart = (sample(PROFILES[row], expected.shape[2], given, policy or own) - expected).abs()
    return [float(chunk.max()) for chunk in apart.split(PROFILES[row].chunk_frames, 2)]


@pytest.mark.parametrize("name", CASES)
def test_a_take_equals_the_authors(name):
    assert max(differences(name)) < TOLERANCE


@pytest.mark.parametrize(
    "name, policy",
    [
        ("longlive", KVPolicy(SinkWindow(3, 15))),
        ("longlive", KVPolicy(SinkWindow(0, 12))),
        ("longlive", KVPolicy(SinkWindow(3, 12, "shifted"))),
        ("longlive", KVPolicy(SinkWindow(3, 12), schedule=CleanPass(0.1))),
        ("hiar", KVPolicy(schedule=Hierarchical(18))),
        ("rolling_forcing", KVPolicy(schedule=RollingForcing(24))),
        ("krea", KVPolicy(schedule=ContextRecompute(7))),
        ("krea", KVPolicy(SinkWindow(1, 6))),
    ],
    ids=str,
)
def test_the_comparison_tells_other_windows_apart(name, policy):
    assert max(differences(name, policy)) > 50 * TOLERANCE


def with_changes(mode, *frames):
    """A prompt that changes at latent frames, as LongLive's interactive loop takes them."""
    positive = padded_prompt(1)
    for seed, frame in enumerate(frames, 2):
        positive = add_prompt(positive, padded_prompt(seed), frame, mode, 0, 12)
    return positive


@pytest.mark.parametrize("frames", [(3, 18), (6, 21), (9, 24), (12, 24), (15, 24)], ids=str)
def test_a_new_prompt_is_recached_as_longlive_does(frames):
    """27 frames under three prompts, window 12, sink 3: one forward of the window, whose frames
    read each other. Up to frame 12 it reaches back to the first frame and writes the sink as well.
    """
    expected = AUTHORS["longlive_recache_{}_{}".format(*frames)]

    def apart(mode):
        take = sample(PROFILES["LongLive 1.3B"], 27, positive=with_changes(mode, *frames))
        return [float(chunk.max()) for chunk in (take - expected).abs().split(3, 2)]

    assert max(apart("recache")) < TOLERANCE
    assert max(apart("swap")) > 50 * TOLERANCE


def test_a_recache_chunk_by_chunk_equals_longlives_forward_of_a_block_at_a_time():
    """The last two chunks of 21 frames, whose prompt changes at frame 15. LongLive prepares a mask
    by which a block reads none after it, and its forward does not apply it.
    """
    by_chunk = replace(PROFILES["LongLive 1.3B"], recache="chunk by chunk")
    takes = {
        profile: sample(profile, 21, positive=with_changes("recache", 15))[:, :, 15:]
        for profile in (by_chunk, PROFILES["LongLive 1.3B"])
    }

    def apart(profile, name):
        return float((takes[profile] - AUTHORS[name]).abs().max())

    assert apart(by_chunk, "longlive_recache_by_block") < TOLERANCE
    assert apart(by_chunk, "longlive_recache") > 30 * TOLERANCE
    assert apart(PROFILES["LongLive 1.3B"], "longlive_recache") < TOLERANCE
