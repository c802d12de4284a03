"""CMBench's data folder: metadata.jsonl, a row for each task, and the videos of the contexts."""

import json
import math
import re
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from .source import Source, probe

METADATA = "metadata.jsonl"
TYPES, TASK_TYPES = ("synthetic", "real"), ("reappear", "revisit")
CLIPS = 6
FAULTS_SHOWN = 20
LONGEST_NAME = 80  # characters; of 3 bytes each, and behind them .error.txt.part
Box = tuple[float, float, float, float]


class TaskReference(NamedTuple):
    """Where the target stands in the context."""

    seconds: float
    frame: int | None  # of the video; None: the seconds say it
    box: Box  # left, top, right, bottom, as shares of width and height

    def frame_in(self, source: Source) -> int:
        """The number of its frame, by seconds as OpenCV seeks it."""
        return math.floor(self.seconds * source.fps + 0.5) if self.frame is None else self.frame


class Task(NamedTuple):
    """One row."""

    name: str
    type: str
    task_type: str
    video: Path
    prompt: str  # how the take goes on
    labels: tuple[str, ...]  # of the target, its aliases behind it
    references: tuple[TaskReference, ...]
    row: dict  # all of it, as it stands in the file


def read_tasks(data: Path, pattern: str = "*") -> list[Task]:
    """All tasks of a data folder whose names match. ValueError with a sentence for each row that
    the authors' code would refuse, or whose video cannot be read.
    """
    file = data / METADATA
    if not file.is_file():
        raise ValueError(
            f"{data} has no {METADATA}. --data is the folder of CMBench: {METADATA}, and videos/ "
            "beside it."
        )
    tasks, faults = [], []
    names = set()
    for number, line in enumerate(lines_of(file), 1):
        if not line.strip():
            continue
        try:
            task = task_of(line, data)
            file_name = task.name.casefold()  # some file systems take no account of case
            if file_name in names:
                raise ValueError("its task_id stands in an earlier row as well; give each its own")
            names.add(file_name)
            tasks.append(task)
        except ValueError as error:
            faults.append(f"{METADATA}, line {number}: {error}.")
    if faults:
        more = len(faults) - FAULTS_SHOWN
        shown = faults[:FAULTS_SHOWN] + [f"... and {more} rows more."] * (more > 0)
        raise ValueError("\n".join(shown))
    if not tasks:
        raise ValueError(f"{file} is empty. It needs a row for each task.")
    chosen = [task for task in tasks if fnmatch(task.name, pattern)]
    if not chosen:
        raise ValueError(
            f"--tasks is '{pattern}', which none of the {len(tasks)} tasks matches. The first is "
            f"{tasks[0].name}."
        )
    return chosen


def lines_of(file: Path) -> list[str]:
    """ValueError, in a sentence, for a file that is no text."""
    try:
        return file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(
            f"{file} cannot be read as UTF-8 text ({error}). Download it again, or save it as "
            "UTF-8."
        ) from None


