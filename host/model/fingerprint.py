"""Which model, and which prompt, in a few characters: so that a memory is not continued by another
model unseen.
"""

import hashlib

import torch
from torch import Tensor

VALUES = 16  # of a tensor that are looked at


def fingerprint(model) -> str:
    """Of a MODEL's weights and their patches, from names, shapes and some values; reading it moves
    nothing.
    """
    told, backbone = hashlib.sha256(), model.get_model_object("diffusion_model")
    patches = {
        key.removeprefix("diffusion_model."): entries for key, entries in model.patches.items()
    }
    for name, weight in sorted(backbone.named_parameters()):
        told.update(f"{name} {tuple(weight.shape)}".encode())
        original = model.backup.get(
            f"diffusion_model.{name}"
        )  # where the host has patched this one, or another clone's patches, in place
        weight = weight if original is None else original.weight
        # What a quantiser packs is of a class of its own, and not unpacked for this; norms and
        # biases it keeps in full.
        if type(weight.data) is Tensor or "norm" in name or name.endswith("bias"):
            _add(told, weight)
    for name, entries in sorted(patches.items()):
        for strength, patch, *_ in entries:
            told.update(f"{name} {strength} {type(patch).__name__}".encode())
            for weight in getattr(patch, "weights", patch if isinstance(patch, tuple) else ()):
                for tensor in weight if isinstance(weight, tuple) else (weight,):
                    if isinstance(tensor, Tensor):
                        _add(told, tensor)
    return told.hexdigest()[:16]


def fingerprint_of_prompt(cond: dict) -> str:
    """Of one conditioning's text."""
    told = hashlib.sha256()
    if isinstance(cond.get("cross_attn"), Tensor):
        told.update(cond["cross_attn"].float().cpu().contiguous().numpy().tobytes())
    return told.hexdigest()[:16]


def fingerprints_of_frames(control: Tensor | None) -> list[str]:
    """Of each latent frame of a control `[B, K, T, 2h, 2w]`: a longer take's begins as the shorter
    one's did.
    """
    frames = () if control is None else control.float().cpu().transpose(0, 2).contiguous()
    return [hashlib.sha256(frame.numpy().tobytes()).hexdigest()[:8] for frame in frames]


def _add(told, tensor: Tensor):
    told.update(tensor.detach().flatten()[:VALUES].to("cpu", torch.float32).numpy().tobytes())
