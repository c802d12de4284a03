"""Around the host's outer sampling call: check the take first, connect its control, and count its
cache in.
"""

import logging
from copy import copy

import comfy.patcher_extension
from comfy.patcher_extension import WrappersMP

from ..budget.memory import outlook
from ..budget.refusal import refuse_what_cannot_fit
from ..forward.conditioning import connect_control
from ..keys import OUTER_CALL
from .planning import Plan
from .sampling import ARVideoSampler


def prepare_take(
    executor,
    noise,
    latent_image,
    sampler,
    sigmas,
    denoise_mask=None,
    callback=None,
    disable_pbar=False,
    seed=None,
    **kwargs,
):
    """Does nothing for other samplers. Runs before any weight is moved, so that bad input costs no
    time.
    """
    guider = executor.class_obj
    if isinstance(sampler, ARVideoSampler):
        if denoise_mask is not None:
            raise ValueError(
                "A noise mask cannot be used with AR sampling, which makes a take from its start. "
                "Remove the mask."
            )
        plan, line = look_ahead(guider, sampler, tuple(noise.shape), sigmas, seed)
        logging.info("Keepsake: %s", line)
        sampler = copy(sampler)
        sampler.planned_bytes = plan.estimate.allocated
        if sampler.control is not None:
            connect_control(guider, guider.model_patcher, sampler.control)
        comfy.patcher_extension.add_wrapper_with_key(
            WrappersMP.PREPARE_SAMPLING,
            OUTER_CALL,
            announce_cache(plan),
            guider.model_options,
            is_model_options=True,
        )
    return executor(
        noise, latent_image, sampler, sigmas, denoise_mask, callback, disable_pbar, seed, **kwargs
    )


def look_ahead(
    guider, sampler: ARVideoSampler, shape: tuple[int, ...], sigmas, seed: int | None
) -> tuple[Plan, str]:
    """The plan of a take and its line in the log. ValueError with a sentence, when anything is
    wrong with it or it cannot fit.
    """
    plan = sampler.plan(guider, shape, sigmas, seed or 0)
    ahead = outlook(
        guider.model_patcher,
        plan.setup,
        shape[3:],
        plan.temporal_compression,
        plan.estimate,
        plan.lanes,
    )
    refuse_what_cannot_fit(guider.model_patcher, ahead, shape[3:])
    return plan, ahead.line()


def announce_cache(plan: Plan):
    """Tell the host what a chunk and the cache need, so that it offloads weights in time: its own
    estimate counts activations for the whole clip and no cache.
    """

    def prepare_sampling(executor, model, noise_shape, *args, **kwargs):
        return executor(model, plan.shape_to_load(model, noise_shape), *args, **kwargs)

    return prepare_sampling
