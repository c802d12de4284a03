"""One layer's rows in fewer bits, but for the first and the latest (KIVI, arXiv 2402.02750).

    rows of the bank     0 ... sink | sink ... coded_end | coded_end ... length
                         full         codes                full
                          |                |                 |
    where they lie       k, v           keys, values        k, v
                         slots 0 ...    rows 0 ...          slots room.sink ...

`RowLayout` says where the two borders are. It is one object for all layers of a bank, kept by
`CodedBankPages`, which tells each layer what to move before it moves the borders.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from ..cache.pages import Pages, Sides
from ..cache.rope import turn
from ..state import State, damaged, tensor_of
from .coded import Coded, Format
from .coded_keys import AT_ONCE, GROUP, CodedKeys, Groups


class ReadBuffer:
    """Where a layer's rows are put together to be read: one for all layers of a bank."""

    def __init__(self, numbers: int, dtype: torch.dtype, device: torch.device):
        self.k = torch.empty(numbers, dtype=dtype, device=device)
        self.v = torch.empty(numbers, dtype=dtype, device=device)

    def grow(self, numbers: int):
        if numbers > len(self.k):
            self.k = self.k.new_empty(numbers)
            self.v = self.v.new_empty(numbers)

    def views(self, rows: int, heads: int, head_dim: int) -> tuple[Tensor, Tensor]:
        """Room for so many rows of keys and of values, `[1, S, H, D]` each."""
        numbers = rows * heads * head_dim
        return tuple(side[:numbers].view(1, rows, heads, head_dim) for side in (self.k, self.v))

    def nbytes(self) -> int:
        return self.k.nbytes + self.v.nbytes


class Room(NamedTuple):
    """Slots for rows in full precision: the first ones, the latest ones, tokens too few for a whole
    group, and the chunk in work.
    """

    sink: int
    latest: int
    left_over: int
    chunk: int


class RowLayout:
    """Which rows of a bank are coded, the same in all its layers: `[sink, coded_end)`."""

    def __init__(self):
        self.sink = 0
        self.groups = Groups()

    @property
    def coded_end(self) -> int:
        return self.sink + self.groups.tokens


class Move(NamedTuple):
    """What a gather does in each layer: rows by where they lie, and where they go. Long tensors on
    the device.
    """

    sink: Tensor  # full rows in front, by slot ...
    to_sink: int  # ... to the slots from here on
    coded: Tensor  # coded rows, by row of the codes ...
    to_coded: int  # ... to the rows from here on
    latest: Tensor  # full rows behind, by slot ...
    to_latest: int  # ... to the slots from here on
    groups: Tensor  # key groups that keep a token


