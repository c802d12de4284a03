"""A bank's rows in main memory: a layer's come to the model's device to be read, while the layer
before it is at work.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..cache.pages import BankPages, Pages, Sides
from ..cache.rope import turn
from ..state import State
from .link import Link, link_to


class MainPages(Pages):
    """One layer's history in main memory, `[1, capacity, H, D]`; the rows of the chunk in work,
    behind it, on the device.
    """

    def __init__(
        self,
        link: Link,
        capacity: int,
        chunk: int,
        heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ):
        self.link = link
        self.k = link.rows(1, capacity, heads, head_dim, dtype=dtype)
        self.v = link.rows(1, capacity, heads, head_dim, dtype=dtype)
        self.held = self.k[:, :0]
        self.held_v = self.v[:, :0]
        shape = (1, chunk, heads, head_dim)
        self.chunk = tuple(torch.empty(shape, dtype=dtype, device=device) for _ in range(2))

    def write(self, rows: slice, k: Tensor, v: Tensor):
        for side, new in zip(self.chunk, (k, v)):
            side[:, : rows.stop - rows.start] = new

    def copy(self, rows: slice, history: int) -> tuple[Tensor, Tensor]:
        """Rows on the device, in tensors of their own; the first `history` rows are history."""
        end = min(rows.stop, history)
        own = slice(max(0, rows.start - end), rows.stop - end)
        return tuple(
            torch.cat([side[:, rows.start : end].to(new.device), new[:, own]], 1)
            for side, new in zip((self.k, self.v), self.chunk)
        )

    def store_chunk(self, history: int, length: int):
        """Copy the rows of the chunk in work to main memory, as the rows from `history` on."""
        for side, new in zip((self.k, self.v), self.chunk):
            side[:, history:length] = new[:, : length - history]

    def turn(self, rows: slice, cos: Tensor, sin: Tensor):
        """On the device, so that the numbers are those of rows that lie there."""
        source = self.k if rows.stop > self.held.shape[1] else self.held
        self.k[:, rows] = turn(source[:, rows].to(cos.device), cos, sin)

    def _empty(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        return self.link.rows(*shape, dtype=like.dtype)

    def nbytes(self) -> int:
        return self.main_bytes() + sum(side.nbytes for side in self.chunk)

    def main_bytes(self) -> int:
        return super().nbytes()


class Ring:
    """Room on the device for the history of two layers: the one at work, and the one read next."""

    def __init__(self, link: Link, numbers: int, dtype: torch.dtype, device: torch.device):
        self.link = link
        self.dtype = dtype
        self.device = device
        self.slots: list[tuple[Tensor, Tensor]] = []  # keys and values
        self.layers: list[int | None] = [None, None]  # whose history is in each slot, or comes
        self.now = 0  # the slot of the layer at work
        self.grow(numbers)

    def grow(self, numbers: int):
        if self.slots and numbers <= len(self.slots[0][0]):
            return
        self.forget()
        self.slots = []  # before the new ones are allocated
        for _ in range(2):
            k, v = (torch.empty(numbers, dtype=self.dtype, device=self.device) for _ in range(2))
            self.slots.append((k, v))

    def forget(self):
        """The rows are about to change in main memory."""
        self.link.wait()
        self.layers = [None, None]
        self.now = 0

    def read(
        self, layer: int, following: int, history: dict[int, tuple[Tensor, Tensor]]
    ) -> tuple[Tensor, Tensor]:
        """A layer's history, with room behind it for the chunk in work; that of the `following`
        layer is on its way then. `history`: keys and values in main memory, by layer.
        """
        if self.layers[self.now] != layer:
            self.now = 1 - self.now
            if self.layers[self.now] != layer:
                self._fetch(layer, self.now, history)
            self.link.arrive()
        if following not in self.layers:
            self._fetch(following, 1 - self.now, history)
        return self.slots[self.now]

    def _fetch(self, layer: int, slot: int, history: dict[int, tuple[Tensor, Tensor]]):
        self.layers[slot] = layer
        for target, rows in zip(self.slots[slot], history[layer]):
            self.link.fetch(rows, target[: rows.numel()].view(rows.shape))

    def nbytes(self) -> int:
        return sum(side.nbytes for slot in self.slots for side in slot)


class MainBankPages(BankPages):
    """All layers' history in main memory. `history`: how many rows lie there; those behind them are
    the chunk in work.
    """

    def __init__(
        self,
        capacity: int,
        chunk: int,
        heads: list[int],
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ):
        link = link_to(device)
        super().__init__(
            [MainPages(link, capacity, chunk, count, head_dim, dtype, device) for count in heads]
        )
        self.history = 0
        self.row_numbers = max(heads) * head_dim
        self.ring = Ring(link, capacity * self.row_numbers, dtype, device)
        # The layer that is read after each; layers without heads are never read.
        read = [layer for layer, count in enumerate(heads) if count]
        self.following = dict(zip(read, read[1:] + read[:1]))

    def write(self, layer: int, rows: slice, k: Tensor, v: Tensor):
        self.history = rows.start
        super().write(layer, rows, k, v)

    def read(self, layer: int, rows: slice) -> tuple[Tensor, Tensor]:
        """Rows on the device: from the first one on in the ring, where the read of another layer
        overwrites them; others in a copy.
        """
        pages = self.layers[layer]
        if rows.start or layer not in self.following:
            return pages.copy(rows, self.history)
        end = min(rows.stop, self.history)
        following = self.following[layer]
        history = {each: self._history(each) for each in (layer, following)}
        _, _, heads, head_dim = pages.k.shape
        numbers = rows.stop * heads * head_dim
        k, v = (
            side[:numbers].view(1, rows.stop, heads, head_dim)
            for side in self.ring.read(layer, following, history)
        )
        for side, own in zip((k, v), pages.chunk):
            side[:, end:] = own[:, : rows.stop - end]
        return k, v

    def _read_part(self, layer: int, rows: slice) -> Sides:
        """These rows alone: the ring would bring all of the layer."""
        return self.layers[layer].copy(rows, self.history)

    def _history(self, layer: int) -> tuple[Tensor, Tensor]:
        pages = self.layers[layer]
        return pages.k[0, : self.history], pages.v[0, : self.history]

    def commit(self, frame: Tensor, shot: int):
        """Copy the rows of the chunk in work to main memory."""
        self.ring.forget()
        for pages in self.layers:
            pages.store_chunk(self.history, len(frame))
        self.history = len(frame)

    def gather(self, rows: Tensor, target: slice):
        """The rows of the chunk in work lie apart, and stay."""
        self.ring.forget()
        rows = rows[: int((rows < self.history).sum())]
        self.history = target.start + len(rows)
        super().gather(rows, slice(target.start, self.history))

    def gather_in(self, layer: int, rows: Tensor, target: slice):
        self.ring.forget()
        self.history = target.stop
        super().gather_in(layer, rows, target)

    def turn(self, rows: slice, cos: Tensor, sin: Tensor):
        self.ring.forget()
        super().turn(rows, cos, sin)

    def rewrite(self, rows: slice, compute: Callable[[int], Sides], holds: bool):
        self.ring.forget()
        super().rewrite(rows, compute, holds)
        self.ring.forget()  # `compute` may have read, and rows have changed since

    def grow(self, capacity: int, length: int):
        self.ring.forget()
        super().grow(capacity, self.history)
        self.ring.grow(capacity * self.row_numbers)

    def take(self, layer: int, capacity: int, source: Pages, rows: Tensor, heads: Tensor):
        super().take(layer, capacity, source, rows, heads)
        self.history = len(rows)
        self.ring.grow(capacity * self.row_numbers)

    def restore(self, state: State, length: int, held: int):
        self.ring.forget()
        self.history = length
        super().restore(state, length, held)

    def nbytes(self) -> int:
        return super().nbytes() + self.ring.nbytes()
