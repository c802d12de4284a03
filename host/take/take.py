"""One take from a node's inputs: noise, sigmas, guider, progress, through the host's own sampling
call.
"""

import math
from collections.abc import Callable

import comfy.model_management
import comfy.sample
import comfy.samplers
import comfy.utils
import latent_preview
from torch import Tensor

from ...kv_policies import KVPolicy
from ...rollout.memory_file import KVMemory
from ...rollout.stats import KVStats
from ..files.growing_files import StreamToFile, GrowingFiles
from ..model.profiles import ARProfile, profile_of
from .outer_call import look_ahead
from .patch import patch
from .sampling import ARVideoSampler

EMPTY_LATENT_RATIOS = (
    "downscale_ratio_spacial",
    "downscale_ratio_temporal",
)  # the host's; they mean nothing on a made take


def sample_take(
    model,
    positive,
    negative,
    cfg: float,
    latent: dict,
    *,
    seed: int,
    steps: int = 0,
    chunk_frames: int = 0,
    policy: KVPolicy | None = None,
    prefix: dict | None = None,
    control: Tensor | None = None,
    sigmas: Tensor | None = None,
    drop_given: bool = False,
    callback: Callable | None = None,
    memory: KVMemory | None = None,
    stop_after: int = 0,
    on_memory: Callable[[KVMemory], None] | None = None,
    stream: StreamToFile | None = None,
) -> tuple[dict, KVStats]:
    """Sample a take, or the part that `memory` and `stop_after` leave of it, see ARVideoSampler.

    `steps` and `chunk_frames` 0, and `policy` and `sigmas` None, are answered by the model's
    profile; `drop_given`: the returned latents are the new frames alone.

    With `stream` the take goes into files while it is made, and on from them where that is asked
    for.

    `callback` is the host's; None: its own, with progress and previews.
    """
    model = patch(model)
    profile = profile_of(model.model_options) or ARProfile()
    if sigmas is None:
        sigmas = profile.take_sigmas(model.get_model_object("model_sampling"), steps)
    if not math.isfinite(cfg):
        raise ValueError(
            f"cfg is {cfg}, which is no number to guide by. Set it to 1 (AR models are distilled "
            "for 1), or somewhat above."
        )
    if negative is None and cfg != 1:
        raise ValueError(
            f"cfg is {cfg}, which needs a negative prompt. Connect one, or set cfg to 1 (AR "
            "models are distilled for 1)."
        )
    if len(sigmas) < 2:
        raise ValueError(
            f"Sigmas hold {len(sigmas)} noise levels, which is no step at all. Connect at least "
            "two, or leave the input open."
        )
    samples = comfy.sample.fix_empty_latent_channels(
        model, latent["samples"], *(latent.get(key) for key in EMPTY_LATENT_RATIOS)
    )
    files = stream and stream.open(model)
    if files and files.memory:
        memory = memory_of_stream(files, memory, samples.shape[2])
    stats: list[KVStats] = []
    sampler = ARVideoSampler(
        policy,
        chunk_frames,
        None if prefix is None else prefix["samples"],
        control,
        latent.get("batch_index"),
        drop_given,
        stats.append,
        memory,
        stop_after,
        on_memory,
        files,
    )
    guider = comfy.samplers.CFGGuider(model)
    guider.inner_set_conds(
        {"positive": positive} if negative is None else {"positive": positive, "negative": negative}
    )
    guider.set_cfg(cfg)
    guider.conds = guider.original_conds  # what its `sample` begins with
    look_ahead(
        guider, sampler, tuple(samples.shape), sigmas, seed
    )  # before there is noise, which for a long take is slow to make and large
    taken = guider.sample(
        comfy.sample.prepare_noise(samples, seed, latent.get("batch_index")),
        samples,
        sampler,
        sigmas,
        denoise_mask=latent.get("noise_mask"),
        callback=callback or latent_preview.prepare_callback(model, len(sigmas) - 1),
        disable_pbar=not comfy.utils.PROGRESS_BAR_ENABLED,
        seed=seed,
    )
    given = memory.prefix if memory else prefix and prefix["samples"]
    if (
        given is not None and not drop_given
    ):  # given frames come out as they came in: the host's scaling and back would round them
        taken[:, :, : given.shape[2]] = given.to(taken)
    kept = {key: value for key, value in latent.items() if key not in EMPTY_LATENT_RATIOS}
    return {**kept, "samples": taken.to(comfy.model_management.intermediate_device())}, stats[0]


def memory_of_stream(files: GrowingFiles, memory: KVMemory | None, frames: int) -> KVMemory:
    """What a take of so many latent frames goes on from in its files. ValueError where there is
    another `memory`, or nothing left to make.
    """
    if memory:
        raise ValueError(
            "The stream goes on from its own files, and a kv_memory is connected as well. "
            "Disconnect it, or turn resume off."
        )
    if files.memory.frames >= frames:
        raise ValueError(
            f"{files.video} is finished: all {files.memory.frames} latent frames of the take are "
            "in it. Turn resume off to make "
            "another take, or use a longer latent to extend this one."
        )
    return files.memory
