"""KV memories in ComfyUI's output folder."""

import logging
import os
from pathlib import Path

import folder_paths

from ...kv_policies import KVMemoryError
from ...rollout.memory_file import KVMemory, load_memory, save_memory
from ...rollout.tree_file import partial_of
from . import names

FOLDER = "kv_memory"  # in the output folder
SUFFIX = ".safetensors"


def _register() -> str:
    """Make our folder known to the host, before all others, so that a name that was just saved is
    that file; return its path.
    """
    path = os.path.join(folder_paths.get_output_directory(), FOLDER)
    names.register(FOLDER, [path], SUFFIX, first=True)
    return path


def saved_memories() -> list[str]:
    """Saved memories, by their paths in the folder; none where it is not there yet."""
    _register()
    return names.listed(FOLDER)


def save(memory: KVMemory, filename_prefix: str) -> tuple[str, str]:
    """Write a memory under a free name; return that name, as Load KV Memory lists it, and a report
    in words.
    """
    folder = _register()
    path = names.free_path(filename_prefix, folder, SUFFIX)
    # An empty partial file takes the name: the host counts it when it numbers the next files.
    with names.writing(path):
        partial_of(path).open("x").close()
    logging.info("Keepsake: %s Writing it to %s", memory.report(), path)
    save_memory(memory, path)
    name = os.path.relpath(path, folder)
    return name, f"{memory.report()} Written to {os.path.join(FOLDER, name)}."


def saved_path(name: str) -> Path:
    """Where `save` wrote the memory of that name."""
    return Path(_register(), name)


def load(name: str) -> KVMemory:
    _register()
    path = folder_paths.get_full_path(FOLDER, name)
    if path is None:
        raise KVMemoryError(
            f"There is no {name} in output/{FOLDER}. Choose a file that Save KV Memory wrote."
        )
    return load_memory(Path(path))


def version(name: str) -> str:
    """A text that changes whenever the file does; empty where there is none."""
    _register()
    return names.file_version(FOLDER, name) if folder_paths.get_full_path(FOLDER, name) else ""
