"""A tree of tensors and plain values in one safetensors file: written whole or not at all, and
never trusted.
"""

from __future__ import annotations

import json
import os
import shutil
import zlib
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ..kv_policies import KVMemoryError, State
from ..kv_policies.state import damaged

FORMAT, VERSION = "keepsake_kv_memory", 1
REFERENCE = "@"  # key of what stands in the header in a tensor's place: its name in the file


def pack(value, path: str, tensors: dict[str, Tensor]):
    """The plain side of a tree; its tensors go into `tensors`, each under its path."""
    if isinstance(value, Tensor):
        tensors[path] = value
        return {REFERENCE: path}
    if isinstance(value, dict):
        return {key: pack(part, f"{path}/{key}", tensors) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [pack(part, f"{path}/{i}", tensors) for i, part in enumerate(value)]
    return value


def unpack(value, tensors: dict[str, Tensor]):
    """The tree again."""
    if isinstance(value, dict):
        if value.keys() == {REFERENCE}:
            if not isinstance(value[REFERENCE], str) or value[REFERENCE] not in tensors:
                raise damaged(f"the tensor {str(value[REFERENCE])[:80]} is missing")
            return tensors[value[REFERENCE]]
        return {key: unpack(part, tensors) for key, part in value.items()}
    return [unpack(part, tensors) for part in value] if isinstance(value, list) else value


def checksum(header: str, tensors: dict[str, Tensor]) -> str:
    total = zlib.crc32(header.encode())
    for name in sorted(tensors):
        total = zlib.crc32(tensors[name].reshape(-1).view(torch.uint8).numpy(), total)
    return f"{total:08x}"


def partial_of(path: Path) -> Path:
    """What a file is called while it is written."""
    return path.with_name(path.name + ".partial")


def save_tree(tree: State, path: Path):
    """Write the file, so that under `path` there is at any time what was there before or all of the
    new one.

    ValueError, before anything is written, where the disk has no room.
    """
    tensors: dict[str, Tensor] = {}
    header, partial = json.dumps(pack(tree, "", tensors)), partial_of(path)
    tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
    needed = len(header) + sum(tensor.nbytes for tensor in tensors.values())
    try:
        free = shutil.disk_usage(path.parent).free
        if needed > free:
            raise ValueError(
                f"The KV memory takes {needed / 2**20:,.1f} MiB, and the disk of {path.parent} "
                f"has {free / 2**20:,.1f} MiB left. "
                "Make room, or use a policy that keeps less."
            )
        save_file(
            tensors,
            partial,
            {
                "format": FORMAT,
                "version": str(VERSION),
                "parts": header,
                "crc32": checksum(header, tensors),
            },
        )
        _sync(partial)
        os.replace(partial, path)
        _sync(path.parent)
    except SafetensorError as error:
        raise OSError(f"The KV memory could not be written to {path.parent}: {error}.") from None
    finally:
        partial.unlink(missing_ok=True)


def _sync(path: Path):
    """Have a file, or what a folder lists, on the disk."""
    if path.is_dir() and os.name == "nt":  # Windows opens no folders
        return
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def load_tree(path: Path) -> State:
    """Read such a file. KVMemoryError, in a sentence, for every file that is none; never more
    memory than the file's size.
    """
    try:
        with safe_open(path, "pt", device="cpu") as file:
            told = file.metadata() or {}
            if told.get("format") != FORMAT:
                raise KVMemoryError(
                    f"{path.name} is a safetensors file, but no KV memory. Choose a file that "
                    "Save KV Memory wrote."
                )
            if told.get("version") != str(VERSION):
                raise KVMemoryError(
                    f"{path.name} has the format version {told.get('version')!r:.20}, and this "
                    f"Keepsake reads {VERSION}. "
                    "Use the Keepsake that wrote it, or a newer one."
                )
            tensors = {
                name: file.get_tensor(name).clone() for name in file.keys()
            }  # copies: the file may change later
    except (OSError, SafetensorError) as error:
        raise KVMemoryError(
            f"{path.name} cannot be read as a KV memory: {error}. Choose a file that Save KV "
            "Memory wrote, whole."
        ) from None
    header = told.get("parts", "")
    if told.get("crc32") != checksum(header, tensors):
        raise damaged(f"the contents of {path.name} are not those that were written")
    try:
        return unpack(json.loads(header), tensors)
    except (ValueError, RecursionError) as error:
        if isinstance(error, KVMemoryError):
            raise
        raise damaged(f"the header of {path.name} is no JSON") from None
