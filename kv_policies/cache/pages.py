"""Where a bank's keys and values lie: `Pages` of one layer, `BankPages` of all layers together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from ..state import State, list_of, tensor_of
from ..take import Geometry
from .rope import turn

Sides = tuple[Tensor, Tensor]  # keys and values, `[1, S, H, D]` each


class Pages:
    """Keys and values of one layer's rows, `[1, capacity, H, D]` each, in the model's dtype on its
    device.
    """

    def __init__(
        self, capacity: int, heads: int, head_dim: int, dtype: torch.dtype, device: torch.device
    ):
        shape = (1, capacity, heads, head_dim)
        self.k = torch.empty(shape, dtype=dtype, device=device)
        self.v = torch.empty(shape, dtype=dtype, device=device)
        # Keys of the first rows as they were, and values where a bank holds them: see `hold`.
        self.held = self.k[:, :0]
        self.held_v = self.v[:, :0]

    @property
    def place(self) -> torch.device:
        """The device on which rows are moved."""
        return self.k.device

    def write(self, rows: slice, k: Tensor, v: Tensor):
        self.k[:, rows] = k
        self.v[:, rows] = v

    def read(self, rows: slice) -> tuple[Tensor, Tensor]:
        """Views of rows, `[1, S, H, D]` each; nothing is copied."""
        return self.k[:, rows], self.v[:, rows]

    def gather(self, rows: Tensor, target: slice):
        """Copy rows (long, ascending, at `place`) to the rows `target`, at or before them."""
        for buffer in (self.k, self.v):  # one at a time: a small working set
            buffer[:, target] = buffer.index_select(1, rows)

    def hold(self, count: int, values: bool):
        """Keep a copy of the keys of the first `count` rows, which later turns start from; with
        `values` of their values, too.
        """
        self.held = self.k[:, :count].clone()
        self.held_v = self.v[:, : count if values else 0].clone()

    def read_held(self, rows: Tensor, device: torch.device) -> Sides:
        """Keys of held rows (long, on the CPU), on a device, and their values; without held values
        none.
        """
        rows = rows.to(self.held.device)
        k = self.held.index_select(1, rows).to(device)
        if not self.held_v.shape[1]:
            return k, k[:, :0]
        return k, self.held_v.index_select(1, rows).to(device)

    def rewrite(self, rows: slice, compute: Callable[[], Sides], holds: bool):
        """Replace rows by computed ones; with `holds` the held keys of them, too."""
        k, v = compute()
        self.k[:, rows] = k
        self.v[:, rows] = v
        if holds:
            self.held[:, rows] = k

    def turn(self, rows: slice, cos: Tensor, sin: Tensor):
        """Re-rotate keys, see `rope.turn`; held ones from their originals."""
        source = self.k if rows.stop > self.held.shape[1] else self.held
        self.k[:, rows] = turn(source[:, rows], cos, sin)

    def grow(self, capacity: int, length: int):
        """Move the first `length` rows into larger buffers, one at a time, so that no more than one
        is held twice.
        """
        for name in ("k", "v"):
            old = getattr(self, name)
            new = self._empty((1, capacity, *old.shape[2:]), old)
            new[:, :length] = old[:, :length]
            setattr(self, name, new)

    def take(self, capacity: int, source: Pages, rows: Tensor, heads: Tensor):
        """Make room for `capacity` rows, which begin with `rows` of some `heads` of other pages
        (both long, at `place`). These pages have no row yet.
        """
        for name in ("k", "v"):
            old = getattr(source, name)
            new = self._empty((1, capacity, len(heads), old.shape[3]), old)
            new[:, : len(rows)] = old[:, rows][:, :, heads]
            setattr(self, name, new)

    def _empty(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        return like.new_empty(shape)

    def state(self, length: int) -> State:
        """The first `length` rows as they lie here, copied to the CPU."""
        return {
            "k": self.k[:, :length].to("cpu", copy=True),
            "v": self.v[:, :length].to("cpu", copy=True),
            "held": self.held.to("cpu", copy=True),
            **({"held_v": self.held_v.to("cpu", copy=True)} if self.held_v.shape[1] else {}),
        }

    def restore(self, state: State, length: int, held: int):
        """Take over what `state` gave; KVMemoryError where it does not fit these pages."""
        for name, buffer in (("k", self.k), ("v", self.v)):
            buffer[:, :length] = tensor_of(state, name, buffer.dtype, 1, length, *buffer.shape[2:])
        self._restore_held(state, held)

    def _restore_held(self, state: State, held: int):
        for name in ("held", "held_v") if "held_v" in state else ("held",):
            saved = tensor_of(state, name, self.k.dtype, 1, held, *self.k.shape[2:])
            setattr(self, name, saved.to(self.k.device, copy=True))

    def nbytes(self) -> int:
        return sum(x.nbytes for x in (self.k, self.v, self.held, self.held_v))

    def held_bytes(self) -> int:
        """Of these, bytes of held keys and values."""
        return self.held.nbytes + self.held_v.nbytes

    def main_bytes(self) -> int:
        """Of these, bytes in main memory by choice, whatever the model's device."""
        return 0


