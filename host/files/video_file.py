"""A video file that grows: fragmented MP4, which any player reads while it does."""

import io
import os
import struct
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path

import av
import torch
from torch import Tensor

from ...rollout.tree_file import sync

TICKS = 1000  # of the file's clock, for a picture at a frame rate with denominator 1
# The last flag: names of our own for metadata, as in the host's videos.
FORMAT_OPTIONS = {
    "movflags": "frag_keyframe+empty_moov+default_base_moof+skip_trailer+use_metadata_tags"
}
# With x264's macroblock tree, small pictures came out as other bytes each time.
SAME_BYTES = {"crf": "18", "mbtree": "0"}
CODEC_OPTIONS = {
    **SAME_BYTES,
    "preset": "veryfast",
    "bf": "0",  # no frame refers to a later one
    "g": "1000000",  # one key frame, and so one fragment, for each call
    "sc_threshold": "0",
}
# Of a file that does not grow: as CMBench encodes its own (DeCoPrune/CMBench @ 4f933481).
WHOLE_OPTIONS = {**SAME_BYTES, "preset": "medium"}
BOX_HEADER = 8  # bytes from a box's name to its content: the name, version and flags


def fragment(
    pictures: Tensor, first: int, fps: float, metadata: Mapping[str, str] | None = None
) -> bytes:
    """What adds pictures `[N, H, W, 3]`, 0 to 1, to a video: one fragment that needs no other. They
    are number `first` and following; number 0 begins the file, whose header has the `metadata`.
    """
    rate = Fraction(fps).limit_denominator(1001)
    clock = {"video_track_timescale": str(rate.numerator * TICKS)}
    file = movie(pictures, rate, metadata, FORMAT_OPTIONS | clock, CODEC_OPTIONS)
    start = _header_size(file)
    data = bytearray(file[start:])
    _write_box(data, b"tfdt", struct.pack(">Q", first * rate.denominator * TICKS))  # its time
    _write_box(data, b"mfhd", struct.pack(">I", first + 1))  # its number
    return bytes(data) if first else file[:start] + bytes(data)


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


def _header_size(file: bytes) -> int:
    """Bytes before the first fragment, box by box: a text in the header may have any box's name."""
    at = 0
    while file[at + 4 : at + 8] != b"moof":
        at += int.from_bytes(file[at : at + 4], "big")
    return at


def movie(
    pictures: Tensor,
    rate: Fraction,
    metadata: Mapping[str, str] | None = None,
    format_options: Mapping[str, str] = {},
    codec_options: Mapping[str, str] = WHOLE_OPTIONS,
) -> bytes:
    """An MP4 of pictures `[N, H, W, 3]`, 0 to 1 or bytes, which begins at 0; by default a usual
    file, which does not grow. The same pictures are the same bytes.
    """
    sink = io.BytesIO()
    with av.open(sink, "w", format="mp4", options=dict(format_options)) as container:
        container.metadata.update(metadata or {})
        stream = container.add_stream("libx264", rate=rate, options=dict(codec_options))
        stream.height, stream.width = pictures.shape[1:3]
        stream.pix_fmt = "yuv420p"
        stream.codec_context.thread_count = 1  # however many cores there are
        for number, picture in enumerate(as_bytes(pictures).cpu().numpy()):
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts = number
            frame.time_base = 1 / rate
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return sink.getvalue()


def as_bytes(pictures: Tensor) -> Tensor:
    """Pictures, 0 to 1, as numbers from 0 to 255; those that are already stay."""
    return pictures if pictures.dtype == torch.uint8 else (pictures * 255).round().byte()
