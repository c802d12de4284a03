"""A video file that grows: fragmented MP4, which any player reads while it does."""

import io
import os
import struct
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path

import av
from torch import Tensor

from ...rollout.tree_file import sync

TICKS = 1000  # of the file's clock, for a picture at a frame rate with denominator 1
# The last flag: names of our own for metadata, as in the host's videos.
FORMAT_OPTIONS = {
    "movflags": "frag_keyframe+empty_moov+default_base_moof+skip_trailer+use_metadata_tags"
}
CODEC_OPTIONS = {
    "crf": "18",
    "preset": "veryfast",
    "bf": "0",  # no frame refers to a later one
    "g": "1000000",  # one key frame, and so one fragment, for each call
    "sc_threshold": "0",
}
BOX_HEADER = 8  # bytes from a box's name to its content: the name, version and flags


def fragment(
    pictures: Tensor, first: int, fps: float, metadata: Mapping[str, str] | None = None
) -> bytes:
    """What adds pictures `[N, H, W, 3]`, 0 to 1, to a video: one fragment that needs no other. They
    are number `first` and following; number 0 begins the file, whose header has the `metadata`.
    """
    rate = Fraction(fps).limit_denominator(1001)
    movie = _movie(pictures, rate, metadata)
    start = _header_size(movie)
    data = bytearray(movie[start:])
    _write_box(data, b"tfdt", struct.pack(">Q", first * rate.denominator * TICKS))  # its time
    _write_box(data, b"mfhd", struct.pack(">I", first + 1))  # its number
    return bytes(data) if first else movie[:start] + bytes(data)


def append(path: Path, data: bytes):
    """Add fragments to a video file, which is as it was before where that fails: PermissionError
    where another program holds it, any other OSError where the disk has no room for it.
    """
    size_before = path.stat().st_size
    try:
        with open(path, "ab") as file:
            file.write(data)
        sync(path)
    except OSError:
        os.truncate(path, size_before)
        raise


def _write_box(data: bytearray, name: bytes, content: bytes):
    """Put `content` at the begin of the content of the first box of that name."""
    at = data.index(name) + BOX_HEADER
    data[at : at + len(content)] = content


def _header_size(movie: bytes) -> int:
    """Bytes before the first fragment, box by box: a text in the header may have any box's name."""
    at = 0
    while movie[at + 4 : at + 8] != b"moof":
        at += int.from_bytes(movie[at : at + 4], "big")
    return at


def _movie(pictures: Tensor, rate: Fraction, metadata: Mapping[str, str] | None) -> bytes:
    """An MP4 of one fragment that begins at 0."""
    sink = io.BytesIO()
    options = {**FORMAT_OPTIONS, "video_track_timescale": str(rate.numerator * TICKS)}
    with av.open(sink, "w", format="mp4", options=options) as container:
        container.metadata.update(metadata or {})
        stream = container.add_stream("libx264", rate=rate, options=CODEC_OPTIONS)
        stream.height, stream.width = pictures.shape[1:3]
        stream.pix_fmt = "yuv420p"
        # The same pictures are the same bytes, however many cores there are.
        stream.codec_context.thread_count = 1
        for number, picture in enumerate((pictures * 255).round().byte().cpu().numpy()):
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts = number
            frame.time_base = 1 / rate
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return sink.getvalue()
