"""A take's memory between two runs: a value, and one safetensors file of it (tensors, and a JSON header)."""
from __future__ import annotations

import json
import os
import shutil
import zlib
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ..kv_policies import Chunk, KVMemoryError, State
from ..kv_policies.state import counts_of, damaged, part_of, tensor_of

FORMAT, VERSION = "keepsake_kv_memory", 1
REFERENCE = "@"                      # key of what stands in the header in a tensor's place: its name in the file
MOST_FRAMES = 2 ** 31


@dataclass(frozen=True, eq=False)
class KVMemory:
    """Everything that a take needs to go on. All tensors lie on the CPU."""

    about: State                     # plain values: the model, the policy and what else must be the same to go on
    chunks: tuple[Chunk, ...]        # made so far
    latents: Tensor                  # [1, C, frames so far, 2h, 2w], normalised
    prefix: Tensor | None            # [1, C, P, 2h, 2w]: the given latents as they came
    streams: State                   # caches and runs, see `Session.state`
    carried: dict[str, Tensor]       # see `Rollout.carried`

    @property
    def frames(self) -> int:
        return self.chunks[-1].end_frame

    @property
    def nbytes(self) -> int:
        tensors: dict[str, Tensor] = {}
        pack(self.parts(), "", tensors)
        return sum(tensor.nbytes for tensor in tensors.values())

    def check_carried(self, expected: dict[str, int]):
        """KVMemoryError where `carried` is not what the schedule carries, see `Schedule.carries`."""
        if self.carried.keys() != expected.keys():
            raise damaged(f"it carries {len(self.carried)} latents and must carry {len(expected)}")
        for name, frames in expected.items():
            tensor_of(self.carried, name, self.latents.dtype, 1, self.latents.shape[1], frames, *self.latents.shape[3:])

    def report(self) -> str:
        return f"KV memory of {self.frames} latent frames: {self.nbytes / 2 ** 20:,.1f} MiB."

    def parts(self) -> State:
        chunks = [[chunk.start_frame, chunk.frames, int(chunk.given), chunk.shot] for chunk in self.chunks]
        return {"about": self.about, "chunks": chunks, "latents": self.latents, "prefix": {} if self.prefix is None else {"latents": self.prefix},
                "streams": self.streams, "carried": self.carried}

    @classmethod
    def from_parts(cls, parts: State) -> KVMemory:
        """Check what can be known without the take; the rest is checked where the session takes it over."""
        chunks: list[Chunk] = []
        for entry in part_of(parts, "chunks", list):
            start, frames, given, shot = counts_of({"chunk": entry}, "chunk", MOST_FRAMES, 4)
            if start != (chunks[-1].end_frame if chunks else 0) or frames < 1 or given > 1 or given and chunks and not chunks[-1].given:
                raise damaged("its chunks do not follow each other")
            chunks.append(Chunk(len(chunks), start, frames, bool(given), shot=shot))
        if not chunks:
            raise damaged("it holds no chunk")
        latents = part_of(parts, "latents", Tensor)
        if not latents.is_floating_point():
            raise damaged(f"its latents are {latents.dtype}")
        tensor_of(parts, "latents", latents.dtype, 1, None, chunks[-1].end_frame, None, None)
        _, channels, _, height, width = latents.shape
        prefix = part_of(parts, "prefix", dict)
        given = part_of(prefix, "latents", Tensor) if prefix else None
        if given is not None:
            tensor_of(prefix, "latents", given.dtype, 1, channels, None, height, width)
        if sum(chunk.frames for chunk in chunks if chunk.given) != (0 if given is None else given.shape[2]):
            raise damaged("its given latents are not those of its given chunks")
        about, carried, strange = part_of(parts, "about", dict), part_of(parts, "carried", dict), {}
        pack(about, "", strange)
        if strange:
            raise damaged("its description of the take holds tensors")
        return cls(about, tuple(chunks), latents, given, part_of(parts, "streams", dict),
                   {name: part_of(carried, name, Tensor) for name in carried})


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


def save_memory(memory: KVMemory, path: Path):
    """Write the file, so that under `path` there is at any time what was there before or all of the new one.

    ValueError, before anything is written, where the disk has no room.
    """
    tensors: dict[str, Tensor] = {}
    header = json.dumps(pack(memory.parts(), "", tensors))
    tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
    needed, free = len(header) + sum(tensor.nbytes for tensor in tensors.values()), shutil.disk_usage(path.parent).free
    if needed > free:
        raise ValueError(f"The KV memory takes {needed / 2 ** 20:,.1f} MiB, and the disk of {path.parent} has {free / 2 ** 20:,.1f} MiB left. "
                         "Make room, or use a policy that keeps less.")
    partial = path.with_name(path.name + ".partial")
    try:
        save_file(tensors, partial, {"format": FORMAT, "version": str(VERSION), "parts": header, "crc32": checksum(header, tensors)})
        _sync(partial)
        os.replace(partial, path)
        _sync(path.parent)
    except SafetensorError as error:
        raise OSError(f"The KV memory could not be written to {path.parent}: {error}.") from None
    finally:
        partial.unlink(missing_ok=True)


def _sync(path: Path):
    """Have a file, or what a folder lists, on the disk."""
    if path.is_dir() and os.name == "nt":        # Windows opens no folders
        return
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def load_memory(path: Path) -> KVMemory:
    """Read such a file. KVMemoryError, in a sentence, for every file that is none; never more memory than the file's size."""
    try:
        with safe_open(path, "pt", device="cpu") as file:
            told = file.metadata() or {}
            if told.get("format") != FORMAT:
                raise KVMemoryError(f"{path.name} is a safetensors file, but no KV memory. Choose a file that Save KV Memory wrote.")
            if told.get("version") != str(VERSION):
                raise KVMemoryError(f"{path.name} has the format version {told.get('version')!r:.20}, and this Keepsake reads {VERSION}. "
                                    "Use the Keepsake that wrote it, or a newer one.")
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}      # copies: the file may change later
    except (OSError, SafetensorError) as error:
        raise KVMemoryError(f"{path.name} cannot be read as a KV memory: {error}. Choose a file that Save KV Memory wrote, whole.") from None
    header = told.get("parts", "")
    if told.get("crc32") != checksum(header, tensors):
        raise damaged(f"the contents of {path.name} are not those that were written")
    try:
        parts = unpack(json.loads(header), tensors)
    except (ValueError, RecursionError) as error:
        if isinstance(error, KVMemoryError):
            raise
        raise damaged(f"the header of {path.name} is no JSON") from None
    return KVMemory.from_parts(parts)
