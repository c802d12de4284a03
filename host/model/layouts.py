"""Read a checkpoint in whatever layout its authors wrote it, and give its tensors Wan's own names.
Weights only; nothing in a file is ever run.
"""

import json
import os
import re
from typing import NamedTuple

import comfy.utils
import torch
from safetensors import safe_open
from torch import Tensor

from .quantised import merged_header

# Keys under which training scripts keep a generator's weights or its LoRA. The averaged copy is the
# first; WITHOUT_EMA prefers the other one.
HOLDERS = ("generator_ema", "generator", "model", "state_dict", "generator_lora")
WITHOUT_EMA = ("generator", "generator_ema", *HOLDERS[2:])
# What training scripts wrap modules in.
WRAPPERS = re.compile(
    r"_fsdp_wrapped_module\.|_checkpoint_wrapped_module\.|_orig_mod\."
    r"|base_layer\.|(?<=lora_[AB]\.)default\."
)
PREFIXES = re.compile(
    r"^((generator_ema|generator|base_model|model|module|diffusion_model|transformer)\.)+"
)
SHARD = re.compile(r"(.+)-(\d+)-of-(\d+)(\.\w+)$")
# In an all-in-one checkpoint, the diffusion model's prefix and those of what else lies in it.
DIFFUSION_MODEL = "model.diffusion_model."
OTHER_MODELS = (
    "first_stage_model.",
    "vae.",
    "cond_stage_model.",
    "text_encoders.",
    "conditioner.",
    "clip_vision.",
)

DIFFUSERS = {  # Diffusers' names, which FastVideo writes too, in the order to look for them
    "condition_embedder.time_embedder.linear_1.": "time_embedding.0.",
    "condition_embedder.time_embedder.linear_2.": "time_embedding.2.",
    "condition_embedder.text_embedder.linear_1.": "text_embedding.0.",
    "condition_embedder.text_embedder.linear_2.": "text_embedding.2.",
    "condition_embedder.time_proj.": "time_projection.1.",
    "condition_embedder.image_embedder.norm1.": "img_emb.proj.0.",
    "condition_embedder.image_embedder.ff.net.0.proj.": "img_emb.proj.1.",
    "condition_embedder.image_embedder.ff.net.2.": "img_emb.proj.3.",
    "condition_embedder.image_embedder.norm2.": "img_emb.proj.4.",
    "condition_embedder.image_embedder.pos_embed": "img_emb.emb_pos",
    "attn1.": "self_attn.",
    "attn2.": "cross_attn.",
    ".to_q.": ".q.",
    ".to_k.": ".k.",
    ".to_v.": ".v.",
    ".to_out.0.": ".o.",
    ".add_k_proj.": ".k_img.",
    ".add_v_proj.": ".v_img.",
    ".norm_added_k.": ".norm_k_img.",
    ".ffn.net.0.proj.": ".ffn.0.",
    ".ffn.net.2.": ".ffn.2.",
    ".norm2.": ".norm3.",  # the norm before cross-attention
    "proj_out.": "head.head.",
    ".scale_shift_table": ".modulation",
    "scale_shift_table": "head.modulation",
}


class Contents(NamedTuple):
    """What a checkpoint holds, under Wan's own names."""

    weights: dict[str, Tensor]
    lora: dict[str, Tensor]  # of a LoRA packed with them
    metadata: dict[str, str]  # the safetensors header's
    layout: str  # in words


def wan_name(name: str) -> str:
    name = PREFIXES.sub("", WRAPPERS.sub("", name))
    for theirs, ours in DIFFUSERS.items():
        name = name.replace(theirs, ours)
    return name


def read_checkpoint(path: str, ema: bool = True) -> Contents:
    """Read a file, or all shards where it is one of several, or their index. `ema`: of two copies
    of the weights, the averaged one.

    ValueError for a damaged file, a missing shard, a file that would have to run code, one without
    weights, and one with other models beside the diffusion model.
    """
    # 1. All that the files hold.
    name = os.path.basename(path)
    files = shards_of(path)
    content, headers = {}, []
    for file in files:
        part, header = _read(file)
        content.update(part)
        headers.append(header or {})

    # 2. The weights, however deep they lie.
    order = HOLDERS if ema else WITHOUT_EMA
    holders = []
    while holder := _holder_in(content, order):
        holders.append(str(holder))
        content = content[holder]
    tensors = {key: value for key, value in content.items() if torch.is_tensor(value)}
    if not tensors:
        raise ValueError(
            f"'{name}' holds no weights where Keepsake looks for them (at its top, or under "
            f"{', '.join(HOLDERS)}), but "
            f"{', '.join(f'{key!r}' for key in list(content)[:5]) or 'nothing at all'}. Choose "
            "the file that holds the model."
        )
    _require_named_values(tensors, name)

    # 3. Their plain names.
    plain = {wan_name(key): value for key, value in tensors.items()}
    if len(plain) < len(tensors):
        raise ValueError(
            f"'{name}' holds more than one set of weights side by side ({len(tensors)} tensors, "
            f"{len(plain)} names). "
            "Choose a file with one model in it."
        )

    # 4. The layout, in words.
    words = []
    if len(files) > 1:
        words.append(f"{len(files)} shards")
    if holders:
        words.append(f"weights under '{'.'.join(holders)}'")
    if any("attn1." in key for key in tensors):
        words.append("Diffusers names")
    return Contents(
        weights={key: value for key, value in plain.items() if not _is_of_lora(key)},
        lora={key: value for key, value in plain.items() if _is_of_lora(key)},
        metadata=_metadata_of(headers, name),
        layout=", ".join(words) or "Wan's names",
    )


