"""Around the host's outer sampling call: plan the take, connect its control, and count its cache
in before weights are loaded.
"""

import logging

import comfy.patcher_extension
from comfy.patcher_extension import WrappersMP

from ..budget.budget import budget_of
from ..budget.refusal import refuse_what_cannot_fit
from ..budget.report import budget_line
from ..forward.conditioning import all_of
from ..forward.controls import connect_control
from ..keys import OUTER_CALL
from ..model.tensors import require_finite_input
from .plan import HostPlan
from .planning import plan_take
from .sampling import ARVideoSampler
from .sampling_call import SamplingCall


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
    """A wrapper of the host's outer sampling call, which runs before any weight is moved. Does
    nothing for other samplers.
    """
    guider = executor.class_obj
    if isinstance(sampler, ARVideoSampler):
        if denoise_mask is not None:
            raise ValueError(
                "A noise mask cannot be used with AR sampling, which makes a take from its start. "
                "Remove the mask."
            )
        if latent_image is not None:
            require_finite_input("latent", latent_image)
        # 1. The plan: the node's, where nothing has changed since; else a new one.
        call = SamplingCall.of(guider, noise.shape, sigmas, seed)
        if sampler.plan is None or sampler.plan.call != call:
            sampler = plan_ahead(guider, call, sampler)
        # 2. The control, on every conditioning of this call.
        control = sampler.request.control
        if control is not None:
            connect_control(all_of(guider.conds), guider.model_patcher, control)
        # 3. The memory that the take needs, for the host to make room.
        comfy.patcher_extension.add_wrapper_with_key(
            WrappersMP.PREPARE_SAMPLING,
            OUTER_CALL,
            announce_cache(sampler.plan),
            guider.model_options,
            is_model_options=True,
        )
    return executor(
        noise, latent_image, sampler, sigmas, denoise_mask, callback, disable_pbar, seed, **kwargs
    )


def plan_ahead(guider, call: SamplingCall, sampler: ARVideoSampler) -> ARVideoSampler:
    """A copy of the sampler with the plan of its take. ValueError, in a sentence, when anything is
    wrong with the take or it cannot fit.
    """
    latent_size = call.shape[3:]
    plan = plan_take(guider, call, sampler.request)
    budget = budget_of(
        guider.model_patcher,
        plan.take_plan,
        plan.estimate,
        latent_size,
        plan.temporal_compression,
        plan.lanes,
    )
    refuse_what_cannot_fit(guider.model_patcher, budget, latent_size)
    logging.info("Keepsake: %s", budget_line(budget))
    return sampler.planned(plan)


def announce_cache(plan: HostPlan):
    """Tell the host what a chunk and the cache need, so that it offloads weights in time: its own
    estimate counts activations for the whole clip and no cache.
    """

    def prepare_sampling(executor, model, noise_shape, *args, **kwargs):
        return executor(model, plan.shape_to_load(model, noise_shape), *args, **kwargs)

    return prepare_sampling