class BankPages:
    """The pages of all layers of one bank; all layers hold the same rows.

    A storage that holds rows otherwise subclasses this, and keeps here what its layers share.
    """

    coded_rows = 0  # rows that are held in fewer bits
    coded_row_bytes = 0.0  # bytes of one of them, over all layers

    def __init__(self, layers: list[Pages]):
        self.layers = layers

    def write(self, layer: int, rows: slice, k: Tensor, v: Tensor):
        self.layers[layer].write(rows, k, v)

    def read(self, layer: int, rows: slice) -> tuple[Tensor, Tensor]:
        """Keys and values of rows, `[1, S, H, D]` each, on the model's device; valid until the next
        read.
        """
        return self.layers[layer].read(rows)

    def read_parts(self, layer: int, parts: Sequence[slice]) -> Sides:
        """Several stretches of rows, one behind the other, in tensors of their own."""
        sides = None
        done, rows = 0, sum(part.stop - part.start for part in parts)
        for part in parts:
            read = self._read_part(layer, part)
            if sides is None:
                sides = tuple(x.new_empty(1, rows, *x.shape[2:]) for x in read)
            length = part.stop - part.start
            for side, x in zip(sides, read):
                side[:, done : done + length] = x
            done += length
        return sides

    def _read_part(self, layer: int, rows: slice) -> Sides:
        """Rows that are about to be copied."""
        return self.read(layer, rows)

    def commit(self, frame: Tensor, shot: int):
        """All rows are history now. `frame` [S]: the latent frame of each; `shot`: the first latent
        frame of the shot in work.
        """

    def gather(self, rows: Tensor, target: slice):
        """Copy rows (long, ascending, on the CPU) to the rows `target`, at or before them."""
        rows = rows.to(self.layers[0].place)
        for pages in self.layers:
            pages.gather(rows, target)

    def keys(self, layer: int, rows: slice) -> Tensor:
        """Keys of history rows of a layer, `[1, S, H, D]`, where they lie."""
        return self.layers[layer].k[:, rows]

    def gather_in(self, layer: int, rows: Tensor, target: slice):
        """In one layer, copy history rows (long, ascending, on the CPU) to the rows `target`, at or
        before them, which are the last of its history then.
        """
        pages = self.layers[layer]
        pages.gather(rows.to(pages.place), target)

    def hold(self, count: int, values: bool = False):
        """Keep a copy of the keys of the first `count` rows, which later turns start from; with
        `values` of their values, too.
        """
        for pages in self.layers:
            pages.hold(count, values)

    def rewrite(self, rows: slice, compute: Callable[[int], Sides], holds: bool):
        """Replace rows by what `compute(layer)` gives; with `holds` the held keys of them, too."""
        for layer, pages in enumerate(self.layers):
            pages.rewrite(rows, partial(compute, layer), holds)

    def turn(self, rows: slice, cos: Tensor, sin: Tensor):
        """Re-rotate keys, see `rope.turn`; held ones from their originals."""
        for pages in self.layers:
            pages.turn(rows, cos, sin)

    def grow(self, capacity: int, length: int):
        """Make room for `capacity` rows; the first `length` rows stay."""
        for pages in self.layers:
            pages.grow(capacity, length)

    def take(self, layer: int, capacity: int, source: Pages, rows: Tensor, heads: Tensor):
        """Make room in a layer and begin with rows of other pages, see `Pages.take`."""
        place = self.layers[layer].place
        self.layers[layer].take(capacity, source, rows.to(place), heads.to(place))

    def state(self, length: int) -> list[State]:
        """The first `length` rows of each layer, copied to the CPU."""
        return [pages.state(length) for pages in self.layers]

    def restore(self, state: State, length: int, held: int):
        """Take over what `state` gave, which is the list `state["layers"]`; KVMemoryError where it
        does not fit.
        """
        for pages, saved in zip(self.layers, list_of(state, "layers", len(self.layers))):
            pages.restore(saved, length, held)

    def nbytes(self) -> int:
        return sum(pages.nbytes() for pages in self.layers)

    def held_bytes(self) -> int:
        """Of these, bytes of held keys and values."""
        return sum(pages.held_bytes() for pages in self.layers)

    def main_bytes(self) -> int:
        """Of these, bytes in main memory by choice, whatever the model's device."""
        return sum(pages.main_bytes() for pages in self.layers)


class PageSource(Protocol):
    """What a bank needs of a storage."""

    def pages(
        self,
        capacity: int,
        heads: list[int],
        geometry: Geometry,
        dtype: torch.dtype,
        device: torch.device,
    ) -> BankPages:
        """Pages for `capacity` rows; `heads` counts the heads of each layer."""
        ...
