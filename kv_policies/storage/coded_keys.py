"""Keys in fewer bits: groups of tokens share a scale and a zero point in each channel (KIVI, arXiv
2402.02750).
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..cache.rope import turn
from .coded import Coded, Format

GROUP = 32  # tokens of a whole group; only whole groups are coded
AT_ONCE = 8192  # rows that are written or read together: in fp32 they take several times the room


def whole_groups(rows: int) -> Tensor:
    """Sizes of the fewest groups for so many rows."""
    return torch.tensor(
        [GROUP] * (rows // GROUP) + [rows % GROUP] * (rows % GROUP > 0), dtype=torch.long
    )


class CodedKeys(Coded):
    """Rows of keys in groups; a group keeps its scale when tokens leave it."""

    def __init__(
        self, form: Format, capacity: int, heads: int, head_dim: int, device: torch.device
    ):
        super().__init__(
            form, capacity, (-(-capacity // GROUP), heads, head_dim), (heads, head_dim), device
        )
        self.set_groups(torch.empty(0, dtype=torch.long))

    def set_groups(self, groups: Tensor):
        """`groups`: how many tokens each has, long, on the CPU."""
        self.groups, self.count = groups, int(groups.sum())
        self.group_of = (
            torch.arange(len(groups)).repeat_interleave(groups).to(self.codes.device)
        )  # of each row

    def decode(self, rows: slice) -> Tensor:
        """fp32 `[n, H, D]`."""
        return self.read(rows, *(table[self.group_of[rows]] for table in (self.scale, self.zero)))

    def append(self, k: Tensor, most: int):
        """Whole groups of keys, fp32 `[n, H, D]`. Where that made more than `most` groups, those
        that have lost tokens are filled up first.
        """
        sizes = whole_groups(len(k))
        if len(self.groups) + len(sizes) > most:
            self.pack()
        self._code(k, self.count, len(self.groups), sizes)
        self.set_groups(torch.cat([self.groups, sizes]))

    def pack(self):
        """Fill up the groups from the first one on that has lost tokens. A key is rounded once more
        then, by half a step of its new group at most.
        """
        whole = int((self.groups == GROUP).long().cumprod(0).sum())
        for first in range(
            whole * GROUP, self.count, AT_ONCE
        ):  # a row's group now is never before the one that it gets
            k = self.decode(slice(first, min(first + AT_ONCE, self.count)))
            self._code(k, first, first // GROUP, whole_groups(len(k)))
        self.set_groups(whole_groups(self.count))

    def _code(self, k: Tensor, first: int, group: int, sizes: Tensor):
        """Write keys as the rows from `first` on, in groups of such sizes from `group` on."""
        of_row, sizes = (
            each.to(k.device)
            for each in (torch.arange(group, group + len(sizes)).repeat_interleave(sizes), sizes)
        )
        low, high = (
            torch.segment_reduce(k, how, lengths=sizes, unsafe=True) for how in ("min", "max")
        )
        new = slice(group, group + len(sizes))
        self.scale[new], self.zero[new] = high - low, low
        self.write(first, k, self.scale[of_row], self.zero[of_row])

    def keep(self, still: int, moved: Tensor):
        """Of all rows the first `still`, and `moved` (long, on the device) behind them; groups of
        which no token is left go.
        """
        self.codes[still : still + len(moved)] = self.codes.index_select(0, moved)
        rows = torch.cat([torch.arange(still), moved.cpu()])
        sizes = torch.bincount(
            torch.arange(len(self.groups)).repeat_interleave(self.groups)[rows],
            minlength=len(self.groups),
        )
        left = sizes.nonzero()[:, 0]
        for table in (self.scale, self.zero):
            table[: len(left)] = table.index_select(0, left.to(table.device))
        self.set_groups(sizes[left])

    def turn(self, cos: Tensor, sin: Tensor):
        """All keys are read, turned and written anew in their groups, see `rope.turn`."""
        ends = self.groups.cumsum(0).tolist()
        for group in range(0, len(ends), AT_ONCE // GROUP):
            some = self.groups[group : group + AT_ONCE // GROUP]
            rows = slice(ends[group] - int(some[0]), ends[group + len(some) - 1])
            self._code(
                turn(self.decode(rows)[None], cos[rows], sin[rows])[0], rows.start, group, some
            )