class CodedPages(Pages):
    """Keys share scales by channel over groups of tokens, values over the channels of a token and
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
        buffer: ReadBuffer,
        layout: RowLayout,
    ):
        super().__init__(sum(room), heads, head_dim, dtype, device)
        self.room = room
        self.buffer = buffer
        self.layout = layout
        self.keys = CodedKeys(form, capacity, heads, head_dim, device, layout.groups)
        self.values = Coded(form, capacity, (capacity, heads, 1), (heads, head_dim), device)

    def slots_behind(self, rows: slice) -> slice:
        """The slots of full rows behind the coded ones."""
        shift = self.room.sink - self.layout.coded_end
        return slice(rows.start + shift, rows.stop + shift)

    def _full(self, rows: slice) -> Iterator[tuple[slice, slice]]:
        """The parts of `rows` in full precision, before and behind the coded ones, each with its
        slots.
        """
        first = slice(rows.start, min(rows.stop, self.layout.sink))
        if first.start < first.stop:
            yield first, first
        latest = slice(max(rows.start, self.layout.coded_end), rows.stop)
        if latest.start < latest.stop:
            yield latest, self.slots_behind(latest)

    def _decode_values(self, rows: slice) -> Tensor:
        return self.values.read(rows, self.values.scale[rows], self.values.zero[rows])

    def write(self, rows: slice, k: Tensor, v: Tensor):
        super().write(self.slots_behind(rows), k, v)

    def read(self, rows: slice) -> tuple[Tensor, Tensor]:
        """Rows put together in the buffer, which the next read of any layer overwrites."""
        _, _, heads, head_dim = self.k.shape
        out_k, out_v = self.buffer.views(rows.stop - rows.start, heads, head_dim)
        # 1. Rows in full precision.
        for part, slots in self._full(rows):
            k, v = super().read(slots)
            target = slice(part.start - rows.start, part.stop - rows.start)
            out_k[:, target] = k
            out_v[:, target] = v
        # 2. Coded rows, some at a time.
        sink = self.layout.sink
        end = min(rows.stop, self.layout.coded_end)
        for first in range(max(rows.start, sink), end, AT_ONCE):
            last = min(first + AT_ONCE, end)
            codes = slice(first - sink, last - sink)
            target = slice(first - rows.start, last - rows.start)
            out_k[0, target] = self.keys.decode(codes)
            out_v[0, target] = self._decode_values(codes)
        return out_k, out_v

    def encode(self, to_sink: int, count: int, length: int, sizes: Tensor):
        """Of the `length` rows, the first `to_sink` behind the coded ones join the sink, the next
        `count` are coded, their keys in groups of `sizes`, and the others move up.
        """
        # Copies, since the rows move up within the slots that they come from.
        behind = self.slots_behind(slice(self.layout.coded_end, length))
        k = self.k[0, behind].clone()
        v = self.v[0, behind].clone()
        done = to_sink + count
        sink = slice(self.layout.sink, self.layout.sink + to_sink)
        latest = slice(self.room.sink, self.room.sink + len(k) - done)
        for side, rows in ((self.k, k), (self.v, v)):
            side[0, sink] = rows[:to_sink]
            side[0, latest] = rows[done:]
        if count:
            new_k = k[to_sink:done].float()
            new_v = v[to_sink:done].float()
            self._code(new_k, new_v, sizes)

    def _code(self, k: Tensor, v: Tensor, sizes: Tensor):
        """Append coded rows, fp32 `[n, H, D]` each."""
        groups = self.layout.groups
        first = groups.tokens
        self.keys.code(k, first, len(groups), sizes)
        new = slice(first, first + len(v))
        low = v.amin(-1, keepdim=True)
        high = v.amax(-1, keepdim=True)
        scale = self.values.scale[new]
        zero = self.values.zero[new]
        scale[:] = high - low
        zero[:] = low
        # The codes are made with the scales as they are held, which are rounded.
        self.values.write(first, v, scale, zero)

    def fill_groups(self):
        """See `CodedKeys.fill_groups`."""
        self.keys.fill_groups()

    def gather(self, move: Move):
        sink_target = slice(move.to_sink, move.to_sink + len(move.sink))
        latest_target = slice(move.to_latest, move.to_latest + len(move.latest))
        for side in (self.k, self.v):
            side[:, sink_target] = side.index_select(1, move.sink)
            side[:, latest_target] = side.index_select(1, move.latest)
        coded_target = slice(move.to_coded, move.to_coded + len(move.coded))
        for table in (self.values.codes, self.values.scale, self.values.zero):
            table[coded_target] = table.index_select(0, move.coded)
        self.keys.keep(move.to_coded, move.coded, move.groups)

    def turn(self, rows: slice, cos: Tensor, sin: Tensor):
        """Full keys as ever; coded ones are decoded, turned and coded again in their groups."""
        # 1. Keys in full precision. `Bank.move` turns held rows and others in separate calls, so
        # all of these rows are held or none is.
        are_held = rows.stop <= self.held.shape[1]
        for part, slots in self._full(rows):
            angles = slice(part.start - rows.start, part.stop - rows.start)
            source = self.held[:, part] if are_held else self.k[:, slots]
            self.k[:, slots] = turn(source, cos[angles], sin[angles])
        # 2. Coded keys, if there are any among the rows.
        sink = self.layout.sink
        end = self.layout.coded_end
        if sink == end or rows.start >= end or rows.stop <= sink:
            return
        if rows.start > sink or rows.stop < end:
            raise RuntimeError(
                "A KV policy turned some of the keys that are held in fewer bits; only all of "
                "them can be turned."
            )
        angles = slice(sink - rows.start, end - rows.start)
        self.keys.turn(cos[angles], sin[angles])

    def hold(self, count: int, values: bool):
        k, v = self.read(slice(0, count))
        self.held = k.clone()
        self.held_v = v[:, : count if values else 0].clone()

    def rewrite(self, rows: slice, compute: Callable[[], Sides], holds: bool):
        raise RuntimeError(
            "A KV policy rewrote rows that can be held in fewer bits: Retention.rewrites must say "
            "that it does."
        )

    def grow(self, capacity: int, length: int):
        """The codes grow; the slots of full rows are as many as ever."""
        _, _, heads, head_dim = self.k.shape
        full_groups = -(-capacity // GROUP)
        self.keys.grow(capacity, max(len(self.keys.scale), full_groups))
        self.values.grow(capacity, capacity)
        self.buffer.grow(capacity * heads * head_dim)

    def _tables(self, tokens: int, groups: int) -> Iterator[tuple[str, Coded, str, int]]:
        """Each table: name in a saved state, owner, attribute, and how many entries are in use."""
        # Keys have a scale for each group, values one for each token.
        for name, rows, scales in (("key", self.keys, groups), ("value", self.values, tokens)):
            yield f"{name} codes", rows, "codes", tokens
            yield f"{name} scale", rows, "scale", scales
            yield f"{name} zero", rows, "zero", scales

    def state(self, length: int) -> State:
        sink = self.layout.sink
        groups = self.layout.groups
        latest = self.slots_behind(slice(self.layout.coded_end, length))
        coded = {
            name: getattr(rows, part)[:count].to("cpu", copy=True)
            for name, rows, part, count in self._tables(groups.tokens, len(groups))
        }
        return {
            "k": torch.cat([self.k[:, :sink], self.k[:, latest]], 1).cpu(),
            "v": torch.cat([self.v[:, :sink], self.v[:, latest]], 1).cpu(),
            **coded,
            "held": self.held.to("cpu", copy=True),
            "groups": groups.sizes.clone(),
            "sink": torch.tensor([sink]),
        }

    def restore(self, state: State, length: int, held: int):
        """The layout is the saved one already, see `CodedBankPages.restore`."""
        sink = self.layout.sink
        groups = self.layout.groups
        # 1. Rows in full precision.
        latest = length - self.layout.coded_end
        latest_slots = slice(self.room.sink, self.room.sink + latest)
        _, _, heads, head_dim = self.k.shape
        for name, side in (("k", self.k), ("v", self.v)):
            full = tensor_of(state, name, side.dtype, 1, sink + latest, heads, head_dim)
            side[:, :sink] = full[:, :sink]
            side[:, latest_slots] = full[:, sink:]
        # 2. Codes and scales; groups that have lost tokens may be more than the buffers are for.
        self.keys.grow(len(self.keys.codes), max(len(self.keys.scale), len(groups)))
        for name, rows, part, count in self._tables(groups.tokens, len(groups)):
            table = getattr(rows, part)
            table[:count] = tensor_of(state, name, table.dtype, count, *table.shape[1:])
        # 3. Keys that later turns start from.
        self._restore_held(state, held)

    def nbytes(self) -> int:
        return super().nbytes() + self.keys.nbytes() + self.values.nbytes()


def saved_layout(state: State, room: Room, length: int) -> tuple[int, Tensor]:
    """Sink rows and group sizes of one layer's saved state; KVMemoryError where rows of `length`
    cannot lie so.
    """
    sizes = tensor_of(state, "groups", torch.long, None)
    sink = int(tensor_of(state, "sink", torch.long, 1))
    coded = int(sizes.sum())
    latest = length - sink - coded
    sink_fits = 0 <= sink <= room.sink
    latest_fits = 0 <= latest <= sum(room) - room.sink
    are_groups = bool(((sizes > 0) & (sizes <= GROUP)).all())
    if not (sink_fits and latest_fits and are_groups):
        raise damaged(
            f"{sink} rows in full, {coded} in fewer bits and {latest} of the latest do not fit "
            "this storage"
        )
    return sink, sizes
