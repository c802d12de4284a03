"""Keys in fewer bits: groups of tokens share a scale and a zero point in each channel (KIVI, arXiv
2402.02750).

    rows of codes     k k k k k k k k k k k k        one per token
    their group       0 0 0 0 1 1 1 2 2 2 2 2        `Groups.of_row`
    scale, zero       s0      s1    s2               one per group, [H, D]

A group is full (GROUP tokens) when it is made. When a policy drops tokens, their group gets smaller
and keeps its scale; a group without tokens goes. Many small groups would need more scales than
there is room for, so `CodedKeys.fill_groups` then decodes the tokens and codes them in full groups
again.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..cache.rope import turn
from .coded import Coded, Format

GROUP = 32  # tokens of a full group; only full groups are coded
AT_ONCE = 8192  # rows that are written or read together: in fp32 they take several times the room


def full_groups(rows: int) -> Tensor:
    """Sizes of the fewest groups for so many rows: full ones, and the rest in a smaller one."""
    rest = [rows % GROUP] if rows % GROUP else []
    return torch.tensor([GROUP] * (rows // GROUP) + rest, dtype=torch.long)


class Groups:
    """How many tokens each group has, the same in all layers of a bank."""

    def __init__(self):
        self.set(torch.empty(0, dtype=torch.long))

    def set(self, sizes: Tensor):
        """`sizes`: long, on the CPU."""
        self.sizes = sizes
        self.tokens = int(sizes.sum())
        self._of_row: Tensor | None = None  # made when it is asked for: a dry run never does

    def __len__(self) -> int:
        return len(self.sizes)

    def of_row(self, device: torch.device) -> Tensor:
        """The group of each coded row, long, on a device."""
        if self._of_row is None:
            self._of_row = torch.arange(len(self)).repeat_interleave(self.sizes).to(device)
        return self._of_row

    def filled(self) -> int:
        """How many of the first groups are full, up to the first that has lost tokens."""
        return int((self.sizes == GROUP).long().cumprod(0).sum())

    def sizes_of(self, rows: Tensor) -> Tensor:
        """How many of the given coded rows (long, on the CPU) each group has."""
        group = torch.arange(len(self)).repeat_interleave(self.sizes)
        return torch.bincount(group[rows], minlength=len(self))


class CodedKeys(Coded):
    """One layer's coded keys. `groups` belongs to all layers: who changes it does so once all
    layers have done their part.
    """

    def __init__(
        self,
        form: Format,
        capacity: int,
        heads: int,
        head_dim: int,
        device: torch.device,
        groups: Groups,
    ):
        scales = (-(-capacity // GROUP), heads, head_dim)
        super().__init__(form, capacity, scales, (heads, head_dim), device)
        self.groups = groups

    def decode(self, rows: slice) -> Tensor:
        """fp32 `[n, H, D]`."""
        group = self.groups.of_row(self.codes.device)[rows]
        return self.read(rows, self.scale[group], self.zero[group])

    def code(self, k: Tensor, first: int, group: int, sizes: Tensor):
        """Write keys, fp32 `[n, H, D]`, as the rows from `first` on, in groups of such sizes from
        number `group` on.
        """
        numbers = torch.arange(group, group + len(sizes))
        group_of_row = numbers.repeat_interleave(sizes).to(k.device)
        sizes = sizes.to(k.device)
        low = torch.segment_reduce(k, "min", lengths=sizes, unsafe=True)
        high = torch.segment_reduce(k, "max", lengths=sizes, unsafe=True)
        new = slice(group, group + len(sizes))
        self.scale[new] = high - low
        self.zero[new] = low
        self.write(first, k, self.scale[group_of_row], self.zero[group_of_row])

    def fill_groups(self):
        """Code the rows in full groups again, from the first group on that has lost tokens. The
        caller sets `groups` to `full_groups(groups.tokens)` afterwards.

        A key is rounded once more then, by half a step of its new group at most. Rows are taken in
        order, and a row's new group is never behind its old one, so no scale is overwritten before
        its last row has been read.
        """
        count = self.groups.tokens
        for first in range(self.groups.filled() * GROUP, count, AT_ONCE):
            k = self.decode(slice(first, min(first + AT_ONCE, count)))
            self.code(k, first, first // GROUP, full_groups(len(k)))

    def keep(self, still: int, moved: Tensor, groups: Tensor):
        """Keep the first `still` rows and, behind them, the rows `moved`; of the scales those of
        `groups`. Both long, on the device. The caller sets `groups` afterwards.
        """
        self.codes[still : still + len(moved)] = self.codes.index_select(0, moved)
        for table in (self.scale, self.zero):
            table[: len(groups)] = table.index_select(0, groups)

    def turn(self, cos: Tensor, sin: Tensor):
        """Decode all keys, turn them, see `rope.turn`, and code them in the same groups."""
        sizes = self.groups.sizes
        ends = sizes.cumsum(0).tolist()
        at_once = AT_ONCE // GROUP
        for first in range(0, len(sizes), at_once):
            part = sizes[first : first + at_once]
            rows = slice(ends[first] - int(part[0]), ends[first + len(part) - 1])
            turned = turn(self.decode(rows)[None], cos[rows], sin[rows])[0]
            self.code(turned, rows.start, first, part)
