"""The inputs of the authors' own evaluator, which is not public: their repository's command hands
it these files (`evaluation/official.py`, `dataset.evaluator_inputs`).
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..measures import pixel_box
from ..results import Results
from .source import probe
from .tasks import Task

LEVELS = {"reappear": "object", "revisit": "scene"}


def export(
    target: Path, tasks: Sequence[Task], rows: Mapping[str, Results], seeds: Sequence[int]
) -> list[str]:
    """Fill the folder; returns a line for each row and seed, with which the evaluator is called.

    inputs/metadata.jsonl, inputs/annotations.jsonl    boxes in pixels, frames by number
    ROW/seedN/TASK/continuation.mp4, metadata.json     what the evaluator is pointed at
    """
    # 1. The two lists, which are the same.
    inputs = target / "inputs"
    inputs.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(input_row(task), ensure_ascii=False) + "\n" for task in tasks)
    for name in ("metadata.jsonl", "annotations.jsonl"):
        (inputs / name).write_text(text, encoding="utf-8")
    # 2. The takes.
    lines = []
    for row, results in rows.items():
        for seed in seeds:
            there = [task for task in tasks if results.has(f"seed{seed}/{task.name}")]
            for task in there:
                name = f"seed{seed}/{task.name}"
                folder = target / row / name
                folder.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(results.video(name), folder / "continuation.mp4")
                about = case_of(task, row, results.read(name), folder)
                (folder / "metadata.json").write_text(json.dumps(about, indent=1) + "\n")
            if there:
                lines.append(command(target, row, seed, [task.name for task in there]))
    return lines


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


def command(target: Path, row: str, seed: int, cases: Sequence[str]) -> str:
    """The evaluator's call for the takes of a row and seed."""
    roots = " ".join(str(target / row / f"seed{seed}" / case) for case in cases)
    return (
        f"python EVALUATOR --benchmark-root DATA --metadata {target}/inputs/metadata.jsonl "
        f"--annotations {target}/inputs/annotations.jsonl --output-roots {roots} "
        f"--eval-root {target}/evaluation/{row}/seed{seed} --methods {row} "
        f"--cases {' '.join(cases)} --video-name continuation.mp4 --owl-model OWL --sam-model SAM "
        "--dino-model DINO --device cuda:0 --mask-mode sam --scoring-path owl_sam_dino "
        "--frame-stride 1 --no-overlays --no-comparison-videos"
    )
