"""Another storage's pages without their content: they have a size, and nothing in them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..kv_policies import Bank, Pages, State, Storage


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
    """Sizes are the other pages' own; nothing is written, moved or turned."""

    place = torch.device("cpu")

    def __init__(self, pages: Pages):
        self.pages = pages

    def write(self, rows: slice, k: Tensor, v: Tensor): ...

    def gather(self, rows: Tensor, target: slice, cuts: tuple[int, int]): ...

    def turn(self, rows: slice, cos: Tensor, sin: Tensor): ...

    def settle(self, sink: int, settled: int, length: int): ...

    def read(self, rows: slice) -> tuple[Tensor, Tensor]:
        """Zeros of one channel, for a policy that looks at keys."""
        return (torch.zeros(1, rows.stop - rows.start, 1, 1),) * 2

    def hold(self, count: int):
        self.pages.hold(count)

    def grow(self, capacity: int, length: int):
        self.pages.grow(capacity, length)

    def restore(self, state: State, length: int, held: int) -> tuple[int, int]:
        return self.pages.restore(state, length, held)

    def nbytes(self) -> int:
        return self.pages.nbytes()

    def host_bytes(self) -> int:
        return self.pages.host_bytes()
