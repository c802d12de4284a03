"""The fourth slot of a policy: how the kept bytes are held."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ..cache.pages import BankPages, Pages
from ..take import Geometry, Take

if TYPE_CHECKING:
    from ..policy import KVPolicy


@dataclass(frozen=True)
class Storage:
    """Slot 4: how the kept bytes are held. This one: in the model's dtype, on the model's device."""

    @property
    def is_plain(self) -> bool:
        """Whether rows lie on the model's device in the model's dtype."""
        return True

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
