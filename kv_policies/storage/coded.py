"""Numbers in fewer bits, with scales and zero points."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

SCALES = torch.float16
LEAST_SCALE = 1e-7  # equal numbers have a range of 0, which nothing can be divided by
FP8_MOST = torch.finfo(torch.float8_e4m3fn).max


class Format(NamedTuple):
    """How numbers from 0 to 1 are written."""

    encode: Callable[[Tensor], Tensor]  # fp32 [..., D] -> uint8 [..., D / channels_per_byte]
    decode: Callable[[Tensor], Tensor]  # the numbers again, fp32
    channels_per_byte: int


def _encode_fp8(x: Tensor) -> Tensor:
    """fp8 is finest around 0, so the middle of the range is put there."""
    around_zero = (2 * x - 1) * FP8_MOST
    return around_zero.to(torch.float8_e4m3fn).view(torch.uint8)


def _decode_fp8(codes: Tensor) -> Tensor:
    around_zero = codes.view(torch.float8_e4m3fn).float()
    return (around_zero / FP8_MOST + 1) / 2


def _encode_int8(x: Tensor) -> Tensor:
    return (x * 255).round().to(torch.uint8)


def _decode_int8(codes: Tensor) -> Tensor:
    return codes.float() / 255


def _encode_int4(x: Tensor) -> Tensor:
    """Two neighbouring channels in a byte, the first one in its lower half."""
    codes = (x * 15).round().to(torch.uint8)
    first = codes[..., ::2]
    second = codes[..., 1::2]
    return first | (second << 4)


def _decode_int4(codes: Tensor) -> Tensor:
    first = codes & 15
    second = codes >> 4
    return torch.stack([first, second], -1).flatten(-2).float() / 15


FORMATS = {
    "fp8": Format(_encode_fp8, _decode_fp8, 1),
    "int8": Format(_encode_int8, _decode_int8, 1),
    "int4": Format(_encode_int4, _decode_int4, 2),
}


class Coded:
    """Rows `[N, H, D]` as codes, with the scales and zero points that belong to them."""

    def __init__(
        self,
        form: Format,
        rows: int,
        scales: tuple[int, int, int],
        shape: tuple[int, int],
        device: torch.device,
    ):
        """`scales`: shape of the table of scales; `shape`: (H, D)."""
        heads, head_dim = shape
        bytes_per_head = head_dim // form.channels_per_byte
        self.form = form
        self.codes = torch.empty((rows, heads, bytes_per_head), dtype=torch.uint8, device=device)
        self.scale = torch.empty(scales, dtype=SCALES, device=device)
        self.zero = torch.empty(scales, dtype=SCALES, device=device)

    def write(self, first: int, x: Tensor, scale: Tensor, zero: Tensor):
        """Rows from `first` on, fp32 `[n, H, D]`; `scale` and `zero` by row, as they are held."""
        divisor = scale.float().clamp_min(LEAST_SCALE)
        in_range = (x - zero.float()) / divisor
        # A rounded scale or zero point can put numbers a little outside of 0 to 1.
        codes = self.form.encode(in_range.clamp(0, 1))
        self.codes[first : first + len(x)] = codes

    def read(self, rows: slice, scale: Tensor, zero: Tensor) -> Tensor:
        return self.form.decode(self.codes[rows]) * scale.float() + zero.float()

    def grow(self, rows: int, scales: int):
        """Into larger buffers, one at a time; everything in use is kept."""
        for name, count in (("codes", rows), ("scale", scales), ("zero", scales)):
            old = getattr(self, name)
            new = old.new_empty((count, *old.shape[1:]))
            new[: len(old)] = old
            setattr(self, name, new)

    def nbytes(self) -> int:
        return self.codes.nbytes + self.scale.nbytes + self.zero.nbytes
