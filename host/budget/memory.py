"""What a take needs of its device, and what the device has."""

from __future__ import annotations

from dataclasses import replace

import comfy.model_management
import torch

from ...kv_policies import KVPolicy, Take
from ...rollout.chunks import plan_chunks
from ...rollout.earlier_take import share_of
from ...rollout.estimate import Estimate, estimate
from ...rollout.setup import Setup
from ...rollout.stats import KVStats
from ..model.backbone import read_geometry
from ..model.compute_dtype import compute_dtype
from ..model.profiles import ARProfile, profile_of
from .outlook import Outlook

MARGIN = 0.05  # of free main memory, which everything else on the machine uses too
# times that a sampling call holds the whole take's latents: noise, start latent, both mixed, and
# what is made
HELD = 4


def token_bytes(batch: int, channels: int) -> int:
    """In which the latents in one token's place lie on the device: 2x2 numbers in fp32, of every
    batch item.
    """
    return HELD * batch * channels * 2 * 2 * 4


def activation_bytes(model, setup: Setup, latent_size: tuple[int, int]) -> int:
    frames = setup.policy.schedule.frames_at_once(setup.geometry, setup.take)
    return int(
        model.model.memory_required(
            [1, model.get_model_object("latent_format").latent_channels, frames, *latent_size]
        )
    )


def outlook(
    model,
    setup: Setup,
    latent_size: tuple[int, int],
    temporal_compression: int,
    known: Estimate | None = None,
    lanes: dict | None = None,
) -> Outlook:
    """`model` is the host's MODEL, `latent_size` height and width of the take's latents; `lanes`
    gives devices, whose memory is added up.
    """
    known, activations = known or estimate(setup), activation_bytes(model, setup, latent_size)
    weights = (
        0 if model.load_device == model.offload_device else model.model_size() - model.loaded_size()
    )
    devices = {model.load_device, *(lanes or {}).values()}
    free, total = (
        sum(map(function, devices))
        for function in (
            comfy.model_management.get_free_memory,
            comfy.model_management.get_total_memory,
        )
    )
    ram, most = comfy.model_management.get_free_memory(torch.device("cpu")), total
    if model.load_device.type in (
        "cpu",
        "mps",
    ):  # whose memory is the main one: there is nothing to offload into
        ram, most = (
            max(0, ram - activations - known.needed[0]),
            max(0, int(free * (1 - MARGIN)) - weights),
        )
    return Outlook(
        setup, known, temporal_compression, activations, max(0, weights), free, total, most, ram
    )


def outlook_of_inputs(
    model,
    latent: dict,
    *,
    steps: int,
    cfg: float,
    chunk_frames: int,
    policy: KVPolicy | None,
    prefix: dict | None,
    prompts: int,
    earlier: KVStats | None = None,
) -> Outlook:
    """The outlook of a take from a node's inputs, as the sampler takes them; `prompts` positive
    ones, and a negative at a `cfg` that is not 1. An earlier take shows what is to be expected of
    it.
    """
    profile = profile_of(model.model_options) or ARProfile()
    policy = policy or profile.policy()
    shape, given = latent["samples"].shape, 0 if prefix is None else prefix["samples"].shape[2]
    if len(shape) != 5 or given >= shape[2]:
        raise ValueError(
            f"The latent has the shape {list(shape)} and the prefix {given} latent frames. An "
            "estimate needs a video latent "
            "[B, C, T, H, W] that is longer than its prefix."
        )
    if prompts < 1:
        raise ValueError(
            f"prompts is {prompts}. Use at least 1, the positive prompt that every take has."
        )
    chunk_frames = min(chunk_frames or profile.chunk_frames, shape[2])
    take = Take(
        shape[2],
        given,
        tuple(profile.take_sigmas(model.get_model_object("model_sampling"), steps).tolist()),
        0,
    )
    setup = Setup(
        policy,
        read_geometry(model, *shape[3:], chunk_frames),
        take,
        plan_chunks(shape[2], chunk_frames, given),
        prompts + (cfg != 1),
        compute_dtype(model),
        token_bytes=token_bytes(shape[0], model.get_model_object("latent_format").latent_channels),
        on_chunk=comfy.model_management.throw_exception_if_processing_interrupted,
    )
    setup.check()
    if earlier:
        setup = replace(setup, share=share_of(earlier, policy, setup.geometry, take))
    return outlook(model, setup, tuple(shape[3:]), profile.temporal_compression)
