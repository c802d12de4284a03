"""What a take should show again: a picture of the context and a box in it."""

import math
from typing import NamedTuple

import torch

WHOLE = 1e-8  # a bound this near to a whole pixel is that pixel, as in CMBench's dataset.py

Box = tuple[int, int, int, int]  # left, top, right, bottom; right and bottom are outside


class Reference(NamedTuple):
    """One of a task's references. picture: `[H, W, 3]` uint8, at the size of the context's video;
    box: left, top, right, bottom as parts of the picture; frame: the picture's number there.
    """

    picture: torch.Tensor
    box: tuple[float, float, float, float]
    frame: int

    def pixels(self) -> Box:
        """The box in whole pixels of its own picture."""
        height, width = self.picture.shape[:2]
        return pixel_box(self.box, width, height)


def pixel_box(box: tuple[float, float, float, float], width: int, height: int) -> Box:
    """The smallest box of whole pixels around one in parts of the picture."""
    left, top, right, bottom = (
        round(bound) if abs(bound - round(bound)) < WHOLE else bound
        for bound in (box[0] * width, box[1] * height, box[2] * width, box[3] * height)
    )
    return math.floor(left), math.floor(top), math.ceil(right), math.ceil(bottom)


def scaled_box(box: Box, was: tuple[int, int], now: tuple[int, int]) -> Box:
    """A pixel box in a picture of another size (width, height): at least one pixel, and inside."""
    left, right = _scaled(box[0], box[2], was[0], now[0])
    top, bottom = _scaled(box[1], box[3], was[1], now[1])
    return left, top, right, bottom


def crop(picture: torch.Tensor, box: Box) -> torch.Tensor:
    left, top, right, bottom = box
    return picture[top:bottom, left:right]


def _scaled(first: int, end: int, was: int, now: int) -> tuple[int, int]:
    first = min(max(round(first * now / was), 0), now - 1)
    return first, min(max(round(end * now / was), first + 1), now)
