"""The fourth slot of a policy: how the kept bytes are held."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from ..cache.pages import BankPages, Pages
from ..take import Geometry


@dataclass(frozen=True)
class Storage:
    """Slot 4: how the kept bytes are held. This one: in the model's dtype on its device."""

    # What rows may be held in, and the first latent frames of a shot that never are.
    dtype = "model"
    sink_frames = 0

    # its node's name without "KV Policy: "; empty: the class's own in words, see `title_of`
    title: ClassVar[str] = ""

    @property
    def is_plain(self) -> bool:
        """Whether rows lie on the model's device in the model's dtype."""
        return True

    @property
    def has_fewer_bits(self) -> bool:
        """Whether rows may be held in fewer bits than the model's dtype has."""
        return self.dtype != "model"

    def check(self, geometry: Geometry):
        """Raise ValueError, in a sentence, when tokens of this model cannot be held so."""

    def pages(
        self,
        capacity: int,
        heads: list[int],
        geometry: Geometry,
        dtype: torch.dtype,
        device: torch.device,
    ) -> BankPages:
        """Where a bank holds its rows; `heads` counts the heads of each layer."""
        return BankPages(
            [Pages(capacity, count, geometry.head_dim, dtype, device) for count in heads]
        )

    def anywhere(self) -> Storage:
        """The storage that holds the same bits on the model's device: either goes on from what the
        other left.
        """
        return self
