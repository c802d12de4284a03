"""Numbers in fewer bits, with scales and zero points."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

SCALES = torch.float16


class Format(NamedTuple):
    """How numbers from 0 to 1 are written down."""

    encode: Callable[[Tensor], Tensor]  # fp32 [..., D] -> uint8 [..., D / channels_per_byte]
    decode: Callable[[Tensor], Tensor]  # the numbers again, fp32
    channels_per_byte: int


def _pack(x: Tensor) -> Tensor:
    x = (x * 15).round().to(torch.uint8)
    return x[..., ::2] | x[..., 1::2] << 4


def _unpack(x: Tensor) -> Tensor:
    return torch.stack([x & 15, x >> 4], -1).flatten(-2).float() / 15


FP8_MOST = torch.finfo(torch.float8_e4m3fn).max
FORMATS = {  # fp8 is finest around 0, so the middle of the range lies there
    "fp8": Format(
        lambda x: ((2 * x - 1) * FP8_MOST).to(torch.float8_e4m3fn).view(torch.uint8),
        lambda x: (x.view(torch.float8_e4m3fn).float() / FP8_MOST + 1) / 2,
        1,
    ),
    "int8": Format(lambda x: (x * 255).round().to(torch.uint8), lambda x: x.float() / 255, 1),
    "int4": Format(_pack, _unpack, 2),
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
        self.form = form
        self.codes = torch.empty(
            (rows, shape[0], shape[1] // form.channels_per_byte), dtype=torch.uint8, device=device
        )
        self.scale, self.zero = (torch.empty(scales, dtype=SCALES, device=device) for _ in range(2))

    def write(self, first: int, x: Tensor, scale: Tensor, zero: Tensor):
        """Rows from `first` on, fp32 `[n, H, D]`; `scale` and `zero` by row, as they are held."""
        self.codes[first : first + len(x)] = self.form.encode(
            ((x - zero.float()) / scale.float().clamp_min(1e-7)).clamp(0, 1)
        )

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
