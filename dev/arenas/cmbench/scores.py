"""What a take shows of what its context showed: the measures, over the takes' video files."""

from functools import cache
from pathlib import Path
from typing import NamedTuple

import comfy.model_management
import torch

from ..measures import Reference, direct_box, models, own_measure
from ..results import Results
from .source import picture, pictures, probe
from .tasks import Task

# Named so that nobody takes either for CMBench's score.
DIRECT, OWN = "direct box, not CMBench's score", "Keepsake's measure, not CMBench's score"


class Folders(NamedTuple):
    """Of the measures' models; None: not asked for."""

    dino: Path | None = None
    owl: Path | None = None
    sam: Path | None = None

    def check(self):
        """ValueError, in a sentence, for what cannot be measured."""
        if (self.owl or self.sam) and not (self.owl and self.sam and self.dino):
            raise ValueError(
                "--owl and --sam belong together and need --dino: give the three folders, or "
                "--dino alone for the direct box."
            )
        for name, folder in self._asdict().items():
            if folder and not folder.is_dir():
                raise ValueError(f"--{name} is {folder}, which is no folder.")

    def load(self):
        """Into main memory, before there are takes to lose. ValueError, in a sentence, for a folder
        that holds another model.
        """
        kinds = {"dino": models.DINO, "owl": models.OWL, "sam": models.SAM}
        for name, folder in self._asdict().items():
            if folder:
                models.load(kinds[name], folder)

    def of(self, measure: str) -> dict[str, str]:
        """Those that a measure uses, as they stand in a record; empty: it is not asked for."""
        names = ("dino",) if measure == DIRECT else ("dino", "owl", "sam")
        folders = {name: getattr(self, name) for name in names}
        if None in folders.values():
            return {}
        return {name: str(folder.resolve()) for name, folder in folders.items()}


def score(results: Results, name: str, task: Task, folders: Folders):
    """Add to a take's record what is asked for and not there, or was measured by other models."""
    record = results.read(name)
    scores = record.setdefault("scores", {})
    missing = [
        measure
        for measure in (DIRECT, OWN)
        if (used := folders.of(measure)) and scores.get(measure, {}).get("models") != used
    ]
    if not missing:
        return
    video = results.video(name)
    frames = torch.stack([found for _, found in pictures(video, range(probe(video).frames))])
    device = str(comfy.model_management.get_torch_device())
    references = references_of(task)
    for measure in missing:
        if measure == DIRECT:
            scores[measure] = direct_box(frames, references, folders.dino, device)
        else:
            scores[measure] = own_measure(
                frames,
                references,
                task.labels,
                folders.owl,
                folders.sam,
                folders.dino,
                device,
                scene=task.task_type == "revisit",
            )
        scores[measure]["models"] = folders.of(measure)
    results.amend(name, record)


@cache
def _pictures_of(video: Path, numbers: tuple[int, ...]):
    return [picture(video, number) for number in numbers]


def references_of(task: Task) -> list[Reference]:
    source = probe(task.video)
    numbers = tuple(reference.frame_in(source) for reference in task.references)
    return [
        Reference(found, reference.box, number)
        for found, reference, number in zip(
            _pictures_of(task.video, numbers), task.references, numbers
        )
    ]
