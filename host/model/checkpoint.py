"""From a file to a MODEL with a profile, through the host's own loader."""

import logging
import os
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

import comfy.sd
import torch

from ..keys import PROFILE
from .file_names import rows_named, why_no_ar_model
from .kinds import BY_NAME, Kind, kind_of, offered_to_host
from .layouts import Contents, read_checkpoint
from .lora import Lora, read_lora, with_lora
from .profiles import ARProfile, with_profile
from .published import CHECKPOINTS, Checkpoint
from .quantised import ATTENTION, host_names, is_scale, not_applied, require_applied_scales

WEIGHT_DTYPES = {
    "default": {},
    "fp8_e4m3fn": {"dtype": torch.float8_e4m3fn},
    "fp8_e4m3fn_fast": {"dtype": torch.float8_e4m3fn, "fp8_optimizations": True},
    "fp8_e5m2": {"dtype": torch.float8_e5m2},
}


CELLS_OF_A_TOKEN = 4  # latent cells: 1x2x2
HEAD_CHANNELS = 128  # of every head, in ComfyUI's reading of a file without a header
# Tensors that every Wan model has and the host reads its sizes from.
CORE = (
    "head.modulation",
    "head.head.weight",
    "patch_embedding.weight",
    "blocks.0.self_attn.q.weight",
    "blocks.0.ffn.0.weight",
)


