"""Kept tokens in fewer bits, once they are no longer among the latest; or in main memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from ..cache.pages import BankPages
from ..take import Geometry
from .coded import FORMATS
from .coded_bank import CodedBankPages
from .coded_keys import GROUP
from .coded_pages import Room
from .main_pages import MainBankPages
from .storage import Storage

DTYPES = ("model", *FORMATS)
DEVICES = ("model", "cpu")


@dataclass(frozen=True)
class KVStorage(Storage):
    """`dtype` of tokens that have left the latest `full_chunks` chunks; a shot's first
    `sink_frames` latent frames stay in the model's dtype.

    With the `device` "cpu" all history lies in main memory instead.
    """

    dtype: str = "int8"
    full_chunks: int = 2
    sink_frames: int = 3
    device: str = "model"
    title: ClassVar = "KV Storage"

    def __post_init__(self):
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype is '{self.dtype}'. Use one of: {', '.join(DTYPES)}.")
        if self.device not in DEVICES:
            raise ValueError(f"device is '{self.device}'. Use one of: {', '.join(DEVICES)}.")
        if self.device == "cpu" and self.dtype != "model":
            raise ValueError(
                f"dtype is {self.dtype} and device cpu: what lies in main memory stays in the "
                "model's dtype. Use dtype model there, or device model."
            )
        if self.full_chunks < 1 or self.sink_frames < 0:
            raise ValueError(
                f"full_chunks is {self.full_chunks} and sink_frames {self.sink_frames}. Use at "
                "least 1 and 0."
            )

    @property
    def is_plain(self) -> bool:
        return self.dtype == self.device == "model"

    def check(self, geometry: Geometry):
        if self.dtype == "model":
            return
        if geometry.head_dim % FORMATS[self.dtype].channels_per_byte:
            raise ValueError(
                f"A head of this model has {geometry.head_dim} channels, which {self.dtype} "
                "cannot pack. Use fp8 or int8."
            )

    def pages(
        self,
        capacity: int,
        heads: list[int],
        geometry: Geometry,
        dtype: torch.dtype,
        device: torch.device,
    ) -> BankPages:
        chunk = geometry.chunk_frames * geometry.tokens_per_frame
        if self.device == "cpu":
            return MainBankPages(capacity, chunk, heads, geometry.head_dim, dtype, device)
        if self.dtype == "model":
            return super().pages(capacity, heads, geometry, dtype, device)
        return CodedBankPages.empty(
            form=FORMATS[self.dtype],
            room=Room(
                sink=self.sink_frames * geometry.tokens_per_frame,
                latest=self.full_chunks * chunk,
                left_over=GROUP,
                chunk=chunk,
            ),
            capacity=capacity,
            heads=heads,
            head_dim=geometry.head_dim,
            dtype=dtype,
            device=device,
            sink_frames=self.sink_frames,
            full_frames=self.full_chunks * geometry.chunk_frames,
        )

    def anywhere(self) -> Storage:
        return Storage() if self.dtype == "model" else self
