"""Two videos as one, beside each other."""

import itertools
import os
from pathlib import Path

import av
import numpy as np

GAP = 16  # black pixels between the two
CODEC_OPTIONS = {"crf": "15", "preset": "medium"}  # hardly a loss: people judge the takes


def join(left: Path, right: Path, target: Path) -> int:
    """Write both into one video that ends with the shorter one; how many pictures the longer one
    has left over. ValueError, in a sentence, where size or rate differ, or one cannot be read.
    """
    try:
        with av.open(left) as first, av.open(right) as second:
            return _join(first, second, Path(target))
    except av.FFmpegError as error:
        raise ValueError(f"{left} or {right} is no video that can be read: {error}") from None


def _join(first, second, target: Path) -> int:
    # 1. Both must be alike.
    streams = [first.streams.video[0], second.streams.video[0]]
    sizes = [(stream.width, stream.height, stream.average_rate) for stream in streams]
    if sizes[0] != sizes[1]:
        told = [f"{width} x {height} at {rate} per second" for width, height, rate in sizes]
        raise ValueError(
            f"{first.name} is {told[0]} and {second.name} {told[1]}: such a pair tells people "
            "which is which. Make both takes alike."
        )
    width, height, rate = sizes[0]

    # 2. Picture beside picture; the codec wants even sides.
    black = np.zeros((height + height % 2, 2 * width + GAP, 3), np.uint8)
    left_over = 0
    part = target.with_name(f"{target.name}.part")
    with av.open(part, "w", format="mp4", options={"movflags": "+faststart"}) as container:
        stream = container.add_stream("libx264", rate=rate, options=CODEC_OPTIONS)
        stream.width, stream.height, stream.pix_fmt = black.shape[1], black.shape[0], "yuv420p"
        for pair in itertools.zip_longest(first.decode(video=0), second.decode(video=0)):
            if None in pair:
                left_over += 1
                continue
            black[:height, :width] = pair[0].to_ndarray(format="rgb24")
            black[:height, width + GAP :] = pair[1].to_ndarray(format="rgb24")
            container.mux(stream.encode(av.VideoFrame.from_ndarray(black, format="rgb24")))
        container.mux(stream.encode())
    os.replace(part, target)
    return left_over
