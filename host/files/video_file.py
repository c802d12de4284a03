"""A video file that grows: fragmented MP4, which any player reads while it does."""

import io
import os
import struct
from fractions import Fraction
from pathlib import Path

import av
from torch import Tensor

TICKS = 1000  # of the file's clock, in a picture's time over the frame rate's denominator
OPTIONS = {"movflags": "frag_keyframe+empty_moov+default_base_moof+skip_trailer"}


def append_pictures(path: Path, pictures: Tensor, first: int, fps: float):
    """Add pictures `[N, H, W, 3]`, 0 to 1, which are number `first` and following, as one fragment
    that needs no other; number 0 begins the file.

    Where the disk has no room for it, the file is as it was before.
    """
    rate = Fraction(fps).limit_denominator(1001)
    data = _fragment(pictures, rate)
    start = 0 if first == 0 else data.index(b"moof") - 4
    data = bytearray(data[start:])
    at = data.index(b"tfdt")  # its eight bytes after version and flags: when the fragment begins
    data[at + 8 : at + 16] = struct.pack(">Q", first * rate.denominator * TICKS)
    at = data.index(b"mfhd")  # fragments are counted
    data[at + 8 : at + 12] = struct.pack(">I", first + 1)
    stood = path.stat().st_size if first else 0
    try:
        with open(path, "ab") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        os.truncate(path, stood)
        raise


def _fragment(pictures: Tensor, rate: Fraction) -> bytes:
    """An MP4 of one fragment that begins at 0."""
    sink = io.BytesIO()
    with av.open(
        sink,
        "w",
        format="mp4",
        options={**OPTIONS, "video_track_timescale": str(rate.numerator * TICKS)},
    ) as container:
        stream = container.add_stream(
            "libx264",
            rate=rate,
            options={
                "crf": "18",
                "preset": "veryfast",
                "bf": "0",
                "g": "1000000",
                "sc_threshold": "0",
            },
        )
        stream.height, stream.width = pictures.shape[1:3]
        stream.pix_fmt = "yuv420p"
        stream.codec_context.thread_count = (
            1  # the same pictures are the same bytes, however many cores there are
        )
        for number, picture in enumerate((pictures * 255).round().byte().cpu().numpy()):
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts, frame.time_base = number, 1 / rate
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return sink.getvalue()
