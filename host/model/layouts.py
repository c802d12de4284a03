"""Whatever layout its authors wrote: a checkpoint's tensors under Wan's own names. Weights only;
nothing in a file is ever run.
"""

import json
import os
import re
from typing import NamedTuple

import comfy.utils
import torch
from torch import Tensor

# Where training scripts keep a generator's weights or its LoRA, the better copy first, and what
# they wrap its modules in.
HOLDERS = ("generator_ema", "generator", "model", "state_dict", "generator_lora")
WRAPPERS = re.compile(
    r"_fsdp_wrapped_module\.|_checkpoint_wrapped_module\.|_orig_mod\.|base_layer\.|(?<=lora_[AB]\.)default\."
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


def plain_name(name: str) -> str:
    name = PREFIXES.sub("", WRAPPERS.sub("", name))
    for theirs, ours in DIFFUSERS.items():
        name = name.replace(theirs, ours)
    return name


def read_checkpoint(path: str, ema: bool = True) -> Contents:
    """Read a file, or all the shards of which it is one or the index. `ema`: of two copies, the
    averaged one.

    ValueError, in a sentence, for a damaged file, a missing shard, one that would have to run code,
    and one without weights.
    """
    name, files, content, metadata = os.path.basename(path), shards_of(path), {}, {}
    for file in files:
        tensors, told = _read(file)
        content.update(tensors)
        metadata.update(told or {})
    order, held = (HOLDERS if ema else (HOLDERS[1], HOLDERS[0], *HOLDERS[2:])), []
    while holder := next(
        (holder for holder in order if isinstance(content.get(holder), dict)), None
    ):
        held.append(holder)
        content = content[holder]
    tensors = {key: value for key, value in content.items() if torch.is_tensor(value)}
    if not tensors:
        raise ValueError(
            f"'{name}' holds no weights where Keepsake looks for them (at its top, or under "
            f"{', '.join(HOLDERS)}), but "
            f"{', '.join(f'{key!r}' for key in list(content)[:5]) or 'nothing at all'}. Choose "
            "the file that holds the model."
        )
    plain = {plain_name(key): value for key, value in tensors.items()}
    if len(plain) < len(tensors):
        raise ValueError(
            f"'{name}' holds more than one set of weights side by side ({len(tensors)} tensors, "
            f"{len(plain)} names). "
            "Choose a file with one model in it."
        )
    words = [f"{len(files)} shards"] * (len(files) > 1) + [
        f"weights under '{'.'.join(held)}'"
    ] * bool(held)
    words += ["Diffusers names"] * any("attn1." in key for key in tensors)
    return Contents(
        {key: value for key, value in plain.items() if ".lora_" not in key},
        {key: value for key, value in plain.items() if ".lora_" in key},
        metadata,
        ", ".join(words) or "Wan's names",
    )


def shards_of(path: str) -> list[str]:
    """The files of which `path` is one, or the index; itself alone when it is whole."""
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
            f"'{missing[0]}' first, are not in "
            "its folder. Put all of them into one folder."
        )
    return [os.path.join(folder, shard) for shard in names]


def _read(path: str) -> tuple[dict, dict | None]:
    name = os.path.basename(path)
    try:
        content, metadata = comfy.utils.load_torch_file(path, safe_load=True, return_metadata=True)
        content.keys()
    except Exception as error:  # torch, safetensors and the host raise kinds of their own
        with open(path, "rb") as file:
            begin = file.read(20)
        if (
            begin and not begin.startswith((b"PK", b"\x80")) and begin[8:9] != b"{"
        ):  # a zip, a pickle; safetensors' header
            raise ValueError(
                f"'{name}' is neither a PyTorch nor a safetensors file: it begins with "
                f"{begin.decode(errors='replace')!r}. Choose the "
                "file that holds the model; if a page or a pointer was saved in its place, "
                "download the file itself."
            ) from error
        why = (str(error) or "it is empty").splitlines()[0]
        if "weights only load failed" in why.lower() or "weights_only" in str(error):
            raise ValueError(
                f"'{name}' is no file of plain weights: it is damaged (download it again), or "
                "could only be read by running Python "
                "code, which Keepsake never does. Use a file that holds weights alone, best a "
                "safetensors file."
            ) from error
        if isinstance(error, (AttributeError, TypeError)) or "__contains__" in why:
            raise ValueError(
                f"'{name}' holds something else than named weights. Choose the file that holds "
                "the model."
            ) from error
        raise ValueError(
            f"'{name}' cannot be read ({why}). If it is damaged or not complete, download it again."
        ) from error
    return content, metadata