def _is_of_lora(key: str) -> bool:
    return ".lora_" in key or key.endswith(".alpha")


def _holder_in(content: dict, order: tuple[str, ...]) -> str | None:
    """The first key of `order` under which `content` has a dictionary, or its only key."""
    for holder in [*order, *(content if len(content) == 1 else ())]:
        if isinstance(content.get(holder), dict):
            return holder
    return None


def _require_named_values(tensors: dict, name: str):
    """ValueError for tensors without names or values, and for an all-in-one checkpoint."""
    nameless = [key for key in tensors if not isinstance(key, str)]
    if nameless:
        raise ValueError(
            f"'{name}' holds {len(nameless)} tensor(s) under keys that are no names, "
            f"{nameless[0]!r} first, as an optimiser's state does. Choose the file that holds the "
            "model."
        )
    empty = [key for key, value in tensors.items() if value.is_meta]
    if empty:
        raise ValueError(
            f"'{name}' holds the shapes of {len(empty)} tensor(s) and not their values, "
            f"'{empty[0]}' first: it was saved before its weights were loaded. Choose the file "
            "that holds the weights."
        )
    others = [key for key in tensors if key.startswith(OTHER_MODELS)]
    if others and any(key.startswith(DIFFUSION_MODEL) for key in tensors):
        raise ValueError(
            f"'{name}' is an all-in-one checkpoint: a diffusion model with other models beside it "
            f"('{others[0]}' first). Put it into models/checkpoints, load it with ComfyUI's Load "
            "Checkpoint, and put AR Profile behind that."
        )


def _metadata_of(headers: list[dict[str, str]], name: str) -> dict[str, str]:
    try:
        return merged_header(headers, wan_name)
    except (ValueError, AttributeError, TypeError, RecursionError) as error:
        raise ValueError(
            f"What the header of '{name}' says of its quantised layers cannot be read ({error}). "
            "It is damaged: download it again."
        ) from error


def shards_of(path: str) -> list[str]:
    """All files of the checkpoint that `path` is a shard or the index of; itself alone when it is
    whole.
    """
    folder, name = os.path.split(path)
    if name.endswith(".index.json"):
        try:
            with open(path, encoding="utf-8") as file:
                names = sorted(
                    {os.path.basename(shard) for shard in json.load(file)["weight_map"].values()}
                )
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(
                f"'{name}' is no index of a sharded checkpoint, or is damaged. Choose one of its "
                "shards instead."
            ) from error
    elif match := SHARD.match(name):
        stem, number, count, ending = match.groups()
        names = [
            f"{stem}-{shard:0{len(number)}}-of-{count}{ending}"
            for shard in range(1, int(count) + 1)
        ]
    else:
        return [path]
    missing = [shard for shard in names if not os.path.isfile(os.path.join(folder, shard))]
    if missing:
        raise ValueError(
            f"'{name}' belongs to a checkpoint of {len(names)} files, and {len(missing)} of them, "
            f"'{missing[0]}' first, are not in its folder. Put all of them into one folder."
        )
    return [os.path.join(folder, shard) for shard in names]


def _read(path: str) -> tuple[dict, dict | None]:
    """What a file holds and its header; ValueError where it is no file of plain weights. What kind
    of file it is says its beginning and not its name: some safetensors files are called `.pt`.
    """
    with open(path, "rb") as file:
        begin = file.read(20)
    # Its header's length in eight bytes, whatever the first ones are, and then the header in JSON.
    is_safetensors = begin[5:9] == b"\0\0\0{"
    is_torch = not is_safetensors and begin.startswith((b"PK", b"\x80"))
    if begin and not is_torch and not is_safetensors:
        raise ValueError(
            f"'{os.path.basename(path)}' is neither a PyTorch nor a safetensors file: it begins "
            f"with {begin.decode(errors='replace')!r}. Choose the file that holds the model; if a "
            "page or a pointer was saved in its place, download the file itself."
        )
    try:
        if is_torch:
            content, metadata = _read_torch(path, is_zip=begin.startswith(b"PK")), None
        elif is_safetensors and not path.lower().endswith((".safetensors", ".sft")):
            content, metadata = _read_safetensors(path)
        else:
            content, metadata = comfy.utils.load_torch_file(
                path, safe_load=True, return_metadata=True
            )
        content.keys()
    except Exception as error:  # torch, safetensors and the host raise kinds of their own
        raise ValueError(_why_unreadable(path, error)) from error
    return content, metadata


def _read_torch(path: str, is_zip: bool) -> dict:
    """As the host reads it, but with the key under which all of it may lie."""
    mmap = is_zip and getattr(comfy.utils, "MMAP_TORCH_FILES", False)
    return torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)


def _read_safetensors(path: str) -> tuple[dict[str, Tensor], dict[str, str] | None]:
    with safe_open(path, "pt", device="cpu") as file:
        return {key: file.get_tensor(key) for key in file.keys()}, file.metadata()


def _why_unreadable(path: str, error: Exception) -> str:
    """What is wrong with a file that cannot be read, and what to do, in a sentence."""
    name = os.path.basename(path)
    why = (str(error) or "it is empty").splitlines()[0]
    if "weights only load failed" in why.lower() or "weights_only" in str(error):
        return (
            f"'{name}' is no file of plain weights: it is damaged (download it again), or could "
            "only be read by running Python code, which Keepsake never does. Use a file that "
            "holds weights alone, best a safetensors file."
        )
    if isinstance(error, (AttributeError, TypeError)) or "__contains__" in why:
        return (
            f"'{name}' holds something else than named weights. Choose the file that holds the "
            "model."
        )
    return f"'{name}' cannot be read ({why}). If it is damaged or not complete, download it again."
