"""What VBench wrote: `*_eval_results.json`, for each dimension its score and each video's."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from support.intervals import interval

from .suite import DIMENSIONS

CLIPS = "split_clip"  # where VBench-Long puts the clips of a video, in a folder of its name
WRONG = ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError
PERCENT = ("imaging_quality",)  # of these the videos' scores are to 100, the dimension's to 1


class Score(NamedTuple):
    """Of a dimension."""

    value: float  # VBench's own
    ci95: float  # half the width of the bootstrap interval over prompts, of each video's score
    prompts: int


def read_scores(folder: Path) -> dict[str, Score]:
    """By dimension; of several files the latest counts. ValueError, in a sentence, for a file that
    VBench did not write.
    """
    scores = {}
    for path in sorted(folder.glob("*_eval_results.json"), key=lambda path: path.stat().st_mtime):
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            scores |= {name: score_of(name, result) for name, result in found.items()}
            if unknown := sorted(found.keys() - set(DIMENSIONS)):
                raise ValueError(f"no dimension of VBench is {unknown[0]}")
        except (OSError, *WRONG) as error:
            raise ValueError(
                f"{path} is no result of VBench ({type(error).__name__}: {error}), which has a "
                "score and a list of videos for each dimension. Take it out of the folder."
            ) from None
    return {name: scores[name] for name in DIMENSIONS if name in scores}


def score_of(dimension: str, result: Sequence) -> Score:
    """Of one dimension's entry: its score, the videos' or clips' scores, and maybe more."""
    value, videos = float(result[0]), result[1]
    by_prompt = {}
    for video in videos:
        points = video["video_results"] if "video_results" in video else video["cor_num_per_video"]
        by_prompt.setdefault(prompt_of(video["video_path"]), []).append(float(points))
    means = torch.tensor([sum(each) / len(each) for each in by_prompt.values()]).double()
    if dimension in PERCENT:
        means = means / 100
    half = interval(lambda pick: means[pick].mean(-1), len(means)) if len(means) else 0.0
    return Score(value, half, len(means))


def prompt_of(path: str) -> str:
    """Which prompt's a video or clip is: its name without index, scene and clip."""
    parts = path.replace("\\", "/").split("/")
    name = parts[parts.index(CLIPS) + 1] if CLIPS in parts[:-1] else parts[-1].removesuffix(".mp4")
    return re.sub(r"-\d+$", "", re.sub(r"-Scene-\d+$", "", name))
