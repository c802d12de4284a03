"""A context video as the frames that the model's VAE encodes: at its rate, in its size, padded to
whole chunks.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from .source import Source, pictures, probe

FPS = 16.0
STRIDE = 4  # pixel frames of a latent frame, after the first
AT_ONCE = 32  # pictures resized together


def resampled(source: Source, fps: float = FPS) -> list[int]:
    """Numbers of the source's frames that lie nearest to the times of `fps` frames a second."""
    count = int((source.frames - 1) * fps / source.fps) + 1
    return [min(source.frames - 1, round(i * source.fps / fps)) for i in range(count)]


def context_frames(pixel_frames: int, chunk_frames: int) -> int:
    """Latent frames of a context: a first one and as many as hold all the rest, in whole chunks."""
    holding = 1 + -(-(pixel_frames - 1) // STRIDE)
    return -(-holding // chunk_frames) * chunk_frames


def pixel_frames(latent_frames: int) -> int:
    return STRIDE * (latent_frames - 1) + 1


def context_pictures(video: Path, size: tuple[int, int], chunk_frames: int) -> Tensor:
    """The context's frames [N, height, width, 3], 0 to 1; the last one repeats to the end of its
    chunk. The picture fills the size, whatever its own shape.
    """
    numbers = resampled(probe(video))
    resized = torch.cat(list(_resized(video, numbers, size)))
    wanted = pixel_frames(context_frames(len(resized), chunk_frames))
    return torch.cat([resized, resized[-1:].expand(wanted - len(resized), -1, -1, -1)])


def _resized(video: Path, numbers: list[int], size: tuple[int, int]) -> Iterator[Tensor]:
    """In batches, so that no copy of the whole video lies beside it."""
    batch, times = [], Counter(numbers)
    for number, picture in pictures(video, times):
        batch += [picture] * times[number]
        if len(batch) >= AT_ONCE:
            yield _resize(batch, size)
            batch = []
    if batch:
        yield _resize(batch, size)


def _resize(batch: list[Tensor], size: tuple[int, int]) -> Tensor:
    x = torch.stack(batch).movedim(-1, 1).float() / 255
    x = torch.nn.functional.interpolate(x, size=size, mode="bilinear", align_corners=False)
    return x.movedim(1, -1)
