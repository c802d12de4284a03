"""Around the host's outer sampling call: check the take first, connect its control, and count its cache in."""
import math

import comfy.patcher_extension
from comfy.patcher_extension import WrappersMP

from .conditioning import connect_control
from .sampling import ARVideoSampler, Plan

KEY = "keepsake_outer"


def prepare_take(executor, noise, latent_image, sampler, sigmas, denoise_mask=None, *args, **kwargs):
    """Does nothing for other samplers. Runs before any weight is moved, so that bad input costs no time."""
    guider = executor.class_obj
    if isinstance(sampler, ARVideoSampler):
        if denoise_mask is not None:
            raise ValueError("A noise mask cannot be used with AR sampling, which makes a take from its start. Remove the mask.")
        plan = sampler.plan(guider, tuple(noise.shape), sigmas)
        if sampler.control is not None:
            connect_control(guider, guider.model_patcher, sampler.control)
        comfy.patcher_extension.add_wrapper_with_key(WrappersMP.PREPARE_SAMPLING, KEY, announce_cache(plan), guider.model_options,
                                                     is_model_options=True)
    return executor(noise, latent_image, sampler, sigmas, denoise_mask, *args, **kwargs)


def announce_cache(plan: Plan):
    """Tell the host what a chunk and the cache need, so that it offloads weights in time.

    Its own estimate counts activations for the whole clip and no cache. It is linear in frames and knows no other unit, so the
    cache is stated as frames.
    """
    def prepare_sampling(executor, model, noise_shape, *args, **kwargs):
        shape = [1, noise_shape[1], 1, *noise_shape[3:]]
        cache = plan.cache_bytes(model.model.get_dtype_inference().itemsize)
        shape[2] = plan.geometry.chunk_frames + math.ceil(cache / model.model.memory_required(shape))
        return executor(model, shape, *args, **kwargs)
    return prepare_sampling
