"""A bank's rows in main memory: a layer's come to the model's device to be read, while the layer
before it is at work.
"""

from __future__ import annotations

import weakref
from contextlib import suppress

import torch
from torch import Tensor

from ..cache.pages import Pages
from ..cache.rope import turn
from ..state import State


class Link:
    """Copies from main memory to a device. This one: at once, where there is nothing to run beside."""

    def rows(self, *shape: int, dtype: torch.dtype) -> Tensor:
        """Main memory to copy from."""
        return torch.empty(shape, dtype=dtype)

    def fetch(self, source: Tensor, target: Tensor):
        """Begin to copy, once all work that was given to the device before is done."""
        target.copy_(source)

    def arrive(self):
        """Work that is given to the device from now on finds what was fetched."""

    def settle(self):
        """Wait, here, until no source is read any longer."""


class CUDALink(Link):
    """From pinned memory, on a stream of its own."""

    def __init__(self, device: torch.device):
        self.device, self.stream = device, torch.cuda.Stream(device)

    def rows(self, *shape: int, dtype: torch.dtype) -> Tensor:
        """Torch's own pinned memory comes in powers of two and is not given back, so memory of the
        right size is pinned here; where that fails, copies only run no longer beside the work.
        """
        rows = torch.empty(shape, dtype=dtype)
        if (
            rows.nbytes
            and torch.cuda.cudart().cudaHostRegister(rows.data_ptr(), rows.nbytes, 1) == 0
        ):
            weakref.finalize(rows, self._unpin, self.stream, rows.data_ptr()).atexit = False
        else:
            with suppress(RuntimeError):  # the next launch tells of the failure once more
                torch.zeros(1, device=self.device).add_(1)
        return rows

    @staticmethod
    def _unpin(stream: torch.cuda.Stream, address: int):
        stream.synchronize()
        torch.cuda.cudart().cudaHostUnregister(address)

    def fetch(self, source: Tensor, target: Tensor):
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream):
            target.copy_(source, non_blocking=True)
        target.record_stream(self.stream)  # its memory is not given to others while it is written

    def arrive(self):
        torch.cuda.current_stream(self.device).wait_stream(self.stream)

    def settle(self):
        self.stream.synchronize()


