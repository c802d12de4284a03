"""Where a bank's keys and values lie: one object a layer, the only door to them."""

import torch
from torch import Tensor

from ..state import State, tensor_of
from .rope import turn


class Pages:
    """Keys and values of one layer's rows, `[1, capacity, H, D]` each, in the model's dtype on its
    device.
    """

    def __init__(
        self, capacity: int, heads: int, head_dim: int, dtype: torch.dtype, device: torch.device
    ):
        self.k, self.v = (
            torch.empty((1, capacity, heads, head_dim), dtype=dtype, device=device)
            for _ in range(2)
        )
        self.held = self.k[:, :0]

    @property
    def place(self) -> torch.device:
        """Where rows are moved."""
        return self.k.device

    def write(self, rows: slice, k: Tensor, v: Tensor):
        self.k[:, rows], self.v[:, rows] = k, v

    def read(self, rows: slice) -> tuple[Tensor, Tensor]:
        """Views of rows, `[1, S, H, D]` each; nothing is copied."""
        return self.k[:, rows], self.v[:, rows]

    def gather(self, rows: Tensor, target: slice, cuts: tuple[int, int]):
        """Copy rows (long, at `place`) to where others lay; `cuts`: the first of `rows` that is
        coded, and the first that is full again.
        """
        for buffer in (self.k, self.v):  # one at a time: a small working set
            buffer[:, target] = buffer.index_select(1, rows)

    def settle(self, sink: int, settled: int, length: int):
        """All `length` rows are history now, and those before `settled` are no longer among the
        latest; those before `sink` stay as they are. Here all do.
        """

    def hold(self, count: int):
        """Keep the keys of the first `count` rows as they are, beside the others."""
        self.held = self.k[:, :count].clone()

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
            new = old.new_empty((1, capacity, *old.shape[2:]))
            new[:, :length] = old[:, :length]
            setattr(self, name, new)

    def state(self, length: int) -> State:
        """The first rows as they lie here, copied to the CPU."""
        return {
            name: rows.to("cpu", copy=True)
            for name, rows in (
                ("k", self.k[:, :length]),
                ("v", self.v[:, :length]),
                ("held", self.held),
            )
        }

    def restore(self, state: State, length: int, held: int) -> tuple[int, int]:
        """Take over such rows; KVMemoryError where they are none of these pages'. Returns how many
        are a full sink, and how many are coded.
        """
        for name, buffer in (("k", self.k), ("v", self.v)):
            buffer[:, :length] = tensor_of(state, name, buffer.dtype, 1, length, *buffer.shape[2:])
        self.held = tensor_of(state, "held", self.k.dtype, 1, held, *self.k.shape[2:]).to(
            self.k.device, copy=True
        )
        return 0, 0

    def nbytes(self) -> int:
        return self.k.nbytes + self.v.nbytes + self.held.nbytes

    def host_bytes(self) -> int:
        """Of these, those in main memory by choice, whatever the device."""
        return 0