BLOCK = re.compile(r"blocks\.\d+\.(self|cross)_attn\.")


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
    lora_alpha: float = 0.0,
):
    """Load a diffusion model file as a MODEL; `profile` None takes the one in its header, or that
    of the published checkpoint that its name stands for.

    `name` is the file's, with the folders that may say what it is; `lora_path` a LoRA that belongs
    on it and `lora_alpha` that LoRA's alpha, 0 for what its files say. `tell` gets the line that is
    logged: what the file is, how it was recognised, which profile it got, what of it ComfyUI does
    not use. ValueError for all that is no AR model of the Wan family, is damaged, or does
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
    kind = kind_of(contents.weights)
    rows = _rows_of_kind(rows, kind, name, profile)
    if version := kind and kind.profile(contents.weights):
        rows = _rows_of_version(version, name, profile)
    if profile is None:
        recognised = recognise(contents, rows, kind, width, channels, name)
    else:
        recognised = _as_chosen(profile, rows, channels, name)

    # 2. The MODEL, and how the host makes it again for another device.
    model, unused = build(contents, name, weight_dtype)
    model.cached_patcher_init = (build_again, (path, ema, name, weight_dtype))

    # 3. The LoRAs that are part of the checkpoint.
    lora_words = []
    for lora, alpha, alpha_is_rank in _loras_of(contents, name, recognised, lora_path, lora_alpha):
        model, layers = with_lora(model, lora, alpha, alpha_is_rank)
        lora_words.append(f", with the LoRA {lora.source} on {layers}")

    # 4. All of it in words.
    blocks = len(model.model.diffusion_model.blocks)
    line = (
        f"'{name}' is a {kind.name if kind else 'Wan'} model {width} wide with {blocks} blocks and "
        f"{channels} latent channels "
        f"({contents.layout}){''.join(lora_words)}; {_profile_words(recognised, bool(lora_words))}"
    )
    line = " ".join([line, *([kind.needs] if kind else []), *unused])
    logging.info("Keepsake: %s", line)
    tell(line)
    return with_profile(model, recognised.profile)


def _rows_of_kind(
    rows: list[Checkpoint], kind: Kind | None, name: str, profile: ARProfile | None
) -> list[Checkpoint]:
    """Those rows that are of a file's kind. ValueError where the chosen profile, or the file's
    name, is that of another kind.
    """
    of_kind = [row for row in rows if row.kind == (kind.name if kind else "")]
    if not rows or of_kind:
        return of_kind
    row, file = rows[0], kind.name if kind else "plain Wan"
    if profile:
        raise ValueError(
            f"The profile '{profile.name}' is for {row.kind or 'plain Wan'} models, and '{name}' "
            f"is a {file} model. Choose the profile that belongs to the file, or 'from file'."
        )
    if row.kind:
        raise ValueError(
            f"'{name}' is named like '{row.profile.name}', and has not the tensors of a "
            f"{row.kind} model ('{BY_NAME[row.kind].key}'). It is another model, or was saved by "
            "a program that dropped them: download it again, or choose a profile."
        )
    return []


def _rows_of_version(version: str, name: str, profile: ARProfile | None) -> list[Checkpoint]:
    """The row of the profile that a file's tensors show; none where its name says that it is no AR
    model. ValueError where another one is chosen.
    """
    if profile and profile.name != version:
        raise ValueError(
            f"The profile '{profile.name}' is not that of '{name}', whose tensors are those of "
            f"'{version}'. Choose that one, or 'from file'."
        )
    if not profile and why_no_ar_model(name):
        return []
    return [row for row in CHECKPOINTS if row.profile.name == version]


def _loras_of(
    contents: Contents, name: str, recognised: Recognised, path: str | None, alpha: float
) -> Iterator[tuple[Lora, float, bool]]:
    """The LoRA packed with a checkpoint and the one at `path`: each with the alpha that the user
    gave it, or 0, and whether it is one of the table's, whose alpha is their rank.
    """
    if contents.lora:
        packed = Lora(tensors=contents.lora, source="packed with it")
        yield packed, 0.0 if path else alpha, bool(rows_named(name))
    if path:
        folder, file = os.path.split(path)
        by_name = rows_named(os.path.join(os.path.basename(folder), file))
        in_table = recognised.row is not None and file == recognised.row.lora
        yield read_lora(path), alpha, bool(in_table or by_name)


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
    """Width and latent channels of a Wan model; ValueError when it is none, or no whole one."""
    weights = contents.weights
    missing = [key for key in CORE if key not in weights]
    if contents.lora and CORE[0] in missing:
        raise ValueError(
            f"'{name}' is a LoRA. Choose the model that it belongs on, and this file in lora_name."
        )
    words = " and no ".join(f"'{key}'" for key in missing[:2])
    is_wan = "patch_embedding.weight" in weights or any(BLOCK.match(key) for key in weights)
    if missing and not is_wan:
        first = next((key for key in weights if key not in CORE), "nothing else")
        raise ValueError(
            f"Keepsake does not recognise the model in '{name}': it has no {words}, as every Wan "
            f"model has, and begins with '{first}'. Load a Wan video model "
            "(Self-Forcing, Causal-Forcing, LongLive and their like)."
        )
    if missing:
        raise ValueError(
            f"'{name}' is no whole plain Wan model: it has no {words}. It is damaged, or one file "
            "of several: download it again, all its files into one folder under their own names."
        )
    modulation, head = weights["head.modulation"], weights["head.head.weight"]
    width = modulation.shape[-1] if modulation.ndim else 0
    channels = head.shape[0] // CELLS_OF_A_TOKEN if head.ndim else 0
    if not width or width % HEAD_CHANNELS and "config" not in contents.metadata:
        raise ValueError(
            f"'{name}' is {width} wide, and ComfyUI divides a Wan model into heads of "
            f"{HEAD_CHANNELS} channels where the file's header does not say otherwise. Load a Wan "
            "model of 1536, 3072 or 5120 channels, or the file as its authors published it."
        )
    return width, channels


def recognise(
    contents: Contents,
    rows: list[Checkpoint],
    kind: Kind | None,
    width: int,
    channels: int,
    name: str,
) -> Recognised:
    """What a file is by its header, else by its name and size; ValueError where neither says it.
    `rows` are of its kind.
    """
    if PROFILE in contents.metadata:
        try:
            profile = ARProfile.from_json(contents.metadata[PROFILE])
            return Recognised(profile, None, "from the file's header")
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(
                f"The AR profile in the header of '{name}' cannot be read ({error}). Choose one "
                "in AR Video Model Loader."
            ) from error
    told = kind is not None and kind.profile(contents.weights) is not None
    for row in rows:
        if (row.width, row.channels) == (width, channels):
            by = "its tensors" if told else "the file's name"
            return Recognised(row.profile, row, f"recognised by {by}")
    if rows:
        named = rows[0]
        seems = "has the tensors of" if told else "is named like"
        raise ValueError(
            f"'{name}' {seems} '{named.profile.name}', but that model is {named.width} wide with "
            f"{named.channels} latent channels and this one {width} with {channels}. Choose a "
            "profile in AR Video Model Loader if you know how it was trained."
        )
    if why := why_no_ar_model(name):
        raise ValueError(f"'{name}' is named like {why}.")
    if kind:
        versions = [f"'{row.profile.name}'" for row in CHECKPOINTS if row.kind == kind.name]
        raise ValueError(
            f"'{name}' is a {kind.name} model, and its tensors and name do not say which. Choose "
            f"the profile that belongs to it in AR Video Model Loader: {', '.join(versions)}."
        )
    raise ValueError(
        f"'{name}' does not say how it was trained. Choose a profile in AR Video Model Loader: "
        "frame-wise or chunk-wise cannot be told from the weights, and the wrong one gives a "
        "broken video."
    )


def build(contents: Contents, name: str, weight_dtype: str, **options) -> tuple[object, list[str]]:
    """The host's MODEL of a checkpoint, and in sentences what of the file it does not use;
    ValueError when tensors are missing, left over or of another shape, or scales are not applied.
    """
    require_applied_scales(contents.weights, contents.metadata, name)
    keys = set(contents.weights)  # before the host takes tensors out
    known_keys = host_names(contents.weights, contents.metadata)
    kind = kind_of(contents.weights)
    words = kind.name if kind else "plain Wan"
    try:
        with offered_to_host(kind):
            model = comfy.sd.load_diffusion_model_state_dict(
                contents.weights,
                model_options=WEIGHT_DTYPES[weight_dtype],
                metadata=contents.metadata,
                **options,
            )
    except (
        LookupError,
        ArithmeticError,
        TypeError,
        AttributeError,
        AssertionError,
        ValueError,
        RecursionError,  # a RuntimeError, too
    ) as error:
        raise ValueError(
            f"ComfyUI cannot make a model of '{name}' ({type(error).__name__}: {error}). It is "
            f"damaged, or no {words} model: download it again, or load another."
        ) from error
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
    backbone = model.model.diffusion_model
    preferences = {key for key in keys if key.endswith(ATTENTION)}
    _require_complete(keys - preferences, backbone, name, words)
    unused = _unused(known_keys - preferences, backbone, name)
    return model, [*unused, *_unknown_attention(preferences, backbone)]


def _unused(keys: set[str], backbone, name: str) -> list[str]:
    """A sentence on tensors beside a layer's weights that the host did not take. ValueError where
    they are scales.
    """
    left_over = sorted(keys - backbone.state_dict().keys())
    scales = [key for key in left_over if is_scale(key)]
    if scales:
        raise not_applied(scales, name)
    # The host leaves input scales of 1 away, and writes a layer's kind of quantisation anew.
    unused = [key for key in left_over if not key.endswith((".input_scale", ".comfy_quant"))]
    if not unused:
        return []
    return [f"ComfyUI does not use {len(unused)} of its tensors, '{unused[0]}' first."]


def _unknown_attention(preferences: set[str], backbone) -> list[str]:
    """A sentence on layers for which the file prefers an attention, where the host knows none."""
    modules = dict(backbone.named_modules())
    unknown = [
        key
        for key in preferences
        if not hasattr(modules.get(key.removesuffix(ATTENTION)), "comfy_attention")
    ]
    if not unknown:
        return []
    return [
        f"It prefers an attention of its own in {len(unknown)} layers, which this ComfyUI does not "
        "know; they use ComfyUI's."
    ]


def _require_complete(keys: set[str], backbone, name: str, kind: str):
    """ValueError where a checkpoint's tensors are not those of the model that was made of it, which
    is called a `kind` model.
    """
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
        f"'{name}' is no whole {kind} model: {' and '.join(faults)}. It is damaged or not "
        "complete, or a side model with inputs that Keepsake does not know: download it again, or "
        "load another."
    )


def build_again(path: str, ema: bool, name: str, weight_dtype: str, **options):
    model, _ = build(read_checkpoint(path, ema), name, weight_dtype, **options)
    return model