class MetaLink(Link):
    """For rows that have a size and nothing in them."""

    def rows(self, *shape: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")


def link_to(device: torch.device) -> Link:
    return (
        CUDALink(device)
        if device.type == "cuda"
        else MetaLink()
        if device.type == "meta"
        else Link()
    )


class Ring:
    """Two layers' rows on the device, of one bank: those in work, and those of the layer that is
    read next.
    """

    def __init__(self, numbers: int, dtype: torch.dtype, device: torch.device):
        self.link, self.dtype, self.device = link_to(device), dtype, device
        self.layers: list[
            weakref.ref[HostPages]
        ] = []  # in their order; weak, so that rows go when the bank lets go of them
        self.sides: list[tuple[Tensor, Tensor]] = []
        self.grow(numbers)

    def grow(self, numbers: int):
        if not self.sides or numbers > len(self.sides[0][0]):
            self.forget()
            self.sides = []  # before the new ones are there
            self.sides = [
                tuple(torch.empty(numbers, dtype=self.dtype, device=self.device) for _ in range(2))
                for _ in range(2)
            ]

    def forget(self):
        """The rows are about to change in main memory."""
        self.link.settle()
        self.held: list[int | None] = [
            None,
            None,
        ]  # of which layer the history is in each of `sides`, or on its way there
        self.now = 0

    def read(self, layer: int) -> tuple[Tensor, Tensor]:
        """A layer's history, with room behind it for the chunk in work; the next layer's is on its
        way then.
        """
        if self.held[self.now] != layer:
            self.now = 1 - self.now
            if self.held[self.now] != layer:
                self._fetch(layer, self.now)
            self.link.arrive()
        after = (layer + 1) % len(self.layers)
        if after not in self.held:
            self._fetch(after, 1 - self.now)
        return self.sides[self.now]

    def _fetch(self, layer: int, slot: int):
        self.held[slot], pages = layer, self.layers[layer]()
        for target, source in zip(self.sides[slot], (pages.k, pages.v)):
            rows = source[0, : pages.history]
            self.link.fetch(rows, target[: rows.numel()].view(rows.shape))

    def nbytes(self) -> int:
        return sum(side.nbytes for sides in self.sides for side in sides)


class HostPages(Pages):
    """History in main memory, `[1, capacity, H, D]`; the rows of the chunk in work, behind it, on
    the device.
    """

    def __init__(
        self,
        capacity: int,
        chunk: int,
        heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
        ring: Ring,
        counts_ring: bool,
    ):
        self.k, self.v = (
            ring.link.rows(1, capacity, heads, head_dim, dtype=dtype) for _ in range(2)
        )
        self.chunk = tuple(
            torch.empty((1, chunk, heads, head_dim), dtype=dtype, device=device) for _ in range(2)
        )
        self.held = self.k[:, :0]
        self.ring, self.counts_ring, self.history, self.layer = (
            ring,
            counts_ring,
            0,
            len(ring.layers),
        )
        if heads:
            ring.layers.append(weakref.ref(self))

    def write(self, rows: slice, k: Tensor, v: Tensor):
        self.history = rows.start
        for side, new in zip(self.chunk, (k, v)):
            side[:, : rows.stop - rows.start] = new

    def read(self, rows: slice) -> tuple[Tensor, Tensor]:
        """Rows on the device: from the first one on in the ring, where the read of another layer
        overwrites them; others in a copy.
        """
        end, (_, _, heads, head_dim) = min(rows.stop, self.history), self.k.shape
        if rows.start or not heads:
            own = slice(max(0, rows.start - end), rows.stop - end)
            return tuple(
                torch.cat([side[:, rows.start : end].to(new.device), new[:, own]], 1)
                for side, new in zip((self.k, self.v), self.chunk)
            )
        out = tuple(
            side[: rows.stop * heads * head_dim].view(1, -1, heads, head_dim)
            for side in self.ring.read(self.layer)
        )
        for side, new in zip(out, self.chunk):
            side[:, end:] = new[:, : rows.stop - end]
        return out

    def settle(self, sink: int, settled: int, length: int):
        self.ring.forget()
        for side, new in zip((self.k, self.v), self.chunk):
            side[:, self.history : length] = new[:, : length - self.history]
        self.history = length

    def gather(self, rows: Tensor, target: slice, cuts: tuple[int, int]):
        self.ring.forget()
        rows = rows[
            : int((rows < self.history).sum())
        ]  # those of the chunk in work lie apart, and stay
        self.history = target.start + len(rows)
        super().gather(rows, slice(target.start, self.history), cuts)

    def turn(self, rows: slice, cos: Tensor, sin: Tensor):
        """On the device, so that the numbers are those of rows that lie there."""
        self.ring.forget()
        source = self.k if rows.stop > self.held.shape[1] else self.held
        self.k[:, rows] = turn(source[:, rows].to(cos.device), cos, sin)

    def grow(self, capacity: int, length: int):
        self.ring.forget()
        for name in ("k", "v"):
            old = getattr(self, name)
            new = self.ring.link.rows(1, capacity, *old.shape[2:], dtype=old.dtype)
            new[:, : self.history] = old[:, : self.history]
            setattr(self, name, new)
        self.ring.grow(self.k[0].numel())

    def restore(self, state: State, length: int, held: int) -> tuple[int, int]:
        self.ring.forget()
        self.history = length
        return super().restore(state, length, held)

    def nbytes(self) -> int:
        return (
            self.host_bytes()
            + sum(side.nbytes for side in self.chunk)
            + (self.ring.nbytes() if self.counts_ring else 0)
        )

    def host_bytes(self) -> int:
        return super().nbytes()
