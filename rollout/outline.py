"""Another storage's pages without their content: they have a size, and nothing in them."""
from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..kv_policies import Bank, Pages, Storage


@dataclass(frozen=True)
class Outline(Storage):
    """Another storage's pages without their content: nothing is written, moved or turned."""

    of: Storage

    def pages(self, *shape) -> list[Pages]:
        return [OutlinePages(pages) for pages in self.of.pages(*shape)]

    def settled(self, bank: Bank) -> tuple[int, int]:
        return self.of.settled(bank)

    def row_bytes(self, heads: int, head_dim: int) -> float:
        return self.of.row_bytes(heads, head_dim)


class OutlinePages(Pages):
    place = torch.device("cpu")

    def __init__(self, pages: Pages):
        self.hold, self.grow, self.restore, self.nbytes, self.host_bytes = pages.hold, pages.grow, pages.restore, pages.nbytes, pages.host_bytes

    def write(self, *written): ...

    def gather(self, *moved): ...

    def turn(self, *turned): ...

    def settle(self, *settled): ...

    def read(self, rows: slice) -> tuple[Tensor, Tensor]:
        """Zeros of one channel, for a policy that looks at keys."""
        return (torch.zeros(1, rows.stop - rows.start, 1, 1),) * 2
