"""Read a checkpoint in whatever layout its authors wrote it, and give its tensors Wan's own names.
Weights only; nothing in a file is ever run.
"""

import json
import os
import re
from typing import NamedTuple

import comfy.utils
import torch
from torch import Tensor

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
SHARD = re.compile(r"(.+)-\d{5}-of-(\d{5})(\.\w+)$")

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

    ValueError for a damaged file, a missing shard, a file that would have to run code, and one
    without weights.
    """
    # 1. All that the files hold.
    name = os.path.basename(path)
    files = shards_of(path)
    content, metadata = {}, {}
    for file in files:
        part, header = _read(file)
        content.update(part)
        metadata.update(header or {})

    # 2. The weights, however deep they lie.
    order = HOLDERS if ema else WITHOUT_EMA
    holders = []
    while holder := _holder_in(content, order):
        holders.append(holder)
        content = content[holder]
    tensors = {key: value for key, value in content.items() if torch.is_tensor(value)}
    if not tensors:
        raise ValueError(
            f"'{name}' holds no weights where Keepsake looks for them (at its top, or under "
            f"{', '.join(HOLDERS)}), but "
            f"{', '.join(f'{key!r}' for key in list(content)[:5]) or 'nothing at all'}. Choose "
            "the file that holds the model."
        )

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
        weights={key: value for key, value in plain.items() if ".lora_" not in key},
        lora={key: value for key, value in plain.items() if ".lora_" in key},
        metadata=metadata,
        layout=", ".join(words) or "Wan's names",
    )


def _holder_in(content: dict, order: tuple[str, ...]) -> str | None:
    """The first key of `order` under which `content` has a dictionary."""
    for holder in order:
        if isinstance(content.get(holder), dict):
            return holder
    return None


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
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"'{name}' is no index of a sharded checkpoint, or is damaged. Choose one of its "
                "shards instead."
            ) from error
    elif match := SHARD.match(name):
        names = [
            f"{match[1]}-{number:05}-of-{match[2]}{match[3]}"
            for number in range(1, int(match[2]) + 1)
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
    """What a file holds and its header; ValueError where it is no file of plain weights."""
    try:
        content, metadata = comfy.utils.load_torch_file(path, safe_load=True, return_metadata=True)
        content.keys()
    except Exception as error:  # torch, safetensors and the host raise kinds of their own
        raise ValueError(_why_unreadable(path, error)) from error
    return content, metadata


def _why_unreadable(path: str, error: Exception) -> str:
    """What is wrong with a file that cannot be read, and what to do, in a sentence."""
    name = os.path.basename(path)
    with open(path, "rb") as file:
        begin = file.read(20)
    is_zip_or_pickle = begin.startswith((b"PK", b"\x80"))
    is_safetensors = begin[8:9] == b"{"  # its header is JSON
    if begin and not is_zip_or_pickle and not is_safetensors:
        return (
            f"'{name}' is neither a PyTorch nor a safetensors file: it begins with "
            f"{begin.decode(errors='replace')!r}. Choose the file that holds the model; if a page "
            "or a pointer was saved in its place, download the file itself."
        )
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
