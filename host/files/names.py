"""Files that our nodes write and read in ComfyUI's folders: their names, and when they change."""

import os
from collections.abc import Sequence
from pathlib import Path

import folder_paths

# File systems take 255 bytes. The rest is left for the host's counter, the file's ending, and
# `.partial` while it is being written.
LONGEST_NAME = 200


def plain_prefix(filename_prefix: str) -> str:
    """A filename_prefix as a path below a folder of the host's. ValueError where it is none."""
    plain = os.path.normpath(filename_prefix)
    if (
        os.path.isabs(plain)
        or os.path.splitdrive(plain)[0]
        or plain.split(os.sep)[0] in ("..", ".")
        or not plain.isprintable()
        or not plain.strip()
    ):
        raise ValueError(
            f"filename_prefix is {filename_prefix!r}, and must name a file below the output "
            "folder. Use a name, or folder/name, without '..' or line breaks."
        )
    require_short("filename_prefix", plain)
    return plain


def plain_name(name: str) -> str:
    """The name of a file in a folder of ours. ValueError where it is none, or one with folders."""
    has_folders = os.path.basename(name) != name or "\\" in name
    if has_folders or not name.strip(" .") or not name.isprintable():
        raise ValueError(
            f"name is {name!r}, and must be a plain file name; the folder is ours. Use letters, "
            "digits, '-' and '_'."
        )
    require_short("name", name)
    return name


def require_short(parameter: str, path: str):
    """ValueError for a path that file systems do not take; `parameter` is where it came from."""
    longest = max(len(os.fsencode(part)) for part in path.split(os.sep))
    if longest > LONGEST_NAME:
        raise ValueError(
            f"{parameter} has a name of {longest} bytes, and file systems take {LONGEST_NAME} "
            "beside number and ending. Use a shorter one."
        )


def free_path(filename_prefix: str, folder: str, suffix: str) -> Path:
    """A path below `folder` that no file has yet: the host's way, which numbers files and fills in
    %date% and its kin. ValueError where none can be made.
    """
    place, stem, counter, _, _ = folder_paths.get_save_image_path(
        plain_prefix(filename_prefix), folder
    )
    if not os.access(place, os.W_OK):
        raise ValueError(
            f"{Path(place)} cannot be written to. Give ComfyUI the right to, or another "
            "--output-directory."
        )
    return Path(place, f"{stem}_{counter:05}_{suffix}")


def register(folder: str, paths: Sequence[str], suffix: str):
    """Make a folder name of ours known to the host, which then lists and finds its files."""
    folder_paths.folder_names_and_paths.setdefault(folder, (list(paths), {suffix}))


def file_version(folder: str, name: str) -> str:
    """A text that changes whenever a file in one of the host's folders does."""
    status = os.stat(folder_paths.get_full_path_or_raise(folder, name))
    return f"{status.st_mtime_ns} {status.st_size} {status.st_ino}"
