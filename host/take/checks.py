"""What can be wrong with a sampling call: refusals in a sentence, before any weight moves."""

import math
from collections.abc import Sequence

import comfy.model_sampling
from comfy.patcher_extension import CallbacksMP
from torch import Tensor

from ..forward.attention import require_patched
from ..model.backbone import require_wan
from ..model.tensors import require_finite_input
from .sampling_call import SamplingCall

SPARSE_ATTENTION = "block_sparse_attention"  # the host's key of that node's callbacks


def require_prepared(model):
    """ValueError, in a sentence, for a MODEL that is no Wan model or not prepared by our nodes."""
    require_wan(model)
    require_patched(
        model, "This MODEL", "Put an AR Profile node between the loader and the sampler."
    )


def check_call(guider, call: SamplingCall):
    """Refuse a model, guider, latent or sigmas that no take can be made with."""
    model = guider.model_patcher
    shape = call.shape
    require_prepared(model)
    if getattr(guider, "uncond_model_patcher", None) is not None:
        raise ValueError(
            "This guider runs the negative prompt on a second model, and an AR take has caches "
            "for one. Use CFGGuider."
        )
    if len(shape) != 5 or 0 in shape:
        raise ValueError(
            "An AR video take needs a video latent [B, C, T, H, W], and this one has the shape "
            f"{list(shape)}. "
            "Use EmptyARVideoLatent or another video latent."
        )
    flow = model.get_model_object("model_sampling")
    if not isinstance(flow, comfy.model_sampling.CONST):
        raise ValueError(
            f"This MODEL is sampled by {type(flow).__name__}, and video models of the Wan family "
            "are made for rectified flow. "
            "Remove the ModelSampling node, or use ModelSamplingSD3."
        )
    check_sigmas(call.sigmas, float(flow.sigma_max))
    channels = model.get_model_object("latent_format").latent_channels
    if shape[1] != channels:
        raise ValueError(
            f"The latent has {shape[1]} channels, this model's have {channels}. Use an empty "
            "latent, or one made for this model."
        )


def check_options(options: dict, shape: tuple[int, ...]):
    """Refuse what other nodes left on the MODEL that changes which forwards there are.

    `shape` is that of the largest forward, [B, C, F, 2h, 2w].
    """
    transformer_options = options.get("transformer_options", {})
    if transformer_options.get("rope_options", {}).get("scale_t", 1.0) != 1.0:
        raise ValueError(
            "A ScaleROPE node stretches time inside a chunk, so chunks would overlap. Set its "
            "temporal scale to 1."
        )
    if "easycache" in transformer_options:
        raise ValueError(
            "An EasyCache or LazyCache node leaves out forwards, and a take remembers by its "
            "forwards. Remove it."
        )
    windows = options.get("context_handler")
    if windows is not None and windows.context_length < shape[windows.dim]:
        raise ValueError(
            f"A Context Windows node cuts into windows of {windows.context_length}, and "
            f"{shape[windows.dim]} belong together in a chunk "
            "here. Remove it: a take is made in chunks, and its KV policy says what they read."
        )


def sparse_attention_notes(model, chunks: int) -> tuple[str, ...]:
    """That the host's node Model Sparse Attention (from 0.35 on) does nothing where a chunk reads
    more tokens than its own: it acts where there are as many keys as queries.
    """
    if chunks < 2 or not model.get_callbacks(CallbacksMP.ON_CLEANUP, SPARSE_ATTENTION):
        return ()
    return (
        "The Model Sparse Attention node on this MODEL does nothing once there is a history to "
        "read: it acts only where a model reads the tokens that it works on and no others. To "
        "read a part of the history, use a KV policy (KV Policy: Directed Forcing).",
    )


def check_sigmas(steps: Sequence[float], most: float):
    """Refuse noise levels that are not finite, do not fall down to 0, or begin above `most`, the
    model's own highest.
    """
    got = (
        f"got {[round(step, 4) for step in steps]}. Use a scheduler node with denoise 1.0, or "
        "leave the sigmas input open."
    )
    if not all(map(math.isfinite, steps)):
        raise ValueError(f"Sigmas must be numbers that are finite; {got}")
    falls = all(before > after for before, after in zip(steps, steps[1:]))
    if len(steps) < 2 or steps[-1] != 0 or not falls:
        raise ValueError(
            f"Sigmas must fall from step to step down to 0, and be at least two; {got}"
        )
    if steps[0] > most * 1.001:
        raise ValueError(
            f"This model's sigmas begin at {most:g} at most, and higher ones are another kind of "
            f"model's; {got}"
        )


def given_latents(guider, shape: tuple[int, ...], prefix: Tensor | None) -> Tensor | None:
    """The given raw latents [B, C, P, 2h, 2w]: the prefix, or what the host's ARVideoI2V left on
    the model.
    """
    if prefix is None:
        transformer_options = guider.model_options.get("transformer_options", {})
        prefix = transformer_options.get("ar_config", {}).get("initial_latent")
    if prefix is None:
        return None
    batch, channels, frames, height, width = shape
    if prefix.ndim != 5:
        raise ValueError(
            f"The prefix has the shape {list(prefix.shape)} and must be video latents [B, C, T, "
            "H, W]. "
            "Encode the start image or video with the take's own VAE."
        )
    if (prefix.shape[1], *prefix.shape[3:]) != (channels, height, width):
        raise ValueError(
            f"The prefix latents have the shape {list(prefix.shape)}, the take {list(shape)}: "
            "channels, height and width "
            "must agree. Encode the start image or video at the size of the take."
        )
    if prefix.shape[0] not in (1, batch):
        raise ValueError(
            f"The prefix has a batch of {prefix.shape[0]}, the take of {batch}. Give one prefix, "
            "or one for each."
        )
    if prefix.shape[2] >= frames:
        raise ValueError(
            f"The prefix fills {prefix.shape[2]} of the take's {frames} latent frames, so nothing "
            "is left to make. "
            f"The latent's length counts given and new frames: use at least {prefix.shape[2] + 1}."
        )
    require_finite_input("prefix", prefix)
    return prefix.expand(batch, *prefix.shape[1:])
