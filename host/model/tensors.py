"""Tensors that nodes hand on: taken out of their wrappings, and checked for what no forward can be
made with.
"""

import torch
from torch import Tensor


def samples_of(latent: dict, name: str = "latent") -> Tensor:
    """The tensor of a LATENT; ValueError, in a sentence, where it holds none."""
    if not latent or latent.get("samples") is None:
        got = ", ".join(map(str, latent or {})) or "nothing"
        raise ValueError(
            f"The {name} has no 'samples' (it holds {got}). Connect the output of a latent node, "
            "such as EmptyARVideoLatent or VAE Encode."
        )
    return latent["samples"]


def video_samples_of(latent: dict) -> Tensor:
    """The samples of a video latent, [B, C, T, 2h, 2w]; ValueError for any other."""
    samples = samples_of(latent)
    if samples.ndim != 5:
        raise ValueError(
            f"The latent is that of an image, of shape {list(samples.shape)}, and this node needs "
            "a video latent [B, C, T, H, W]. Use EmptyARVideoLatent or WanImageToVideo's."
        )
    if 0 in samples.shape:
        raise ValueError(
            f"The latent is empty, of shape {list(samples.shape)}. Use one of at least one frame."
        )
    return samples


def require_finite_input(name: str, values: Tensor):
    """ValueError, in a sentence that names the input, for NaN or infinite numbers in it."""
    if not torch.isfinite(values).all():
        raise ValueError(
            f"The {name} holds numbers that are not finite (NaN or infinity), so no frame could be "
            f"made from it. Look at the node that makes the {name}."
        )
