"""A video file, through PyAV, which ComfyUI brings."""

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

import av
import torch
from av.video.reformatter import Interpolation
from torch import Tensor


class Source(NamedTuple):
    """What a video says of itself."""

    frames: int
    fps: float
    height: int
    width: int


def probe(video: Path) -> Source:
    """ValueError, in a few words, for a file that cannot be read as a video."""
    try:
        with av.open(str(video)) as container:
            if not container.streams.video:
                raise ValueError(f"{video.name} has no picture")
            stream = container.streams.video[0]
            rate = stream.guessed_rate or stream.average_rate
            frames = stream.frames or sum(packet.size > 0 for packet in container.demux(stream))
            if not frames or not rate:
                raise ValueError(f"{video.name} has no pictures, or does not say how many a second")
            return Source(frames, float(rate), stream.height, stream.width)
    except av.FFmpegError as error:
        raise ValueError(f"{video.name} cannot be read as a video ({error.strerror})") from None


def pictures(video: Path, numbers: Collection[int]) -> Iterator[tuple[int, Tensor]]:
    """Frames with these numbers, in their order: number, and picture [H, W, 3] as bytes. Colours
    as OpenCV's reader makes them. ValueError where the file ends before the last.
    """
    wanted = set(numbers)
    with av.open(str(video)) as container:
        stream = container.streams.video[0]
        stream.thread_type = "AUTO"
        for number, frame in enumerate(container.decode(stream)):
            if not wanted:
                return
            if number in wanted:
                wanted.remove(number)
                picture = frame.reformat(format="rgb24", interpolation=Interpolation.BICUBIC)
                yield number, torch.from_numpy(picture.to_ndarray())
    if wanted:
        raise ValueError(
            f"{video.name} ends before frame {min(wanted)}, though it says that it has more. "
            "Download or convert it again."
        )


def picture(video: Path, number: int) -> Tensor:
    """One frame [H, W, 3], as bytes."""
    return next(found for _, found in pictures(video, [number]))
