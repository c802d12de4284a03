"""From a file to a MODEL with a profile, through the host's own loader."""

import logging
import os
from collections.abc import Callable
from typing import NamedTuple

import comfy.sd
import comfy.weight_adapter
import torch
from torch import Tensor

from ..keys import PROFILE
from .layouts import Contents, read_checkpoint
from .profiles import (
    CHECKPOINTS,
    ARProfile,
    Checkpoint,
    rows_named,
    why_no_ar_model,
    with_profile,
)

WEIGHT_DTYPES = {
    "default": {},
    "fp8_e4m3fn": {"dtype": torch.float8_e4m3fn},
    "fp8_e4m3fn_fast": {"dtype": torch.float8_e4m3fn, "fp8_optimizations": True},
    "fp8_e5m2": {"dtype": torch.float8_e5m2},
}


CELLS_OF_A_TOKEN = 4  # latent cells: 1x2x2


class Recognised(NamedTuple):
    """What a file was taken for."""

    profile: ARProfile
    row: Checkpoint | None  # of the table; None for a profile of the file's own
    how: str  # in words


def load_ar_model(
    path: str,
    profile: ARProfile | None,
    weight_dtype: str = "default",
    name: str | None = None,
    lora_path: str | None = None,
    tell: Callable[[str], None] = lambda line: None,
):
    """Load a diffusion model file as a MODEL; `profile` None takes the one in its header, or that
    of the published checkpoint that its name stands for.

    `name` is the file's, with the folders that may say what it is; `lora_path` a LoRA that belongs
    on it. `tell` gets the line that is logged: what the file is, how it was recognised, which
    profile it got. ValueError for all that is no AR model of the Wan family, is damaged, or does
    not say what it is.
    """
    name = name or os.path.basename(path)
    # 1. What the file is.
    if profile is None:
        rows = rows_named(name)
    else:
        rows = [row for row in CHECKPOINTS if row.profile == profile]
    ema = all(row.ema for row in rows)
    contents = read_checkpoint(path, ema)
    width, channels = sizes(contents, name)
    if profile is None:
        recognised = recognise(contents, rows, width, channels, name)
    else:
        recognised = _as_chosen(profile, rows, channels, name)

    # 2. The MODEL, and how the host makes it again for another device.
    model = build(contents, name, weight_dtype)
    model.cached_patcher_init = (build_again, (path, ema, name, weight_dtype))

    # 3. The LoRAs that are part of the checkpoint.
    loras = {"packed with it": contents.lora} if contents.lora else {}
    if lora_path:
        loras[f"'{os.path.basename(lora_path)}'"] = lora_tensors(lora_path)
    lora_words = []
    for source, lora in loras.items():
        model, layers = with_lora(model, lora, source)
        lora_words.append(f", with the LoRA {source} on {layers}")

    # 4. All of it in words.
    blocks = len(model.model.diffusion_model.blocks)
    line = (
        f"'{name}' is a Wan model {width} wide with {blocks} blocks and {channels} latent channels "
        f"({contents.layout}){''.join(lora_words)}; {_profile_words(recognised, bool(loras))}"
    )
    logging.info("Keepsake: %s", line)
    tell(line)
    return with_profile(model, recognised.profile)


def _as_chosen(profile: ARProfile, rows: list[Checkpoint], channels: int, name: str) -> Recognised:
    """What a user's choice of a profile makes of a file; ValueError where it cannot be that."""
    row = rows[0] if rows else None
    if row and row.channels != channels:
        raise ValueError(
            f"The profile '{profile.name}' is that of a model with {row.channels} latent "
            f"channels, and '{name}' has {channels}. Choose the profile that belongs to the file, "
            "or 'from file'."
        )
    return Recognised(profile, row, "as chosen")


def _profile_words(recognised: Recognised, has_lora: bool) -> str:
    profile, row, how = recognised
    words = [f"profile '{profile.name}', {how}: {profile.describe()}."]
    if row and row.lora and not has_lora:
        words.append(
            f"Its LoRA file {row.lora} belongs on it, unless it is merged in: choose it in "
            "lora_name."
        )
    if profile.note:
        words.append(profile.note)
    if row:
        words.append(f"The profile is that of the weights at {row.source} ({row.licence}).")
    return " ".join(words)


def sizes(contents: Contents, name: str) -> tuple[int, int]:
    """Width and latent channels of a Wan model; ValueError when it is none."""
    weights = contents.weights
    if "head.modulation" in weights and "head.head.weight" in weights:
        width = weights["head.modulation"].shape[-1]
        return width, weights["head.head.weight"].shape[0] // CELLS_OF_A_TOKEN
    if contents.lora:
        raise ValueError(
            f"'{name}' is a LoRA. Choose the model that it belongs on, and this file in lora_name."
        )
    missing = " and no ".join(
        f"'{key}'" for key in ("head.modulation", "head.head.weight") if key not in weights
    )
    raise ValueError(
        f"Keepsake does not recognise the model in '{name}': it has no {missing}, as every Wan "
        f"model has, and begins with '{next(iter(weights))}'. Load a Wan video model "
        "(Self-Forcing, Causal-Forcing, LongLive and their like)."
    )


