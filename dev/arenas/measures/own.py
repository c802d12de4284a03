"""Keepsake's own measure: is the object shown again, wherever it is? Not CMBench's score.

CMBench scores by OWL-ViT, SAM2 and DINOv2 as well, but its evaluator is not public. So these
choices are ours, and figures of the two do not compare:

found     OWL-ViT gets "a photo of a LABEL" for the label and each alias (cut to the words that it
          reads), and every box with a score of at least .1 counts, up to the 5 best of a picture
cut out   SAM2 gets the box and gives one mask; outside of it is DINOv2's mean colour. An empty
          mask leaves the box as it is. The crop stands in the middle of a square, a seventh larger
          than its longer side, so that DINOv2's own cropping cuts nothing of it
alike     the cosine of DINOv2's pooled outputs, of the reference (its given box, cut out alike)
          and of what was found; the best over boxes and pictures, every 4th one
score     the mean over references; 0 where nothing was found
scene     a place, not an object (CMBench's *Revisit*): nobody looks for it. The reference's box is
          compared with the whole picture, both without a mask
"""

from collections.abc import Sequence
from pathlib import Path

import torch

from . import models
from .reference import Box, Reference, crop, pixel_box

MOST = 5  # boxes of a picture


def own_measure(
    frames: torch.Tensor,
    references: Sequence[Reference],
    labels: Sequence[str],
    owl: Path,
    sam: Path,
    dino: Path,
    device: str = "cpu",
    stride: int = 4,
    threshold: float = 0.1,
    scene: bool = False,
) -> dict:
    """The score, the part of the pictures in which something was found, and each reference's best.

    frames: the take's pictures `[T, H, W, 3]`, uint8, the continuation alone; labels: what to look
    for, a label and its aliases; owl, sam, dino: folders of an OWL-ViT, a SAM2 and a DINOv2;
    threshold: of OWL-ViT's score. Errors: ValueError for a folder that holds another model, and
    for a transformers without SAM2.
    """
    describe = models.dino(Path(dino), device)
    if not scene:
        find, cut = models.detector(Path(owl), device), models.masks(Path(sam), device)

    # 1. every object of the pictures, cut out
    images, numbers = [], []
    for number in range(0, len(frames), stride):
        frame = frames[number]
        if scene:
            objects = [frame]
        else:
            objects = cut_out(frame, found(frame, labels, find, threshold), cut)
        images += [squared(image, describe) for image in objects]
        numbers += [number] * len(objects)
    watched = len(range(0, len(frames), stride))
    there = models.features(images, describe) if images else None

    # 2. the best of them for each reference
    rows = []
    for reference in references:
        row = {"frame": reference.frame, "best_score": 0.0, "best_frame": None}
        if there is not None:
            box = reference.pixels()
            wanted = crop(reference.picture, box)
            if not scene:
                (wanted,) = cut_out(reference.picture, [box], cut)
            alike = there @ models.features([squared(wanted, describe)], describe)[0]
            best, place = alike.max(0)
            row.update(best_score=best.item(), best_frame=numbers[place])
        rows.append(row)
    return {
        "score": sum(row["best_score"] for row in rows) / len(rows),
        "found": len(set(numbers)) / watched,
        "references": rows,
    }


def found(
    picture: torch.Tensor, labels: Sequence[str], owl: models.Loaded, threshold: float
) -> list[Box]:
    """The boxes, in whole pixels, in which OWL-ViT sees one of the labels; the best first."""
    height, width = picture.shape[:2]
    inputs = owl.processor(
        text=[[f"a photo of a {label}" for label in labels]],
        images=picture.permute(2, 0, 1),
        truncation=True,
        return_tensors="pt",
    )
    (seen,) = owl.processor.post_process_grounded_object_detection(
        owl(inputs), threshold=threshold, target_sizes=[(height, width)]
    )
    best = seen["scores"].argsort(descending=True)[:MOST]
    sizes = torch.tensor([width, height, width, height])
    parts = (seen["boxes"][best].cpu() / sizes).clamp(0, 1).tolist()
    boxes = [pixel_box(tuple(box), width, height) for box in parts]
    return [box for box in boxes if box[0] < box[2] and box[1] < box[3]]


def cut_out(picture: torch.Tensor, boxes: Sequence[Box], sam: models.Loaded) -> list[torch.Tensor]:
    """Each box's crop `[h, w, 4]`: the picture, and where SAM2 sees the object of the box."""
    if not boxes:
        return []
    inputs = sam.processor(
        images=picture.permute(2, 0, 1),
        input_boxes=[[list(map(float, box)) for box in boxes]],
        return_tensors="pt",
    )
    sizes = inputs.pop("original_sizes")
    outputs = sam(inputs, multimask_output=False)
    (seen,) = sam.processor.post_process_masks(outputs.pred_masks.cpu(), sizes)
    return [
        torch.cat([crop(picture, box), crop(mask[0], box)[..., None].to(torch.uint8)], -1)
        for box, mask in zip(boxes, seen)
    ]


def squared(image: torch.Tensor, dino: models.Loaded) -> torch.Tensor:
    """A crop in the middle of a square of DINOv2's mean colour, which is also outside its mask."""
    height, width = image.shape[:2]
    mean = torch.tensor([round(255 * part) for part in dino.processor.image_mean])
    side = -(-max(height, width) * 8 // 7)  # DINOv2 scales it to 256 and keeps the middle 224
    square = mean.to(torch.uint8).expand(side, side, 3).clone()
    top, left = (side - height) // 2, (side - width) // 2
    place = square[top : top + height, left : left + width]
    mask = image[..., 3:].bool()
    place[:] = torch.where(mask, image[..., :3], place) if mask.any() else image[..., :3]
    return square
