"""KV memories in ComfyUI's output folder."""
import logging
import os
from pathlib import Path

import folder_paths

from ..rollout.memory_file import KVMemory, load_memory, save_memory

FOLDER, SUFFIX = "kv_memory", ".safetensors"         # the folder in output/
LONGEST_NAME = 200                   # bytes of 255, of which number, ending and what a file is called while it is written take some


def _folder() -> str:
    path = os.path.join(folder_paths.get_output_directory(), FOLDER)
    folder_paths.folder_names_and_paths.setdefault(FOLDER, ([path], {SUFFIX}))
    return path


def memories() -> list[str]:
    """Saved memories, by their paths in the folder."""
    os.makedirs(_folder(), exist_ok=True)
    return folder_paths.get_filename_list(FOLDER)


def plain_prefix(filename_prefix: str) -> str:
    """A filename_prefix as a path below a folder of the host's. ValueError where it is none."""
    plain = os.path.normpath(filename_prefix)
    if os.path.isabs(plain) or os.path.splitdrive(plain)[0] or plain.split(os.sep)[0] in ("..", ".") or not plain.isprintable() or not plain.strip():
        raise ValueError(f"filename_prefix is {filename_prefix!r}, and must name a file below the output folder. Use a name, or folder/name, without '..' or "
                         "line breaks.")
    longest = max(len(os.fsencode(part)) for part in plain.split(os.sep))
    if longest > LONGEST_NAME:
        raise ValueError(f"filename_prefix has a name of {longest} bytes, and file systems take {LONGEST_NAME} beside number and ending. Use a shorter one.")
    return plain


def free_path(filename_prefix: str, folder: str, suffix: str) -> Path:
    """A path below `folder` that no file has yet: the host's way, which numbers files and fills in %date% and its kin."""
    plain = plain_prefix(filename_prefix)
    place, stem, counter, _, _ = folder_paths.get_save_image_path(plain, folder)
    return Path(place, f"{stem}_{counter:05}_{suffix}")


def save(memory: KVMemory, filename_prefix: str) -> tuple[str, str]:
    """Write a memory under a name that is free: that name, as Load KV Memory lists it, and what was done in words."""
    path = free_path(filename_prefix, _folder(), SUFFIX)
    logging.info("Keepsake: writing %s to %s", memory.report(), path)
    save_memory(memory, path)
    name = os.path.relpath(path, _folder())
    return name, f"{memory.report()} Written to {os.path.join(FOLDER, name)}."


def load(name: str) -> KVMemory:
    _folder()
    return load_memory(Path(folder_paths.get_full_path_or_raise(FOLDER, name)))


def stamp(name: str) -> str:
    """What changes when the file does."""
    _folder()
    told = os.stat(folder_paths.get_full_path_or_raise(FOLDER, name))
    return f"{told.st_mtime_ns} {told.st_size} {told.st_ino}"
