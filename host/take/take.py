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
from ..files.growing_files import GrowingFiles, StreamToFile
from ..forward.conditioning import has_hooks
from ..forward.controls import Control
from ..model.profiles import ARProfile, profile_of
from ..model.tensors import samples_of
from .outer_call import plan_ahead
from .patch import patch
from .request import TakeRequest
from .sampling import ARVideoSampler
from .sampling_call import SamplingCall

# The host's keys of an empty latent; they mean nothing on a finished one.
EMPTY_LATENT_RATIOS = ("downscale_ratio_spacial", "downscale_ratio_temporal")


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
    control: Control | None = None,
    sigmas: Tensor | None = None,
    drop_given: bool = False,
    callback: Callable | None = None,
    memory: KVMemory | None = None,
    stop_after: int = 0,
    on_memory: Callable[[KVMemory], None] | None = None,
    stream: StreamToFile | None = None,
    on_files: Callable[[GrowingFiles], None] | None = None,
) -> tuple[dict, KVStats]:
    """Sample a take, or the part that `memory` and `stop_after` leave of it, see TakeRequest.

    `steps` and `chunk_frames` 0, and `policy` and `sigmas` None, are answered by the model's
    profile. With `stream` the take goes into files while it is made, and on from them where that
    is asked for; `on_files` gets them. `callback` is the host's; None: its own, with progress and
    previews.
    """
    # 1. The model, and the noise levels.
    model = patch(model)
    profile = profile_of(model.model_options) or ARProfile()
    if sigmas is None:
        sigmas = profile.take_sigmas(model.get_model_object("model_sampling"), steps)
    check_guidance(cfg, negative, sigmas)
    # 2. The latent, and the files that the take goes on in.
    batch_index = latent.get("batch_index")
    samples = comfy.sample.fix_empty_latent_channels(
        model, samples_of(latent), *(latent.get(key) for key in EMPTY_LATENT_RATIOS)
    )
    files = stream.open(model) if stream else None
    if files and on_files:
        on_files(files)
    if files and files.memory:
        memory = memory_of_stream(files, memory, samples.shape[2])
    # 3. What is asked for, and who makes it.
    request = TakeRequest(
        policy=policy,
        chunk_frames=chunk_frames,
        prefix=None if prefix is None else samples_of(prefix, "prefix"),
        control=control,
        noise_index=batch_index,
        memory=memory,
        stop_after=stop_after,
        drop_given=drop_given,
    )
    stats: list[KVStats] = []
    sampler = ARVideoSampler(request, stats.append, on_memory, files)
    guider = guider_of(model, positive, negative, cfg)
    # 4. The plan, before there is noise, which for a long take is slow to make and large. Hooks
    # may change the model's options, and the host applies them later: then its call plans.
    guider.conds = guider.original_conds  # what its `sample` begins with
    if not has_hooks(guider):
        call = SamplingCall.of(guider, samples.shape, sigmas, seed)
        sampler = plan_ahead(guider, call, sampler)
    # 5. The host's sampling call.
    frames = guider.sample(
        comfy.sample.prepare_noise(samples, seed, batch_index),
        samples,
        sampler,
        sigmas,
        denoise_mask=latent.get("noise_mask"),
        callback=callback or latent_preview.prepare_callback(model, len(sigmas) - 1),
        disable_pbar=not comfy.utils.PROGRESS_BAR_ENABLED,
        seed=seed,
    )
    # 6. Given frames come out as they came in: the host's scaling and back would round them.
    given = memory.prefix if memory else request.prefix
    if given is not None and not drop_given:
        frames[:, :, : given.shape[2]] = given.to(frames)
    others = {key: value for key, value in latent.items() if key not in EMPTY_LATENT_RATIOS}
    frames = frames.to(comfy.model_management.intermediate_device())
    return {**others, "samples": frames}, stats[0]


def check_guidance(cfg: float, negative, sigmas: Tensor):
    """ValueError, in a sentence, for a guidance or noise levels that nothing can be made with."""
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


def guider_of(model, positive, negative, cfg: float) -> comfy.samplers.CFGGuider:
    """The host's guider over the prompts; `negative` may be None at a cfg of 1."""
    guider = comfy.samplers.CFGGuider(model)
    conditionings = {"positive": positive}
    if negative is not None:
        conditionings["negative"] = negative
    guider.inner_set_conds(conditionings)
    guider.set_cfg(cfg)
    return guider


def memory_of_stream(files: GrowingFiles, memory: KVMemory | None, frames: int) -> KVMemory:
    """What a take of `frames` latent frames goes on from in its files. ValueError where there is
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
