"""What to run in VBench's own environment, in a clone of its repository (checked at 45e79ec1).

Videos of up to 10 seconds, the longest clip that VBench-Long cuts, go to `evaluate.py`; longer ones
to `vbench2_beta_long/eval_long.py`, in the mode of its README. In both, *temporal flickering* is of
static videos alone, which a filter finds first.
"""

import os
import shlex

from .suite import FLICKER, SAMPLES, Suite
from .takes import VideoFolder, seconds_of

LONG_SECONDS = 10.0


def is_long(frames: int) -> bool:
    return seconds_of(frames) > LONG_SECONDS


def calls(folder: VideoFolder, suite: Suite, frames: int) -> list[str]:
    """The lines for one folder of videos."""
    return (long_calls if is_long(frames) else short_calls)(folder, suite)


def short_calls(folder: VideoFolder, suite: Suite) -> list[str]:
    static = folder.scores / "static"
    lines = []
    flicker = [FLICKER] if FLICKER in suite.dimensions else []
    if flicker:
        lines.append(line("static_filter.py", videos_path=folder.videos, result_path=static))
        lines.append(
            line(
                "evaluate.py",
                videos_path=static / "filtered_videos",
                dimension=flicker,
                output_path=folder.scores,
            )
        )
    if others := [name for name in suite.dimensions if name != FLICKER]:
        own = {"mode": "custom_input", "prompt_file": folder.prompts}
        lines.append(
            line(
                "evaluate.py",
                videos_path=folder.videos,
                dimension=others,
                output_path=folder.scores,
                **({} if suite.standard else own),
            )
        )
    return lines


def long_calls(folder: VideoFolder, suite: Suite) -> list[str]:
    same = {"videos_path": folder.videos, "output_path": folder.scores}
    samples = max(prompt.samples for prompt in suite.prompts)
    if suite.standard and samples != SAMPLES:
        same["num_of_samples_per_prompt"] = samples
    same["mode"] = "long_vbench_standard" if suite.standard else "long_custom_input"
    others = [name for name in suite.dimensions if name != FLICKER]
    lines = []
    if others:
        lines.append(line(LONG, dimension=others, **same) + " --dev_flag")
    if FLICKER in suite.dimensions:
        lines.append(line(LONG, dimension=[FLICKER], **same) + " --dev_flag --static_filter_flag")
    return lines


LONG = "vbench2_beta_long/eval_long.py"


def line(program: str, **flags) -> str:
    """A command line: a list has its words one by one, a path is absolute."""
    words = ["python", program]
    for name, value in flags.items():
        values = value if isinstance(value, list) else [value]
        texts = [
            os.path.abspath(each) if isinstance(each, os.PathLike) else each for each in values
        ]
        words += [f"--{name}", *map(str, texts)]
    return shlex.join(words)
