"""KV memories in ComfyUI's output folder."""

import logging
import os
from pathlib import Path

import folder_paths

from ...kv_policies import KVMemoryError
from ...rollout.memory_file import KVMemory, load_memory, save_memory
from ...rollout.tree_file import partial_of
from . import names as files

FOLDER, SUFFIX = "kv_memory", ".safetensors"  # the folder in output/


def _folder() -> str:
    path = os.path.join(folder_paths.get_output_directory(), FOLDER)
    folder_paths.folder_names_and_paths.setdefault(FOLDER, ([path], {SUFFIX}))
    return path


def memories() -> list[str]:
    """Saved memories, by their paths in the folder."""
    os.makedirs(_folder(), exist_ok=True)
    return folder_paths.get_filename_list(FOLDER)


def save(memory: KVMemory, filename_prefix: str) -> tuple[str, str]:
    """Write a memory under a name that is free: that name, as Load KV Memory lists it, and what was
    done in words.
    """
    path = files.free_path(filename_prefix, _folder(), SUFFIX)
    partial_of(path).open(
        "x"
    ).close()  # the name is ours from here on: the host counts this one when it numbers files
    logging.info("Keepsake: writing %s to %s", memory.report(), path)
    save_memory(memory, path)
    name = os.path.relpath(path, _folder())
    return name, f"{memory.report()} Written to {os.path.join(FOLDER, name)}."


def load(name: str) -> KVMemory:
    _folder()
    path = folder_paths.get_full_path(FOLDER, name)
    if path is None:
        raise KVMemoryError(
            f"There is no {name} in output/{FOLDER}. Choose a file that Save KV Memory wrote."
        )
    return load_memory(Path(path))


def stamp(name: str) -> str:
    """What changes when the file does."""
    _folder()
    return files.stamp(FOLDER, name)
