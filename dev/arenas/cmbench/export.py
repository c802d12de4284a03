"""The inputs of the authors' own evaluator, which is not public: their repository's command hands
it these files (`evaluation/official.py`, `dataset.evaluator_inputs`).
"""

import json
import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..measures import pixel_box
from ..results import Results, counted
from .source import probe
from .tasks import Task

LEVELS = {"reappear": "object", "revisit": "scene"}
HEAD = """# The evaluator, and the folders of its models.
EVALUATOR=
OWL=
SAM=
DINO=
"""
SETTINGS = (
    '--owl-model "$OWL" --sam-model "$SAM" --dino-model "$DINO" --video-name continuation.mp4 '
    "--device cuda:0 --mask-mode sam --scoring-path owl_sam_dino --frame-stride 1 --no-overlays "
    "--no-comparison-videos"
)


class Export:
    """A folder for the evaluator.

    inputs/metadata.jsonl, inputs/annotations.jsonl    boxes in pixels, frames by number
    ROW/seedN/TASK/continuation.mp4, metadata.json     what the evaluator is pointed at
    evaluate.sh                                        its calls, one for each row and seed
    """

    def __init__(self, target: Path, data: Path, tasks: Sequence[Task]):
        """Begin with the tasks. ValueError, in a sentence, where nothing can be written."""
        self.target, self.data, self.tasks = target.absolute(), data.absolute(), tasks
        text = "".join(json.dumps(input_row(task), ensure_ascii=False) + "\n" for task in tasks)
        try:
            (self.target / "inputs").mkdir(parents=True, exist_ok=True)
            for name in ("metadata.jsonl", "annotations.jsonl"):
                (self.target / "inputs" / name).write_text(text, encoding="utf-8")
        except OSError as error:
            raise ValueError(
                f"--export is {target}, where nothing can be written ({error.strerror}). Name "
                "another folder."
            ) from None

    def add(self, rows: Mapping[str, Results], seeds: Sequence[int]) -> str:
        """The takes that are there; where the calls are, in a sentence."""
        calls = []
        for row, results in rows.items():
            for seed in seeds:
                there = [task for task in self.tasks if results.has(f"seed{seed}/{task.name}")]
                for task in there:
                    self._copy(task, row, results, f"seed{seed}/{task.name}")
                if there:
                    calls.append(self._call(row, seed, [task.name for task in there]))
        script = self.target / "evaluate.sh"
        script.write_text("\n".join([HEAD, *calls, ""]), encoding="utf-8")
        return f"For the authors' evaluator ({counted(len(calls), 'call')}): fill in {script}."

    def _copy(self, task: Task, row: str, results: Results, name: str):
        folder = self.target / row / name
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(results.video(name), folder / "continuation.mp4")
        about = case_of(task, row, results.read(name), folder)
        (folder / "metadata.json").write_text(json.dumps(about, indent=1) + "\n")

    def _call(self, row: str, seed: int, cases: Sequence[str]) -> str:
        target = self.target
        options = {
            "--benchmark-root": [self.data],
            "--metadata": [target / "inputs/metadata.jsonl"],
            "--annotations": [target / "inputs/annotations.jsonl"],
            "--output-roots": [target / row / f"seed{seed}" / case for case in cases],
            "--eval-root": [target / "evaluation" / row / f"seed{seed}"],
            "--methods": [row],
            "--cases": cases,
        }
        words = [shlex.join([name, *map(str, values)]) for name, values in options.items()]
        return " ".join(['python "$EVALUATOR"', *words, SETTINGS])


def input_row(task: Task) -> dict:
    """A task as the evaluator reads it."""
    source = probe(task.video)
    references = [
        {
            "ref_id": f"ref_{number:02d}",
            "frame": reference.frame_in(source),
            "bbox_xyxy": list(pixel_box(reference.box, source.width, source.height)),
            "timestamp_seconds": reference.seconds,
        }
        for number, reference in enumerate(task.references)
    ]
    return {
        **task.row,
        "case_id": task.name,
        "clip_file": str(task.video),
        "video_file": str(task.video),
        "prompt": task.prompt,
        "memory_level": LEVELS[task.task_type],
        "references": references,
    }


def case_of(task: Task, row: str, record: dict, folder: Path) -> dict:
    """Of a take, by the authors' names."""
    return {
        "case_id": task.name,
        "method": row,
        "seed": record["seed"],
        "context_latent_frames": record["context_latent_frames"],
        "output_latent_frames": record["output_latent_frames"],
        "output_pixel_frames": probe(folder / "continuation.mp4").frames,
        "generation_elapsed_s": record["measured"]["continuation_seconds"],
        "generation_fps": record["measured"]["frames_per_second"],
        "seqPR": record["prune_ratio"],
    }
