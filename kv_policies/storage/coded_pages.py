"""A bank's rows in fewer bits, but for the first and the latest (KIVI, arXiv 2402.02750)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from ..cache.pages import Pages
from ..cache.rope import turn
from ..state import State, damaged, tensor_of
from .coded import Coded, Format
from .coded_keys import AT_ONCE, GROUP, CodedKeys


class Buffer:
    """Where a layer's rows are put together to be read: one for all layers of a bank."""

    def __init__(self, numbers: int, dtype: torch.dtype, device: torch.device):
        self.k, self.v = (torch.empty(numbers, dtype=dtype, device=device) for _ in range(2))

    def grow(self, numbers: int):
        if numbers > len(self.k):
            self.k, self.v = (side.new_empty(numbers) for side in (self.k, self.v))

    def nbytes(self) -> int:
        return self.k.nbytes + self.v.nbytes


class Room(NamedTuple):
    """Rows in full precision: the first ones, the latest, what is left over of whole groups, and
    the chunk in work.
    """

    sink: int
    full: int
    left_over: int
    chunk: int


class CodedPages(Pages):
    """Rows `[0, sink)` and those from `sink + count` on are full, in slots before and behind
    `room.sink`; those between are coded.

    Keys share scales by channel over groups of tokens, values over the channels of a token and
    head.
    """

    def __init__(
        self,
        form: Format,
        room: Room,
        capacity: int,
        heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
        buffer: Buffer,
        counts_buffer: bool,
    ):
        super().__init__(sum(room), heads, head_dim, dtype, device)
        self.room, self.buffer, self.counts_buffer = room, buffer, counts_buffer
        self.keys = CodedKeys(form, capacity, heads, head_dim, device)
        self.values = Coded(form, capacity, (capacity, heads, 1), (heads, head_dim), device)
        self.sink = self.count = 0
        self.held = self.k[:, :0]

    def _slots(self, rows: slice) -> slice:
        """Where full rows behind the coded ones lie."""
        behind = self.room.sink - self.sink - self.count
        return slice(rows.start + behind, rows.stop + behind)

    def _full(self, rows: slice) -> Iterator[tuple[slice, slice]]:
        """The parts of `rows` in full precision, before and behind the coded ones, each with the
        slots that it lies in.
        """
        first, latest = (
            slice(rows.start, min(rows.stop, self.sink)),
            slice(max(rows.start, self.sink + self.count), rows.stop),
        )
        for part, slots in ((first, first), (latest, self._slots(latest))):
            if part.start < part.stop:
                yield part, slots

    def _decode_values(self, rows: slice) -> Tensor:
        return self.values.read(rows, self.values.scale[rows], self.values.zero[rows])

    def write(self, rows: slice, k: Tensor, v: Tensor):
        super().write(self._slots(rows), k, v)

    def read(self, rows: slice) -> tuple[Tensor, Tensor]:
        """Rows put together in the buffer, which the next read of any layer overwrites."""
        count, (_, _, heads, head_dim) = rows.stop - rows.start, self.k.shape
        out = tuple(
            side[: count * heads * head_dim].view(1, count, heads, head_dim)
            for side in (self.buffer.k, self.buffer.v)
        )
        for part, slots in self._full(rows):
            for side, held in zip(out, super().read(slots)):
                side[:, part.start - rows.start : part.stop - rows.start] = held
        end = min(rows.stop, self.sink + self.count)
        for first in range(max(rows.start, self.sink), end, AT_ONCE):
            last = min(first + AT_ONCE, end)
            for side, decode in zip(out, (self.keys.decode, self._decode_values)):
                side[0, first - rows.start : last - rows.start] = decode(
                    slice(first - self.sink, last - self.sink)
                )
        return out

    def settle(self, sink: int, settled: int, length: int):
        """Rows before `settled` of `length` are no longer among the latest: those before `sink`
        stay full, the others are written in codes.
        """
        done = self.sink + self.count
        if settled <= done:
            return
        latest = self._slots(slice(done, length))
        k, v = (side[0, latest].clone() for side in (self.k, self.v))
        first = max(0, sink - self.sink) if not self.count else 0
        for side, rows in ((self.k, k), (self.v, v)):
            side[0, self.sink : self.sink + first] = rows[:first]
            side[0, self.room.sink : self.room.sink + length - settled] = rows[settled - done :]
        self.sink += first
        if settled > done + first:
            self._append(
                k[first : settled - done].float(), v[first : settled - done].float(), length
            )

    def _append(self, k: Tensor, v: Tensor, length: int):
        # Groups that have lost tokens may be more than there is room for. Not the room but what
        # lies here decides, or runs would differ.
        self.keys.append(k, most=-(-length // GROUP))
        low, high, new = (
            v.amin(-1, keepdim=True),
            v.amax(-1, keepdim=True),
            slice(self.count, self.count + len(v)),
        )
        self.values.scale[new], self.values.zero[new] = high - low, low
        self.values.write(self.count, v, self.values.scale[new], self.values.zero[new])
        self.count += len(v)

    def gather(self, rows: Tensor, target: slice, cuts: tuple[int, int]):
        coded_from, full_from = (
            cuts  # of `rows`, the first coded one and the first full one behind those
        )
        done = self.sink + self.count
        sink = min(target.start, self.sink) + coded_from
        kept = max(0, min(target.start, done) - self.sink)
        full = max(0, target.start - done)
        moved = rows[coded_from:full_from] - self.sink
        latest = rows[full_from:] + self.room.sink - done
        for side in (self.k, self.v):
            side[:, sink - coded_from : sink] = side.index_select(1, rows[:coded_from])
            side[:, self.room.sink + full : self.room.sink + full + len(latest)] = (
                side.index_select(1, latest)
            )
        for table in (self.values.codes, self.values.scale, self.values.zero):
            table[kept : kept + len(moved)] = table.index_select(0, moved)
        self.keys.keep(kept, moved)
        self.sink, self.count = sink, kept + len(moved)

    def turn(self, rows: slice, cos: Tensor, sin: Tensor):
        """Full keys as ever; coded ones are read, turned and written anew in their groups."""
        done = self.sink + self.count
        for part, slots in self._full(rows):
            angles = slice(part.start - rows.start, part.stop - rows.start)
            source = self.held[:, part] if rows.stop <= self.held.shape[1] else self.k[:, slots]
            self.k[:, slots] = turn(source, cos[angles], sin[angles])
        if self.count and rows.start < done and rows.stop > self.sink:
            if rows.stop < done or rows.start > self.sink:
                raise RuntimeError(
                    "A KV policy turned some of the keys that are held in fewer bits; only all of "
                    "them can be turned."
                )
            behind = slice(self.sink - rows.start, done - rows.start)
            self.keys.turn(cos[behind], sin[behind])

    def hold(self, count: int):
        self.held = self.read(slice(0, count))[0].clone()

    def grow(self, capacity: int, length: int):
        _, _, heads, head_dim = self.k.shape
        self.keys.grow(capacity, max(len(self.keys.scale), -(-capacity // GROUP)))
        self.values.grow(capacity, capacity)
        self.buffer.grow(capacity * heads * head_dim)

    def state(self, length: int) -> State:
        done = self.sink + self.count
        latest = self._slots(slice(done, length))
        full = {
            name: torch.cat([side[:, : self.sink], side[:, latest]], 1).cpu()
            for name, side in (("k", self.k), ("v", self.v))
        }
        coded = {
            f"{name} {part}": getattr(rows, part)[:count].to("cpu", copy=True)
            for name, rows, scales in (
                ("key", self.keys, len(self.keys.groups)),
                ("value", self.values, self.count),
            )
            for part, count in (("codes", self.count), ("scale", scales), ("zero", scales))
        }
        return {
            **full,
            **coded,
            "held": self.held.to("cpu", copy=True),
            "groups": self.keys.groups.clone(),
            "sink": torch.tensor([self.sink]),
        }

    def restore(self, state: State, length: int, held: int) -> tuple[int, int]:
        groups, sink = (
            tensor_of(state, "groups", torch.long, None),
            int(tensor_of(state, "sink", torch.long, 1)),
        )
        count, (_, room, *shape) = int(groups.sum()), self.k.shape
        latest = length - sink - count
        if not (
            0 <= sink <= self.room.sink
            and 0 <= latest <= room - self.room.sink
            and ((groups > 0) & (groups <= GROUP)).all()
        ):
            raise damaged(
                f"{sink} rows in full, {count} in fewer bits and {latest} of the latest do not "
                "fit this storage"
            )
        self.keys.grow(len(self.keys.codes), max(len(self.keys.scale), len(groups)))
        for name, side in (("k", self.k), ("v", self.v)):
            full = tensor_of(state, name, side.dtype, 1, sink + latest, *shape)
            side[:, :sink], side[:, self.room.sink : self.room.sink + latest] = (
                full[:, :sink],
                full[:, sink:],
            )
        for name, rows, scales in (("key", self.keys, len(groups)), ("value", self.values, count)):
            for part, size in (("codes", count), ("scale", scales), ("zero", scales)):
                table = getattr(rows, part)
                table[:size] = tensor_of(
                    state, f"{name} {part}", table.dtype, size, *table.shape[1:]
                )
        self.held = tensor_of(state, "held", self.k.dtype, 1, held, *shape).to(
            self.k.device, copy=True
        )
        self.sink, self.count = sink, count
        self.keys.set_groups(groups.clone())
        return sink, count

    def nbytes(self) -> int:
        return (
            super().nbytes()
            + self.keys.nbytes()
            + self.values.nbytes()
            + (self.buffer.nbytes() if self.counts_buffer else 0)
        )
