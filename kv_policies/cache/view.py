"""What one forward can read: the seam between the caches of a stream and a selection.

A forward reads its own cache and, where its schedule says so, history of other caches. A selection
gets all of it as one list of rows, whichever caches they lie in: first those of the other caches,
in the order of `Forward.reads`, then its own cache's history, then the rows of the forward's own
span. Nothing is copied where a forward reads its own cache alone, and what the rows are called is
joined only when a selection asks for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from .bank import Bank


class OtherRows(NamedTuple):
    """History rows of another cache's bank. `copies`: its keys and values by layer, `[1, S, H, D]`
    each, on the reader's device, where the bank lies on another one.
    """

    bank: Bank
    rows: slice
    copies: Sequence[tuple[Tensor, Tensor]] | None = None

    def read(self, layer: int) -> tuple[Tensor, Tensor]:
        if self.copies is None:
            return self.bank.read(layer, self.rows)
        k, v = self.copies[layer]
        return k[:, self.rows], v[:, self.rows]


class View:
    """All rows that a forward can read in one group of heads; S of them, with names on the CPU:
    `[S]`, or `[layers, S]` of a bank by layer, which no forward reads together with others.
    """

    def __init__(
        self,
        bank: Bank,
        others: tuple[OtherRows, ...] = (),
        own: tuple[Tensor, Tensor] | None = None,
        reach: tuple[slice, ...] | None = None,
    ):
        """`bank` is the one that the forward writes into: its device and heads are the view's.
        `own`: keys and values of the span in one layer, `[1, N, H, D]` each, for a forward that
        writes none. `reach`: what a retention lets it read of the bank's history; None: all.
        """
        self.bank = bank
        self.others = others
        self.own = own
        self.reach = (slice(0, bank.committed),) if reach is None else reach

    def with_own(self, k: Tensor, v: Tensor) -> View:
        """The same for a forward whose keys and values are not written, in the layer that they are
        of.
        """
        return View(self.bank, self.others, (k, v), self.reach)

    @property
    def device(self) -> torch.device:
        return self.bank.device

    def heads(self, layer: int) -> tuple[int, ...]:
        """Numbers of the heads that share these rows."""
        return self.bank.heads[layer]

    @property
    def own_rows(self) -> int:
        """How many of the last rows belong to the forward's own span."""
        return self.bank.length - self.bank.committed

    @property
    def history_rows(self) -> int:
        """How many rows lie before these."""
        parts = (*self.reach, *(part.rows for part in self.others))
        return sum(rows.stop - rows.start for rows in parts)

    @property
    def state(self) -> tuple:
        """Equal for two views of the same rows, while no rows come or go in between."""
        parts = tuple((part.bank, part.rows.start, part.rows.stop) for part in self.others)
        reach = tuple((rows.start, rows.stop) for rows in self.reach)
        return self.bank, self.bank.committed, reach, parts

    @cached_property
    def frame(self) -> Tensor:
        """Latent frame of each row, long [S]."""
        return self._joined("frame")

    @cached_property
    def cell(self) -> Tensor:
        """Row * w + column of each row's token in its frame, long [S]."""
        return self._joined("cell")

    @cached_property
    def position(self) -> Tensor:
        """Temporal position that each row's key is turned to, float64 [S]."""
        return self._joined("position")

    def history_ids(self) -> Tensor:
        """Ids of the tokens that the history's rows count as, long, see `Bank.source_ids`."""
        others = ((part.bank, part.rows) for part in self.others)
        parts = (*others, *((self.bank, rows) for rows in self.reach))
        ids = [bank.source_ids(rows) for bank, rows in parts]
        return ids[0] if len(ids) == 1 else torch.cat(ids)

    def history_ids_by_group(self) -> list[Tensor]:
        """The same for each of the bank's `groups`."""
        if not self.bank.by_layer:
            return [self.history_ids()]
        tokens = self.bank.geometry.tokens_per_frame
        return list((self.frame * tokens + self.cell)[:, : self.history_rows])

    def _joined(self, column: str) -> Tensor:
        names = getattr(self.bank, column)
        own = [names[..., rows] for rows in self._live()]
        if len(own) == 1 and not self.others:
            return own[0]
        return torch.cat(
            [*(getattr(part.bank, column)[part.rows] for part in self.others), *own], -1
        )

    def read(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values of all rows, `[1, S, H, D]` each."""
        if self.own is None and not self.others:
            return self._read(layer, self._live())
        parts = [part.read(layer) for part in self.others]
        if self.own is None:
            parts.append(self._read(layer, self._live()))
        else:
            parts += [self._read(layer, self.reach), self.own]
        k, v = (torch.cat(side, 1) for side in zip(*parts))
        return k, v

    def _live(self) -> tuple[slice, ...]:
        """What it reads of the bank: history in reach, and the rows in work right behind it."""
        committed, length = self.bank.committed, self.bank.length
        if self.reach and self.reach[-1].stop == committed:
            return *self.reach[:-1], slice(self.reach[-1].start, length)
        return *self.reach, slice(committed, length)

    def _read(self, layer: int, rows: tuple[slice, ...]) -> tuple[Tensor, Tensor]:
        """Rows of the bank; nothing is copied where they lie together."""
        if len(rows) == 1:
            return self.bank.read(layer, rows[0])
        return self.bank.read_parts(layer, rows)