def recognise(
    contents: Contents, rows: list[Checkpoint], width: int, channels: int, name: str
) -> Recognised:
    """What a file is by its header, else by its name and size; ValueError where neither says it."""
    if PROFILE in contents.metadata:
        try:
            profile = ARProfile.from_json(contents.metadata[PROFILE])
            return Recognised(profile, None, "from the file's header")
        except (ValueError, TypeError, AttributeError) as error:
            raise ValueError(
                f"The AR profile in the header of '{name}' cannot be read ({error}). Choose one "
                "in AR Video Model Loader."
            ) from error
    for row in rows:
        if (row.width, row.channels) == (width, channels):
            return Recognised(row.profile, row, "recognised by the file's name")
    if rows:
        named = rows[0]
        raise ValueError(
            f"'{name}' is named like '{named.profile.name}', but that model is {named.width} wide "
            f"with {named.channels} latent channels and this one {width} with {channels}. Choose "
            "a profile in AR Video Model Loader if you know how it was trained."
        )
    if why := why_no_ar_model(name):
        raise ValueError(f"'{name}' is named like {why}.")
    raise ValueError(
        f"'{name}' does not say how it was trained. Choose a profile in AR Video Model Loader: "
        "frame-wise or chunk-wise cannot be told from the weights, and the wrong one gives a "
        "broken video."
    )


def build(contents: Contents, name: str, weight_dtype: str, **options):
    """The host's MODEL of a checkpoint; ValueError when tensors are missing, left over or of
    another shape.
    """
    keys = set(contents.weights)  # before the host takes tensors out
    try:
        model = comfy.sd.load_diffusion_model_state_dict(
            contents.weights,
            model_options=WEIGHT_DTYPES[weight_dtype],
            metadata=contents.metadata,
            **options,
        )
    except RuntimeError as error:
        if "size mismatch" not in str(error):
            raise
        mismatch = str(error).splitlines()[1].strip().rstrip(".")
        raise ValueError(
            f"Tensors of '{name}' have other shapes than those of the model that ComfyUI makes of "
            f"it ({mismatch}). It is a kind of Wan model that ComfyUI does not know, as the demo "
            "world saved to a file is, or damaged: load another, or download it again."
        ) from error
    if model is None:
        raise ValueError(
            f"ComfyUI does not recognise the model in '{name}'. Keepsake loads Wan video models "
            "(Self-Forcing, Causal-Forcing, LongLive and their like)."
        )
    _require_complete(keys, model.model.diffusion_model, name)
    return model


def _require_complete(keys: set[str], backbone, name: str):
    """ValueError where a checkpoint's tensors are not those of the model that was made of it."""
    modules = {module for module, _ in backbone.named_modules()}
    missing = sorted({parameter for parameter, _ in backbone.named_parameters()} - keys)
    # By module, since a quantised layer brings scales that are no parameters of it.
    left_over = sorted(key for key in keys if key.rpartition(".")[0] not in modules)
    if not missing and not left_over:
        return
    faults = [
        f"{len(tensors)} tensor(s) {fault}, '{tensors[0]}' first"
        for tensors, fault in ((missing, "missing"), (left_over, "without a place"))
        if tensors
    ]
    raise ValueError(
        f"'{name}' is no whole plain Wan model: {' and '.join(faults)}. It is damaged or not "
        "complete, or a side model with inputs that Keepsake does not know: download it again, or "
        "load another."
    )


def build_again(path: str, ema: bool, name: str, weight_dtype: str, **options):
    return build(read_checkpoint(path, ema), name, weight_dtype, **options)


def lora_tensors(path: str) -> dict[str, Tensor]:
    contents = read_checkpoint(path)
    return {**contents.weights, **contents.lora}


def with_lora(model, lora: dict[str, Tensor], source: str) -> tuple[object, str]:
    """Put the host's own LoRA on a clone, at strength 1; return the clone and, in words, the number
    of layers that it is on. ValueError when it belongs to another model.

    PEFT files do not hold alpha: the host takes it as the rank, which it is in every LoRA of the
    table's checkpoints.
    """
    named = {
        key if key.startswith("lora_") else f"diffusion_model.{key}": value
        for key, value in lora.items()
    }
    patched, _ = comfy.sd.load_lora_for_models(model, None, named, 1.0, 0.0)
    before = {key: len(patches) for key, patches in model.patches.items()}
    new = {
        key: patches[-1][1]
        for key, patches in patched.patches.items()
        if len(patches) > before.get(key, 0)
    }
    if not new:
        raise ValueError(
            f"The LoRA {source} fits nothing in this model; it begins with '{next(iter(lora))}'. "
            "Choose the LoRA that was made for it, or none."
        )
    _require_shapes(new, model.model.state_dict(), source)
    layers = sum(key.endswith((".lora_A.weight", ".lora_down.weight")) for key in named)
    unused = f" ({layers - len(new)} more fit nothing)" if layers > len(new) else ""
    return patched, f"{len(new)} layer(s){unused}"


def _require_shapes(adapters: dict, weights: dict[str, Tensor], source: str):
    """ValueError where a LoRA is of another size than the weight that it is for. The host finds out
    when it samples, and goes on without it.
    """
    for key, adapter in adapters.items():
        if not isinstance(adapter, comfy.weight_adapter.LoRAAdapter):
            continue
        up, down = adapter.weights[:2]
        shape = (up.shape[0], *down.shape[1:])
        if shape != tuple(weights[key].shape):
            raise ValueError(
                f"The LoRA {source} was made for another size of model: for '{key}' it is "
                f"{list(shape)}, the model's weight {list(weights[key].shape)}. Choose the LoRA "
                "that was made for it, or none."
            )
