"""The budget of a take from a node's inputs, without a sampling call."""

from __future__ import annotations

import comfy.model_management
from torch import Tensor

from ...kv_policies import KVPolicy, Take
from ...rollout.chunks import plan_chunks
from ...rollout.earlier_take import share_of
from ...rollout.estimate import estimate
from ...rollout.stats import KVStats
from ...rollout.take_plan import TakePlan
from ..model.backbone import read_geometry
from ..model.compute_dtype import compute_dtype
from ..model.profiles import ARProfile, profile_of
from ..model.tensors import samples_of
from .budget import Budget, budget_of, token_bytes


def budget_of_inputs(
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
) -> Budget:
    """The inputs are the sampler's; `prompts` counts the positive ones, to which a negative is
    added at a `cfg` that is not 1. The stats of an `earlier` take give the expected share.
    """
    # 1. The take, with what the inputs leave open from the model's profile.
    profile = profile_of(model.model_options) or ARProfile()
    policy = policy or profile.policy()
    shape, given_frames = _checked_sizes(samples_of(latent), prefix, prompts)
    chunk_frames = min(chunk_frames or profile.chunk_frames, shape[2])
    sigmas = profile.take_sigmas(model.get_model_object("model_sampling"), steps)
    take = Take(shape[2], given_frames, tuple(sigmas.tolist()), seed=0)
    geometry = read_geometry(model, *shape[3:], chunk_frames)
    chunks = plan_chunks(shape[2], chunk_frames, given_frames)
    policy.check(geometry, take)
    # 2. Its plan.
    channels = model.get_model_object("latent_format").latent_channels
    plan = TakePlan(
        policy=policy,
        geometry=geometry,
        take=take,
        chunks=chunks,
        streams=prompts + (cfg != 1),
        dtype=compute_dtype(model),
        token_bytes=token_bytes(shape[0], channels),
        share=share_of(earlier, policy, geometry, take) if earlier else None,
        on_chunk=comfy.model_management.throw_exception_if_processing_interrupted,
    )
    # 3. Beside the device.
    return budget_of(model, plan, estimate(plan), tuple(shape[3:]), profile.temporal_compression)


def _checked_sizes(
    samples: Tensor, prefix: dict | None, prompts: int
) -> tuple[tuple[int, ...], int]:
    """The latent's shape and the number of given latent frames. ValueError with a sentence."""
    shape = tuple(samples.shape)
    given_frames = 0 if prefix is None else samples_of(prefix, "prefix").shape[2]
    if len(shape) != 5 or given_frames >= shape[2]:
        raise ValueError(
            f"The latent has the shape {list(shape)} and the prefix {given_frames} latent frames. "
            "An estimate needs a video latent [B, C, T, H, W] that is longer than its prefix."
        )
    if prompts < 1:
        raise ValueError(
            f"prompts is {prompts}. Use at least 1, the positive prompt that every take has."
        )
    return shape, given_frames
