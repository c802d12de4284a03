"""A tree of tensors and plain values in one safetensors file (tensors, and a JSON header): written
whole or not at all, and checked when it is read.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ..kv_policies import KVMemoryError, State
from ..kv_policies.state import damaged

FORMAT = "keepsake_kv_memory"
VERSION = 1
# What file systems answer that cannot sync a file or a folder: network shares, FUSE.
NO_SYNC = {
    errno.EINVAL,
    errno.ENOTSUP,
    errno.EOPNOTSUPP,
    errno.ENOSYS,
    errno.EBADF,
    errno.EACCES,
    errno.EPERM,
}
# Seconds between two tries at a file that another program holds open (on Windows a player, a virus
# scanner, a file manager's preview).
WAITS = (0.1, 0.2, 0.4, 0.8)
REFERENCE = "@"  # in the header, {REFERENCE: name} stands for the tensor of that name


def pack(value, path: str, tensors: dict[str, Tensor]):
    """The tree with references for its tensors, which go into `tensors` under their paths."""
    if isinstance(value, Tensor):
        tensors[path] = value
        return {REFERENCE: path}
    if isinstance(value, dict):
        return {key: pack(part, f"{path}/{key}", tensors) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [pack(part, f"{path}/{i}", tensors) for i, part in enumerate(value)]
    return value


def unpack(value, tensors: dict[str, Tensor]):
    """The tree of which `pack` made a plain value and tensors."""
    if isinstance(value, list):
        return [unpack(part, tensors) for part in value]
    if not isinstance(value, dict):
        return value
    if value.keys() != {REFERENCE}:
        return {key: unpack(part, tensors) for key, part in value.items()}
    name = value[REFERENCE]
    if not isinstance(name, str) or name not in tensors:
        raise damaged(f"the tensor {str(name)[:80]} is missing")
    return tensors[name]


def checksum(header: str, tensors: dict[str, Tensor]) -> str:
    """CRC32 of the header and of all tensors by name, as hex digits."""
    total = zlib.crc32(header.encode())
    for name in sorted(tensors):
        total = zlib.crc32(tensors[name].reshape(-1).view(torch.uint8).numpy(), total)
    return f"{total:08x}"


def partial_of(path: Path) -> Path:
    """The path of a file while it is written."""
    return path.with_name(path.name + ".partial")


def save_tree(tree: State, path: Path):
    """Write the file. At any time `path` holds what was there before, or all of the new file.

    ValueError, before anything is written, where the disk has no room; OSError, in a sentence,
    where it cannot be written.
    """
    tensors: dict[str, Tensor] = {}
    header = json.dumps(pack(tree, "", tensors))
    partial = partial_of(path)
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
        metadata = {
            "format": FORMAT,
            "version": str(VERSION),
            "parts": header,
            "crc32": checksum(header, tensors),
        }
        save_file(tensors, partial, metadata)
        sync(partial)
        when_free(lambda: os.replace(partial, path))
        sync(path.parent)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise OSError(f"The KV memory could not be written to {path.parent}: {reason}.") from error
    finally:
        _remove(partial)


def _remove(partial: Path):
    try:
        partial.unlink(missing_ok=True)
    except OSError:
        pass  # held by another program, or the folder is gone; the next save writes over it


def when_free(write: Callable[[], object]):
    """Call `write`, and again for a second and a half while another program holds its file;
    PermissionError where it still does then.
    """
    for seconds in WAITS:
        try:
            return write()
        except PermissionError:
            time.sleep(seconds)
    return write()


def sync(path: Path):
    """Wait until a file, or the list of a folder, is on the disk, where its file system can."""
    if path.is_dir() and os.name == "nt":  # Windows opens no folders
        return
    try:
        handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        if error.errno not in NO_SYNC:
            raise


def load_tree(path: Path) -> State:
    """Read a file of `save_tree`. KVMemoryError, in a sentence, for every other file. Takes no more
    memory than the file's size.
    """
    try:
        with safe_open(path, "pt", device="cpu") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise KVMemoryError(
                    f"{path.name} is a safetensors file, but no KV memory. Choose a file that "
                    "Save KV Memory wrote."
                )
            if metadata.get("version") != str(VERSION):
                raise KVMemoryError(
                    f"{path.name} has the format version {metadata.get('version')!r:.20}, and this "
                    f"Keepsake reads {VERSION}. "
                    "Use the Keepsake that wrote it, or a newer one."
                )
            # Copies, since the file may change later.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}
    except (OSError, SafetensorError) as error:
        raise KVMemoryError(
            f"{path.name} cannot be read as a KV memory: {error}. Choose a file that Save KV "
            "Memory wrote, whole."
        ) from None
    header = metadata.get("parts", "")
    if metadata.get("crc32") != checksum(header, tensors):
        raise damaged(f"the contents of {path.name} are not those that were written")
    try:
        return unpack(json.loads(header), tensors)
    except (ValueError, RecursionError) as error:
        if isinstance(error, KVMemoryError):
            raise
        raise damaged(f"the header of {path.name} is no JSON") from None
