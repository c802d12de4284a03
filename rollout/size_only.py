"""A storage whose pages have the size of another storage's and no content, for dry runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ..kv_policies import BankPages, Pages, State, Storage


@dataclass(frozen=True)
class SizeOnly(Storage):
    """The storage `of`, whose pages only count bytes. Which rows are coded, and which lie where,
    is followed as in a take.
    """

    of: Storage

    def pages(self, *shape) -> BankPages:
        pages = self.of.pages(*shape)
        pages.layers = [SizeOnlyPages(layer) for layer in pages.layers]
        pages.read = partial(BankPages.read, pages)  # from these layers, wherever rows would lie
        return pages


class SizeOnlyPages(Pages):
    """Pages of the size of other pages: nothing is written, moved, coded or turned."""

    place = torch.device("cpu")

    def __init__(self, pages: Pages):
        self.pages = pages

    def write(self, rows: slice, k: Tensor, v: Tensor): ...

    def gather(self, *where): ...

    def turn(self, rows: slice, cos: Tensor, sin: Tensor): ...

    def encode(self, *rows): ...

    def fill_groups(self): ...

    def store_chunk(self, history: int, length: int): ...

    def read(self, rows: slice) -> tuple[Tensor, Tensor]:
        """Keys and values of one channel, all zeros, for a policy that looks at them."""
        return (torch.zeros(1, rows.stop - rows.start, 1, 1),) * 2

    def rewrite(self, rows: slice, compute: Callable, holds: bool): ...

    def hold(self, count: int, values: bool):
        self.pages.hold(count, values)

    def grow(self, capacity: int, length: int):
        self.pages.grow(capacity, length)

    def take(self, capacity: int, source: Pages, rows: Tensor, heads: Tensor):
        self.pages.grow(capacity, 0)

    def restore(self, state: State, length: int, held: int):
        self.pages.restore(state, length, held)

    def nbytes(self) -> int:
        return self.pages.nbytes()

    def main_bytes(self) -> int:
        return self.pages.main_bytes()

    def held_bytes(self) -> int:
        return self.pages.held_bytes()
