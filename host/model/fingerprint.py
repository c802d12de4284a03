"""Which model and which prompt, in a few characters, so that a memory is not continued by another
model unnoticed.
"""

import hashlib
from collections.abc import Iterator

import torch
from torch import Tensor

VALUES = 16  # first values of a tensor that are hashed
PREFIX = "diffusion_model."  # of the weights' names in a MODEL's patches


def fingerprint(model) -> str:
    """Hash of a MODEL's weights and their patches, from names, shapes and some values. Nothing is
    moved for it.
    """
    digest = hashlib.sha256()
    backbone = model.get_model_object("diffusion_model")
    for name, weight in sorted(backbone.named_parameters()):
        digest.update(f"{name} {tuple(weight.shape)}".encode())
        # The host may have patched the weight in place, by this clone's patches or another's.
        backup = model.backup.get(PREFIX + name)
        weight = weight if backup is None else backup.weight
        # Packed weights of a quantiser are tensors of a class of its own, and are not unpacked for
        # this; it keeps norms and biases in full.
        if type(weight.data) is Tensor or "norm" in name or name.endswith("bias"):
            digest.update(_first_values(weight))
    patches = {name.removeprefix(PREFIX): entries for name, entries in model.patches.items()}
    for name, entries in sorted(patches.items()):
        for strength, patch, *_ in entries:
            digest.update(f"{name} {strength} {type(patch).__name__}".encode())
            for tensor in _tensors_of(patch):
                digest.update(_first_values(tensor))
    return digest.hexdigest()[:16]


def fingerprint_of_prompt(cond: dict) -> str:
    """Hash of one conditioning's text."""
    digest = hashlib.sha256()
    text = cond.get("cross_attn")
    if isinstance(text, Tensor):
        digest.update(text.float().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def fingerprints_of_frames(control: Tensor | None) -> list[str]:
    """Hash of each latent frame of a control `[B, K, T, 2h, 2w]`: those of a longer take begin with
    those of the shorter one.
    """
    if control is None:
        return []
    frames = control.float().cpu().transpose(0, 2).contiguous()
    return [hashlib.sha256(frame.numpy().tobytes()).hexdigest()[:8] for frame in frames]


def _tensors_of(patch) -> Iterator[Tensor]:
    """Tensors of a weight adapter, or of a plain tuple patch, one level of tuples deep."""
    for weight in getattr(patch, "weights", patch if isinstance(patch, tuple) else ()):
        for part in weight if isinstance(weight, tuple) else (weight,):
            if isinstance(part, Tensor):
                yield part


def _first_values(tensor: Tensor) -> bytes:
    values = tensor.detach().flatten()[:VALUES].to("cpu", torch.float32)
    return values.numpy().tobytes()
