"""The fourth slot of a policy, how the kept bytes are held: in fewer bits, once they are no longer
among the latest; or in main memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ..cache.pages import Pages
from ..take import HISTORY, Geometry, Take
from .coded import FORMATS, SCALES
from .coded_keys import GROUP
from .coded_pages import Buffer, CodedPages, Room
from .host_pages import HostPages, Ring

if TYPE_CHECKING:
    from ..cache.bank import Bank
    from ..policy import KVPolicy

DTYPES, DEVICES = ("model", *FORMATS), ("model", "cpu")


@dataclass(frozen=True)
class Storage:
    """Slot 4: how the kept bytes are held. This one: in the model's dtype, on the model's device."""

    def check(self, policy: KVPolicy, geometry: Geometry, take: Take):
        """Raise ValueError, in a sentence, when tokens cannot be held so with the other slots, this
        model or take.
        """

    def pages(
        self,
        capacity: int,
        heads: list[int],
        geometry: Geometry,
        dtype: torch.dtype,
        device: torch.device,
    ) -> list[Pages]:
        """Where a bank holds its rows, by layer; `heads` counts each layer's."""
        return [Pages(capacity, count, geometry.head_dim, dtype, device) for count in heads]

    def settled(self, bank: Bank) -> tuple[int, int]:
        """When a chunk is committed, of the rows that are no longer among the latest: how many
        first ones stay in full precision, and up to which row they are coded.
        """
        return 0, 0

    def row_bytes(self, heads: int, head_dim: int) -> float:
        """Bytes of a coded row of one layer."""
        return 0

    def anywhere(self) -> Storage:
        """The storage that holds the same bits on the model's device: either goes on from what the
        other left.
        """
        return self


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

    def __post_init__(self):
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype is '{self.dtype}'. Use one of: {', '.join(DTYPES)}.")
        if self.device not in DEVICES:
            raise ValueError(f"device is '{self.device}'. Use one of: {', '.join(DEVICES)}.")
        if self.device == "cpu" and self.dtype != "model":
            raise ValueError(
                f"dtype is {self.dtype} and device cpu: what lies in main memory stays in the "
                "model's dtype. Use dtype model there, "
                "or device model."
            )
        if self.full_chunks < 1 or self.sink_frames < 0:
            raise ValueError(
                f"full_chunks is {self.full_chunks} and sink_frames {self.sink_frames}. Use at "
                "least 1 and 0."
            )

    def check(self, policy: KVPolicy, geometry: Geometry, take: Take):
        if self.dtype == self.device == "model":
            return
        if set(policy.schedule.memories(policy.retention, geometry, take)) != {HISTORY}:
            raise ValueError(
                f"{type(policy.schedule).__name__} has short memories of its own, which stay on "
                "the device in the model's dtype. "
                "Remove KV Storage, or use the clean-pass loop."
            )
        if self.dtype == "model":
            return
        moving = policy.retention.moving_frames(take)
        if moving > self.sink_frames:
            raise ValueError(
                f"{type(policy.retention).__name__} turns the keys of {moving} latent frames "
                f"again and again, and {self.dtype} would "
                "round them anew each time. Leave the sink in place (absolute) or re-index once "
                "(auto), or use sink_frames of at least "
                f"{moving} here."
            )
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
    ) -> list[Pages]:
        tokens = geometry.tokens_per_frame
        if self.device == "cpu":
            ring = Ring(capacity * max(heads) * geometry.head_dim, dtype, device)
            return [
                HostPages(
                    capacity,
                    geometry.chunk_frames * tokens,
                    count,
                    geometry.head_dim,
                    dtype,
                    device,
                    ring,
                    layer == 0,
                )
                for layer, count in enumerate(heads)
            ]
        if self.dtype == "model":
            return super().pages(capacity, heads, geometry, dtype, device)
        room = Room(
            self.sink_frames * tokens,
            self.full_chunks * geometry.chunk_frames * tokens,
            GROUP,
            geometry.chunk_frames * tokens,
        )
        buffer = Buffer(capacity * max(heads) * geometry.head_dim, dtype, device)
        return [
            CodedPages(
                FORMATS[self.dtype],
                room,
                capacity,
                count,
                geometry.head_dim,
                dtype,
                device,
                buffer,
                layer == 0,
            )
            for layer, count in enumerate(heads)
        ]

    def settled(self, bank: Bank) -> tuple[int, int]:
        if self.dtype == "model":
            return 0, 0
        frame = bank.frame[: bank.committed].contiguous()
        latest = (
            max(0, int(frame[-1]) + 1 - self.full_chunks * bank.geometry.chunk_frames)
            if len(frame)
            else 0
        )  # the first of the latest frames
        sink, old = torch.searchsorted(
            frame, torch.tensor([min(bank.shot + self.sink_frames, latest), latest])
        ).tolist()
        # Where rows are coded, the sink before them is what it was then; and only whole groups are
        # added behind.
        done = bank.sink_rows + bank.coded_rows if bank.coded_rows else max(bank.sink_rows, sink)
        return sink, done + max(0, old - done) // GROUP * GROUP

    def row_bytes(self, heads: int, head_dim: int) -> int:
        """Of a coded row: the codes of key and value, the value's scale and zero point, and the
        key's share of its group's.
        """
        if self.dtype == "model":
            return 0
        return heads * (
            2 * head_dim // FORMATS[self.dtype].channels_per_byte
            + 2 * SCALES.itemsize * (1 + head_dim / GROUP)
        )

    def anywhere(self) -> Storage:
        return Storage() if self.dtype == "model" else self
