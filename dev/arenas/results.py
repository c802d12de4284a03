"""A folder of takes, each a video with a JSON beside it, which a run fills and the next one goes on
with.
"""

import json
import os
import platform
import re
import statistics
import time
import traceback
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import comfy.model_management
import comfyui_version
import torch
from keepsake.host.files.video_file import movie
from support.pack import ROOT
from torch import Tensor

SETTINGS = "settings.json"


def versions() -> dict[str, str]:
    """What a result depends on beside its settings."""
    pack = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.M)[1]
    device = comfy.model_management.get_torch_device_name(comfy.model_management.get_torch_device())
    return {
        "keepsake": pack,
        "comfyui": comfyui_version.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": device,
    }


def read_json(path: Path, advice: str) -> dict:
    """An object that a run wrote. ValueError, in sentences, for what is none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise ValueError(f"it holds {type(found).__name__}")
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} is broken ({error}). {advice}") from None
    return found


def read_record(path: Path) -> dict:
    return read_json(path, "Delete it, and the same command makes its take again.")


class Unwritable(ValueError):
    """Nothing can be written where the takes go, so none after this one could be kept."""


class Results:
    """The takes of one row. A take is there once its JSON is, which is written last."""

    def __init__(self, folder: Path, settings: dict):
        """ValueError, in a sentence, where the folder has takes of other `settings`."""
        self.folder = Path(folder)
        settings = json.loads(json.dumps(settings))
        known = self.folder / SETTINGS
        if known.is_file():
            before = read_json(known, "Name another folder.")
            keys = sorted({*before, *settings})
            if other := [key for key in keys if before.get(key) != settings.get(key)]:
                raise ValueError(
                    f"{folder} has takes of other settings ({', '.join(other)}). Choose another "
                    "folder, or the settings of before, which settings.json there says."
                )
        else:
            self._write(known, (json.dumps(settings, indent=1) + "\n").encode())
        self.settings = settings

    @property
    def label(self) -> str:
        """As the lines on the screen call it."""
        return self.folder.name

    def video(self, name: str) -> Path:
        return self.folder / f"{name}.mp4"

    def _record(self, name: str) -> Path:
        return self.folder / f"{name}.json"

    def _error(self, name: str) -> Path:
        return self.folder / f"{name}.error.txt"

    def has(self, name: str) -> bool:
        return self._record(name).is_file() and self.video(name).is_file()

    def read(self, name: str) -> dict:
        return read_record(self._record(name))

    def amend(self, name: str, record: dict):
        """Write a take's JSON anew."""
        self._write(self._record(name), (json.dumps(record, indent=1) + "\n").encode())

    def write(self, name: str, pictures: Tensor, fps: float, record: dict):
        """A take's pictures [N, H, W, 3] and what is known of it."""
        data = movie(pictures, Fraction(fps).limit_denominator(1001))
        self._write(self.video(name), data)
        self.amend(name, record)
        self._error(name).unlink(missing_ok=True)

    def fail(self, name: str, error: Exception):
        """Say beside the takes why one is not there."""
        self._write(self._error(name), "".join(traceback.format_exception(error)).encode())

    def _write(self, path: Path, data: bytes):
        """The whole file or none."""
        part = self.folder / f"{path.name}.part"  # among the videos, others would take it for one
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            part.write_bytes(data)
            os.replace(part, path)
        except OSError as error:
            raise Unwritable(
                f"{path} cannot be written ({error.strerror}). Make room there or name another "
                "folder; the takes that are there stay, and the same command goes on."
            ) from None


class Job(NamedTuple):
    """A take to make."""

    results: Results
    name: str
    frames: int  # latent frames that the model works on: what the time is reckoned by
    make: Callable[[], tuple[Tensor, float, dict]]  # its pictures, their rate, and its record

    @property
    def label(self) -> str:
        return f"{self.results.label}/{self.name}"


def work_through(jobs: Sequence[Job], say: Callable[[str], None] = print) -> list[Job]:
    """Make the takes that are not there; those that failed are returned, and the others go on.
    Unwritable where takes cannot be kept.
    """
    missing = [job for job in jobs if not job.results.has(job.name)]
    if len(missing) < len(jobs):
        say(f"{len(jobs) - len(missing)} of {len(jobs)} takes are there already.")
    failed, pace = [], Pace()
    for number, job in enumerate(missing):
        began = time.perf_counter()
        try:
            pictures, fps, record = job.make()
            job.results.write(job.name, pictures, fps, record)
            outcome = ""
        except Unwritable:
            raise
        except Exception as error:  # the next take may be another matter
            job.results.fail(job.name, error)
            failed.append(job)
            outcome = f" FAILED ({first_line(error)})"
            comfy.model_management.soft_empty_cache()
        seconds = time.perf_counter() - began
        if not outcome:
            pace.add(job, seconds)
        left = pace.words(missing[number + 1 :])
        say(f"{number + 1}/{len(missing)} {job.label}: {duration(seconds)}{outcome}; {left}")
    return failed


class Pace:
    """How long what is left will take, from the takes of this run alone: one of another device or
    size says nothing.
    """

    def __init__(self):
        self.by_row: dict[Path, list[float]] = {}  # seconds for each latent frame

    def add(self, job: Job, seconds: float):
        self.by_row.setdefault(job.results.folder, []).append(seconds / job.frames)

    def words(self, left: Sequence[Job]) -> str:
        if not left:
            return "done"
        every = [pace for paces in self.by_row.values() for pace in paces]
        if not every:
            return f"{len(left)} left, no take yet to reckon by"
        # The first take of a run also loads the model; the median forgets it from the third on.
        usual = statistics.median(every)
        rows = {row: statistics.median(paces) for row, paces in self.by_row.items()}
        seconds = sum(job.frames * rows.get(job.results.folder, usual) for job in left)
        others = {job.results.folder for job in left} - rows.keys()
        guess = f", {counted(len(others), 'row')} of it by the pace of the others" if others else ""
        return (
            f"{len(left)} left, about {duration(seconds)} by {counted(len(every), 'take')}{guess}"
        )


def first_line(error: Exception) -> str:
    """What went wrong, in the line of its take."""
    return next(iter(f"{type(error).__name__}: {error}".splitlines()))


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02} min"
