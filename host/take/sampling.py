"""The AR video sampler as a host SAMPLER."""

import logging
from collections.abc import Callable
from contextlib import closing
from copy import copy
from dataclasses import replace

import comfy.samplers
from torch import Tensor

from ...rollout.memory_file import KVMemory
from ...rollout.stats import KVStats
from ..files.growing_files import GrowingFiles
from .checks import require_prepared
from .plan import HostPlan
from .players import Players
from .request import TakeRequest
from .take_run import TakeRun


def log_stats(stats: KVStats):
    logging.info("Keepsake: %s", stats.report().replace("\n", "; "))


class ARVideoSampler(comfy.samplers.Sampler):
    """Chunk by chunk sampling with a KV policy.

    ComfyUI caches a SAMPLER and uses it for many takes, so it holds parameters only. A take is
    made by a copy that carries its plan, see `planned` and `outer_call.prepare_take`.
    """

    plan: HostPlan | None = None  # of a copy that makes one take

    def __init__(
        self,
        request: TakeRequest | None = None,
        on_stats: Callable[[KVStats], None] = log_stats,
        on_memory: Callable[[KVMemory], None] | None = None,
        files: GrowingFiles | None = None,
    ):
        """The take leaves a memory for `on_memory`, and goes into `files` while it is made."""
        save_input = "stream" if files else "keep_memory" if on_memory else ""
        self.request = replace(request or TakeRequest(), save_input=save_input)
        self.on_stats = on_stats
        self.on_memory = on_memory
        self.files = files

    def planned(self, plan: HostPlan) -> "ARVideoSampler":
        """A copy that makes the take of this plan."""
        other = copy(self)
        other.plan = plan
        return other

    def sample(
        self,
        model_wrap,
        sigmas,
        extra_args,
        callback,
        noise,
        latent_image=None,
        denoise_mask=None,
        disable_pbar=False,
    ):
        """The host's sampler call; `model_wrap` is its guider, `noise` [B, C, T, 2h, 2w]. Returns
        latents of the frames made so far, or of the new ones alone.
        """
        # 1. The plan of this take, made before the weights were loaded.
        require_plan(self.plan, model_wrap, noise, sigmas, extra_args.get("seed"))
        # 2. The noise that the take is made of, in the model's own scale.
        flow = model_wrap.inner_model.model_sampling
        x = flow.noise_scaling(sigmas[0], noise, latent_image, self.max_denoise(model_wrap, sigmas))
        # 3. All chunks of all batch items.
        run = TakeRun(
            host_plan=self.plan,
            request=self.request,
            guider=model_wrap,
            sigmas=sigmas,
            x=x,
            callback=callback,
            on_memory=self.on_memory,
            files=self.files,
        )
        players = Players(model_wrap, self.plan, extra_args, sigmas, noise, latent_image)
        with closing(players):
            output = run.make(players)
        # 4. Stats, and the latents that were asked for.
        self.on_stats(run.stats())
        return flow.inverse_noise_scaling(sigmas[-1], output[:, :, run.frames_made()])


def require_plan(plan: HostPlan | None, guider, noise: Tensor, sigmas: Tensor, seed: int | None):
    """ValueError, in a sentence, where a sampling call has no plan, or that of another call."""
    if plan is None:
        require_prepared(guider.model_patcher)
        raise ValueError(
            "The AR video sampler was called by another sampler, so its take was not planned. "
            "Connect it to SamplerCustomAdvanced itself."
        )
    if not plan.call.agrees(noise.shape, sigmas, seed):
        raise ValueError(
            "Another node on this MODEL changes the latent's shape, the noise levels or the seed "
            "inside the sampling call, after the take was planned. Remove it."
        )