def task_of(line: str, data: Path) -> Task:
    """A row. ValueError, what is wrong and what is needed."""
    # 1. What the row is of.
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is no JSON ({error})") from None
    if not isinstance(row, dict):
        raise ValueError("it is no JSON object, and a row is {...} with a task_id")
    name = row.get("task_id") or row.get("case_id") or ""
    if not isinstance(name, str) or not name or not is_file_name(name):
        raise ValueError(
            f"its task_id is {name!r}, and a name is needed that can be a file's (at most "
            f"{LONGEST_NAME} letters, digits, _ and -)"
        )
    for key, allowed in (("type", TYPES), ("task_type", TASK_TYPES)):
        if row.get(key) not in allowed:
            raise ValueError(f"{name} has the {key} {row.get(key)!r}, not {' or '.join(allowed)}")
    # 2. Its texts.
    clips = row.get("context_clip_prompts")
    count = len(clips) if isinstance(clips, list) else 0
    if count != CLIPS or not all(
        isinstance(clip, dict) and clip.get("clip_prompt") for clip in clips
    ):
        raise ValueError(
            f"{name} has {count} context_clip_prompts, and {CLIPS} with a clip_prompt each are "
            "needed"
        )
    for key in ("continue_prompt", "target_label"):
        if not isinstance(row.get(key), str) or not row[key]:
            raise ValueError(f"{name} has no {key}, which must be a text")
    aliases = row.get("target_aliases") or []
    if not isinstance(aliases, list) or not all(isinstance(alias, str) for alias in aliases):
        raise ValueError(f"{name} has the target_aliases {aliases!r}, not a list of texts")
    # 3. Its video, and where the target stands in it.
    video = video_of(row, data, name)
    references = row.get("references")
    if not isinstance(references, list) or not references:
        raise ValueError(f"{name} has no references, and at least one is needed")
    try:
        source = probed(video)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    read = tuple(
        reference_of(reference, f"{name}, reference {number}", source)
        for number, reference in enumerate(references, 1)
    )
    # 4. All of it can be written again, for the authors' evaluator.
    try:
        json.dumps(row, ensure_ascii=False, allow_nan=False).encode()
    except ValueError as error:
        raise ValueError(f"{name} holds what no JSON file in UTF-8 can ({error})") from None
    return Task(
        name=name,
        type=row["type"],
        task_type=row["task_type"],
        video=video,
        prompt=row["continue_prompt"],
        labels=(row["target_label"], *aliases),
        references=read,
        row=row,
    )


probed = cache(probe)  # several tasks have the same video


def is_file_name(name: str) -> bool:
    return bool(re.fullmatch(r"\w[\w-]*", name)) and len(name) <= LONGEST_NAME


def video_of(row: dict, data: Path, name: str) -> Path:
    """The row's video. It may be a link out of the folder, as a download's cache makes them."""
    text = row.get("video")
    inside = PurePosixPath(text) if isinstance(text, str) and text else None
    if inside is None or inside.is_absolute() or Path(text).is_absolute() or ".." in inside.parts:
        raise ValueError(
            f"{name} has the video {text!r}, and a path inside the data folder is needed, without "
            "'..'"
        )
    try:
        video = (data / inside).resolve()
        is_there = video.is_file()
    except (OSError, ValueError, RuntimeError):  # no path at all, or a link to itself
        is_there = False
    if not is_there:
        raise ValueError(f"{name} has the video {text!r}, which is not there")
    return video


def reference_of(reference, where: str, source: Source) -> TaskReference:
    if not isinstance(reference, dict):
        raise ValueError(f"{where}: it is no JSON object")
    box = box_of(reference.get("bbox_xyxy_normalized"), where)
    seconds = number_of(reference.get("timestamp_seconds"))
    if not (math.isfinite(seconds * source.fps) and seconds >= 0):
        raise ValueError(f"{where}: its timestamp_seconds must be a finite number from 0 on")
    frame = reference.get("frame_index")
    if frame is not None and (type(frame) is not int or frame < 0):
        raise ValueError(f"{where}: its frame_index is {frame!r}, not a whole number from 0 on")
    read = TaskReference(seconds, frame, box)
    if read.frame_in(source) >= source.frames:
        raise ValueError(
            f"{where}: it stands at frame {read.frame_in(source)}, and the video has "
            f"{source.frames}"
        )
    return read


def box_of(values, where: str) -> Box:
    """ValueError where it is no box with an area inside the picture."""
    box = tuple(map(number_of, values)) if isinstance(values, list) and len(values) == 4 else ()
    is_inside = all(math.isfinite(value) and 0 <= value <= 1 for value in box)
    if not box or not is_inside or box[0] >= box[2] or box[1] >= box[3]:
        raise ValueError(
            f"{where}: its bbox_xyxy_normalized is {values}, and left, top, right, bottom are "
            "needed, from 0 to 1, with an area"
        )
    return box


def number_of(value) -> float:
    """NaN for what is none."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def by_video(tasks: list[Task]) -> Iterator[Task]:
    """Tasks of one video follow each other, so that its context is encoded once."""
    order = {video: number for number, video in enumerate(dict.fromkeys(t.video for t in tasks))}
    yield from sorted(tasks, key=lambda task: order[task.video])
