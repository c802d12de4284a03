"""CMBench's data in small: four contexts drawn from the demo world, six tasks, and rows gone wrong.

The videos are lossless, so their frames are the same wherever they are made.
"""

import json
from fractions import Fraction
from pathlib import Path

import av
import torch
from keepsake.demo import world

# Each context: name, frames a second, frames, height, width, time, district.
CONTEXTS = (
    ("synthetic/syn_001", 24, 25, 64, 128, "day", "old town"),
    ("synthetic/syn_002", 16, 13, 80, 96, "night", "harbour"),
    ("synthetic/syn_003", 12, 10, 64, 128, "dawn", "downtown"),
    ("real/real_001", 30, 31, 48, 128, "sunset", "old town"),
)
# Each task: name, number of its context, references as (seconds, frame, box).
TASKS = (
    ("syn_001_reappear_01", 0, [(0.5, 12, [0.25, 0.5, 0.5, 1.0])]),
    ("syn_001_revisit_01", 0, [(0.3, None, [0.0, 0.0, 1.0, 1.0]), (0.5, 12, [0.1, 0.2, 0.3, 0.9])]),
    ("syn_002_reappear_01", 1, [(0.25, 4, [0.5, 0.25, 0.75, 0.75])]),
    ("syn_003_reappear_01", 2, [(0.0, 0, [0.0, 0.5, 0.25, 1.0])]),
    ("real_001_reappear_01", 3, [(0.4, 12, [0.5, 0.5, 0.75, 1.0])]),
    ("real_001_revisit_01", 3, [(1.0, 30, [0.0, 0.0, 1.0, 1.0])]),
)


def drawn(number: int) -> torch.Tensor:
    """A context's frames [N, H, W, 3], bytes: the camera walks through a world of its own."""
    _, _, frames, height, width, time, district = CONTEXTS[number]
    picture = world.draw(100 + number, 40, time, district).movedim(0, -1)
    views = [picture[:height, 4 * i : 4 * i + width] for i in range(frames)]
    filled = [torch.cat([view, view[: height - len(view)]]) for view in views]
    return (torch.stack(filled) * 255).round().byte()


def write_video(path: Path, pictures: torch.Tensor, fps: int):
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w", format="mp4") as container:
        stream = container.add_stream("libx264rgb", rate=Fraction(fps), options={"crf": "0"})
        stream.height, stream.width = pictures.shape[1:3]
        stream.pix_fmt = "rgb24"
        for picture in pictures.numpy():
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode(None))


def row(number: int) -> dict:
    """A task's row, as CMBench's metadata.jsonl has it."""
    name, context, references = TASKS[number]
    path, _, _, _, _, time, district = CONTEXTS[context]
    return {
        "type": path.split("/")[0],
        "task_id": name,
        "scene": district,
        "video": f"videos/{path}.mp4",
        "context_clip_prompts": [
            {"clip_prompt": f"{district} at {time}, part {i}"} for i in range(6)
        ],
        "continue_prompt": f"{district} at {time}",
        "task_type": name.split("_")[2],
        "target_label": "house",
        "target_aliases": ["building"],
        "references": [
            {"timestamp_seconds": seconds, "bbox_xyxy_normalized": box}
            | ({} if frame is None else {"frame_index": frame})
            for seconds, frame, box in references
        ],
    }


def write_rows(folder: Path, rows: list):
    text = "".join((each if isinstance(each, str) else json.dumps(each)) + "\n" for each in rows)
    (folder / "metadata.jsonl").write_text(text, encoding="utf-8")


def write_data(folder: Path) -> Path:
    for number, (path, fps, *_) in enumerate(CONTEXTS):
        write_video(folder / f"videos/{path}.mp4", drawn(number), fps)
    write_rows(folder, [row(number) for number in range(len(TASKS))])
    return folder
