"""The direct box: is what was in a box of the context still in that box? Not CMBench's score.

CMBench's published code has it as an ablation of its authors, marked as not official
(`evaluation/direct_dino.py`): the reference's box is cut out of its picture and, scaled to the
take's size, out of every 4th picture of the take; DINOv2 describes the crops, and the cosine with
the best of them is the reference's. A take's number is the mean over its references. Nothing looks
for the object: one that moved, or a camera that turned, counts as forgotten.
"""

from collections.abc import Sequence
from pathlib import Path

import torch

from .models import dino as load_dino
from .models import features
from .reference import Reference, crop, scaled_box


def direct_box(
    frames: torch.Tensor,
    references: Sequence[Reference],
    dino: Path,
    device: str = "cpu",
    stride: int = 4,
) -> dict:
    """The number, and each reference's best picture.

    frames: the take's pictures `[T, H, W, 3]`, uint8, the continuation alone; dino: folder of a
    DINOv2; stride: every how many pictures one is looked at. Errors: ValueError for a folder that
    holds no DINOv2.
    """
    model = load_dino(Path(dino), device)
    height, width = frames.shape[1:3]
    rows = []
    for reference in references:
        # 1. the box, in its own picture and in the take's
        box = reference.pixels()
        size = (reference.picture.shape[1], reference.picture.shape[0])
        here = scaled_box(box, size, (width, height))

        # 2. the reference's crop beside those of the take
        images = [crop(reference.picture, scaled_box(box, size, size))]
        images += [crop(frame, here) for frame in frames[::stride]]
        first, rest = features(images, model).split([1, len(images) - 1])

        # 3. the best one
        best, place = (rest @ first[0]).max(0)
        rows.append(
            {
                "frame": reference.frame,
                "best_score": best.item(),
                "best_frame": place.item() * stride,
            }
        )
    return {"score": sum(row["best_score"] for row in rows) / len(rows), "references": rows}
