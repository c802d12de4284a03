"""Files that our nodes write and read in ComfyUI's folders: their names, and when they change."""

import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import folder_paths

# File systems take 255 bytes. The rest is left for the host's counter, the file's ending, and
# `.partial` while it is being written.
LONGEST_NAME = 200
WINDOWS = os.name == "nt"
# Names of devices, which no file or folder can have on Windows, whatever follows their first dot.
DEVICES = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)
DATE = re.compile(r"%date:([^%]+)%")
PARTS_OF_A_DATE = re.compile("dd?|MM?|hh?|mm?|ss?|yyyy|yy")


def plain_prefix(filename_prefix: str) -> str:
    """A filename_prefix as a path below a folder of the host's, with its date filled in. ValueError
    where it is none.
    """
    plain = os.path.normpath(with_date(filename_prefix))
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
    *folders, last = plain.split(os.sep)
    # The host's counter follows the last part.
    require_possible("filename_prefix", [*folders, f"{last}_00001_"])
    require_short("filename_prefix", plain)
    return plain


def plain_name(name: str) -> str:
    """The name of a file in a folder of ours, with its date filled in. ValueError where it is none,
    or one with folders.
    """
    plain = with_date(name)
    has_folders = os.path.basename(plain) != plain or "\\" in plain
    if has_folders or not plain.strip(" .") or not plain.isprintable():
        raise ValueError(
            f"name is {name!r}, and must be a plain file name; the folder is ours. Use letters, "
            "digits, '-' and '_'."
        )
    require_possible("name", [plain])
    require_short("name", plain)
    return plain


def with_date(text: str) -> str:
    """`text` with its `%date:yyyy-MM-dd hh-mm-ss%` filled in, as the page does for the host's own
    nodes. The host's file names take %year%, %month% and their kin besides.
    """
    now = time.localtime()
    values = {
        "d": now.tm_mday,
        "M": now.tm_mon,
        "h": now.tm_hour,
        "m": now.tm_min,
        "s": now.tm_sec,
        "y": now.tm_year,
    }

    def part(match: re.Match) -> str:
        letters = match[0]
        return f"{values[letters[0]]:0{len(letters)}}"[-max(2, len(letters)) :]

    return DATE.sub(lambda match: PARTS_OF_A_DATE.sub(part, match[1]), text)


def require_possible(parameter: str, parts: Sequence[str]):
    """ValueError on Windows for folders and a file, `parts`, that it cannot make; `parameter` is
    where they came from.
    """
    if not WINDOWS:
        return
    for part in parts:
        if re.search(r'[<>:"|?*]', part) or part.endswith((".", " ")) or DEVICES.fullmatch(part):
            raise ValueError(
                f"{parameter} has the part {part!r}, and Windows has no files of that name. Use "
                "letters, digits, '-' and '_'."
            )


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
    %year% and its kin. ValueError where none can be made.
    """
    prefix = plain_prefix(filename_prefix)
    try:
        place, stem, counter, _, _ = folder_paths.get_save_image_path(prefix, folder)
    except OSError as error:
        raise _not_writable(folder) from error
    if not os.access(place, os.W_OK):
        raise _not_writable(place)
    return Path(place, f"{stem}_{counter:05}_{suffix}")


def _not_writable(place: str) -> ValueError:
    folder = Path(place)
    if folder.is_symlink() and not folder.exists():
        return ValueError(
            f"{folder} is a link to {os.readlink(folder)}, which is not there. Make that folder, "
            "or remove the link."
        )
    return ValueError(
        f"{folder} cannot be written to. Give ComfyUI the right to, or another --output-directory."
    )


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Around work on a file or folder: what goes wrong is an OSError of the same kind, with a
    sentence in place of a number.
    """
    try:
        yield
    except OSError as error:
        if error.errno is None:  # a sentence already
            raise
        raise type(error)(
            f"{path} cannot be written: {os.strerror(error.errno).lower()}. See that its folder is "
            "there, that ComfyUI may write into it, and that the disk has room."
        ) from error


def register(folder: str, paths: Sequence[str], suffix: str, first: bool = False):
    """Make a folder name of ours known to the host, which then lists and finds its files.

    A line in extra_model_paths.yaml may have brought paths under that name before, or may later:
    ours are added to them, `first` or last, and our ending too.
    """
    others, endings = folder_paths.folder_names_and_paths.get(folder, ([], set()))
    if first:
        merged = [*paths, *(path for path in others if path not in paths)]
    else:
        merged = [*others, *(path for path in paths if path not in others)]
    folder_paths.folder_names_and_paths[folder] = (merged, {*endings, suffix})


def listed(folder: str) -> list[str]:
    """Files in the paths of one of the host's folder names; none where they cannot be read."""
    try:
        return folder_paths.get_filename_list(folder)
    except OSError:  # a folder that the host listed before is gone
        folder_paths.filename_list_cache.pop(folder, None)
    try:
        return folder_paths.get_filename_list(folder)
    except OSError:
        return []


def file_version(folder: str, name: str) -> str:
    """A text that changes whenever a file in one of the host's folders does."""
    status = os.stat(folder_paths.get_full_path_or_raise(folder, name))
    return f"{status.st_mtime_ns} {status.st_size} {status.st_ino}"
