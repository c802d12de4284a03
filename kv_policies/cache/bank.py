"""Preallocated rows of keys and values, and for every row the token that it came from."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..state import State, damaged, tensor_of
from ..take import BankPlan, Geometry, Span
from .columns import Columns
from .pages import BankPages, Pages, PageSource, Sides
from .rope import frequencies_of, turn_in_time


class OpenChoice(NamedTuple):
    """What layers have yet to choose from, see `Bank.open`."""

    first_kept: int  # rows that stay in all layers
    columns: State  # of the history as it was
    layers: set[int]  # that have yet to choose


class Bank:
    """Cached tokens of one group of heads. All layers hold the same tokens in the same order; with
    `BankPlan.by_layer` each holds as many as the others, but its own.

    Rows `[0, committed)` are history, rows `[committed, length)` belong to the chunk in work and
    are overwritten by each of its forwards. Each row has a `frame`, a `cell` and a `position`, see
    `Columns`.

    A merged row was computed from others, see `rewrite`. Its frame and cell say where it stands; in
    a bank whose plan merges, `source` says which token it counts as (an id as in `token_ids`), -1
    where it is a mean of several and counts as none.
    """

    def __init__(
        self,
        geometry: Geometry,
        plan: BankPlan,
        storage: PageSource,
        dtype: torch.dtype,
        device: torch.device,
        number: int = 0,
    ):
        """`number`: place among the banks of its cache."""
        tokens = geometry.tokens_per_frame
        self.geometry = geometry
        self.device = device
        self.number = number
        self.heads = plan.heads_by_layer(geometry)
        self.head_index = [
            torch.tensor(group, dtype=torch.long, device=device) for group in self.heads
        ]
        self.capacity = plan.frames * tokens
        self.most = plan.most_frames * tokens
        heads = [len(group) for group in self.heads]
        self.holds_values = plan.holds_values
        self.merges = plan.merges
        self.by_layer = plan.by_layer
        self.store = storage.pages(self.capacity, heads, geometry, dtype, device)
        # Bytes of a row: of the keys alone in the layer with the most heads, and of keys and values
        # in all layers.
        self._key_row_bytes = max(heads) * geometry.head_dim * dtype.itemsize
        self._row_bytes = 2 * sum(heads) * geometry.head_dim * dtype.itemsize
        self.columns = Columns(
            self.capacity, geometry.layers if plan.by_layer else None, plan.merges
        )
        self.length = 0
        self.committed = 0
        self.shot = 0  # first latent frame of the shot of the chunk in work
        self._held_position = torch.empty(0, dtype=torch.float64)  # of held rows, see `hold`
        self.copied_bytes = 0  # most bytes of temporary copies that moving rows has made
        self._open: OpenChoice | None = None  # while layers have yet to choose, see `open`

    @property
    def frame(self) -> Tensor:
        """Latent frame of each row, long `[capacity]`, or `[layers, capacity]` by layer."""
        return self.columns.frame

    @property
    def cell(self) -> Tensor:
        """Row * w + column of each row's token in its latent frame, likewise."""
        return self.columns.cell

    @property
    def position(self) -> Tensor:
        """Temporal position that each row's key is rotated at, float64, likewise."""
        return self.columns.position

    @property
    def pages(self) -> list[Pages]:
        """The pages by layer."""
        return self.store.layers

    @property
    def groups(self) -> list[int]:
        """The heads in numbers, over all layers, that hold the same tokens: of the bank, or by
        layer.
        """
        heads = [len(group) for group in self.heads]
        return heads if self.by_layer else [sum(heads)]

    def reserve(self, span: Span, shot: int = 0):
        """Append the rows of a span, in the shot that begins with latent frame `shot`. Their keys
        and values arrive with the forwards.
        """
        tokens = self.geometry.tokens_per_frame
        end = self.length + len(span) * tokens
        if end > self.most:
            raise RuntimeError(
                f"A KV bank for {self.most} rows was asked to hold {end}: the most_frames in the "
                "policy's plan are too few."
            )
        if end > self.capacity:
            needed = -(-end // tokens)
            larger = self.capacity // tokens * 5 // 4
            self._grow(min(self.most, tokens * max(needed, larger)))
        self.columns.write(slice(self.length, end), span, tokens)
        self.length = end
        self.shot = shot

    def _grow(self, capacity: int):
        self.store.grow(capacity, self.length)
        self.copied_bytes = max(self.copied_bytes, self.side_bytes(self.capacity))
        self.columns.grow(capacity, self.length)
        self.capacity = capacity

    def take_names(self, other: "Bank", rows: Tensor, frames: int):
        """Begin with `rows` (row numbers, long, ascending) of another bank, with room for `frames`
        latent frames; `take_rows` brings their keys and values. This bank has no row yet.
        """
        self.capacity = frames * self.geometry.tokens_per_frame
        self.columns.take(other.columns, rows, self.capacity)
        self.length = self.committed = len(rows)

    def take_rows(self, other: "Bank", rows: Tensor, layer: int):
        """Copy a layer's keys and values of these rows, of the heads that are this bank's, from a
        bank of all heads.
        """
        heads = torch.tensor(self.heads[layer], dtype=torch.long)
        self.store.take(layer, self.capacity, other.pages[layer], rows, heads)

    def free_layer(self, layer: int):
        """Drop a layer's rows: nothing reads this bank again."""
        self.store.layers[layer] = None

    def layer_bytes(self, layer: int) -> int:
        """Allocated bytes of one layer's rows."""
        return self.pages[layer].nbytes()

    def write(self, layer: int, k: Tensor, v: Tensor):
        """Overwrite the rows of the chunk in work, `[1, N, H, D]` each."""
        self.store.write(layer, slice(self.committed, self.length), k, v)

    def read(self, layer: int, rows: slice | None = None) -> tuple[Tensor, Tensor]:
        """Keys and values of live rows, `[1, S, H, D]` each; None: of all."""
        return self.store.read(layer, slice(0, self.length) if rows is None else rows)

    def read_parts(self, layer: int, parts: Sequence[slice]) -> Sides:
        """Keys and values of several stretches of live rows, copied one behind the other."""
        return self.store.read_parts(layer, parts)

    def commit(self):
        """The rows of the chunk in work become history."""
        self.committed = self.length
        self._open = None
        frame = self.columns.of_first_layer("frame")[: self.length]
        self.store.commit(frame.contiguous(), self.shot)

    def discard(self):
        """Give up the rows of the chunk in work."""
        self.length = self.committed

    def clear(self):
        """Forget all rows; the buffers stay."""
        self._truncate(0)
        self._hold(0)

    def rewind(self, first: int) -> Tensor:
        """Forget the history rows from latent frame `first` on, and return their `token_ids`; by
        layer, all layers must hold the same there.

        Held keys of such rows are forgotten, too: what is written there anew is held anew.
        """
        start = self.rows_of(0, first - 1).stop
        forgotten = self.token_ids(start)
        self._truncate(start)
        if start < len(self._held_position) and not self.holds_values:
            self._hold(0)
        return forgotten

    def _truncate(self, length: int):
        """Forget the rows from `length` on, those of the chunk in work too."""
        # `keep` refuses to drop rows of the chunk in work: as history they may go.
        self.committed = self.length
        self.keep(torch.arange(length))

    def token_ids(self, start: int = 0) -> Tensor:
        """One number for the token of each live row from `start` on, long: frame * tokens of a
        frame + cell. By layer, those of the first one.
        """
        frame, cell = (
            self.columns.of_first_layer(name)[start : self.length] for name in ("frame", "cell")
        )
        return frame * self.geometry.tokens_per_frame + cell

    def source_ids(self, rows: slice) -> Tensor:
        """The tokens that live rows count as, long; rows that count as none are left out. By layer,
        those of the first one.
        """
        if not self.merges:
            return self.token_ids()[rows]
        source = self.columns.source[rows]
        return source[source >= 0]

    def stand_for_themselves(self, rows: slice) -> bool:
        """Whether none of these live rows counts as another token, or as none."""
        return not self.merges or torch.equal(self.columns.source[rows], self.token_ids()[rows])

    def rows_of(self, first: int, last: int) -> slice:
        """Where the history rows of the latent frames `first` to `last` lie; frames ascend. By
        layer, those of the first one.
        """
        frame = self.columns.of_first_layer("frame")[: self.committed].contiguous()
        start, stop = torch.searchsorted(frame, torch.tensor([first, last + 1])).tolist()
        return slice(start, stop)

    def keep(self, rows: Tensor, first_kept: int = 0):
        """Keep the first `first_kept` live rows and, of the rows behind them, only `rows` (row
        numbers, long, ascending), which move to the front. The same in all layers.
        """
        length = first_kept + len(rows)
        own = self.length - self.committed
        if length == self.length:
            return
        own_rows = torch.arange(self.committed, self.length)
        if len(rows) < own or not torch.equal(rows[len(rows) - own :], own_rows):
            raise RuntimeError(
                "A KV policy dropped rows of the chunk in work; only history may be evicted."
            )
        # Rows that stay where they are (a sink) need no copy: begin at the first row that moves.
        still = 0
        if not len(rows) or rows[0] == first_kept:
            still = int((rows == torch.arange(first_kept, length)).cumprod(0).sum())
        moving = rows[still:]
        target = slice(first_kept + still, length)
        self.store.gather(moving, target)
        self.copied_bytes = max(self.copied_bytes, self.side_bytes(len(moving)))
        self.columns.gather(moving, target)
        self.committed = length - own
        self.length = length

    def open(self, history: int, first_kept: int):
        """By layer: of the history, `history` rows stay, in each layer those that `choose` says;
        the first `first_kept` stay in all. Before the chunk's rows are reserved.

        A layer that does not choose before they are written keeps its first ones.
        """
        self._open = OpenChoice(
            first_kept, self.columns.state(self.committed), set(range(self.geometry.layers))
        )
        self.copied_bytes = max(self.copied_bytes, self.side_bytes(history - first_kept))
        self.committed = self.length = history

    def is_open(self, layer: int) -> bool:
        """Whether a layer has yet to choose."""
        return self._open is not None and layer in self._open.layers

    def open_keys(self, layer: int, rows: slice) -> Tensor:
        """Keys of history rows of a layer that has yet to choose, `[1, S, H, D]`, where they lie:
        perhaps in main memory.
        """
        return self.store.keys(layer, rows)

    def choose(self, layer: int, rows: Tensor):
        """Which rows (long, ascending) of the history stay in a layer, behind those that stay in
        all; as many as `open` said.
        """
        target = slice(self._open.first_kept, self.committed)
        self.store.gather_in(layer, rows, target)
        self.columns.choose(layer, self._open.columns, rows, target)
        self._open.layers.discard(layer)

    def hold(self, count: int):
        """Keep a copy of the keys of the first `count` rows beside the bank, once, for `move` to
        start from. Those rows must stay the first ones.

        A bank whose plan holds values keeps a copy of both, to compute rows from after the first
        ones are gone, see `read_held`; it cannot be moved.
        """
        if not len(self._held_position):
            self._hold(count)

    def _hold(self, count: int):
        self._held_position = self.columns.of_first_layer("position")[:count].clone()
        self.store.hold(count, self.holds_values)

    @property
    def held_position(self) -> Tensor:
        """Where in time the held keys stand, float64, one for each held row."""
        return self._held_position

    def read_held(self, layer: int, rows: Tensor) -> Sides:
        """Keys of held rows (long, on the CPU), and their values where the bank holds them."""
        return self.pages[layer].read_held(rows, self.device)

    def rewrite(
        self,
        rows: slice,
        compute: Callable[[int], Sides],
        position: Tensor | None = None,
        source: Tensor | None = None,
    ):
        """Replace history rows by computed ones: `compute(layer)` gives their keys and values,
        `[1, S, H, D]` each. `position`, float64 [S], is where in time the keys stand, `source`,
        long [S], the tokens that the rows count as; None: as before.

        Where all of them are held for `move`, they are held as they are now.
        """
        holds = rows.stop <= len(self._held_position) and not self.holds_values
        self.store.rewrite(rows, compute, holds)
        self.copied_bytes = max(self.copied_bytes, 2 * self.side_bytes(rows.stop - rows.start))
        if position is not None:
            self.position[rows] = position
        if source is not None:
            self.columns.source[rows] = source
        if holds:
            self._held_position[rows] = self.position[rows]

    def move(self, position: Tensor, pairs: int | None = None):
        """Re-rotate the first rows to temporal positions, float64, as many as `position` has.

        `pairs`: only so many temporal channel pairs, from the fastest on, are turned; the same at
        every move of a bank. None: all.

        Held rows start from their originals, so that a sink which moves with every chunk gathers no
        rounding error; for the others each move rounds the key to its dtype once.
        """
        origin_of_all = self.columns.of_first_layer("position")
        if torch.equal(position, origin_of_all[: len(position)]):
            return
        held = min(len(self._held_position), len(position))
        frequencies = frequencies_of(self.geometry)[:pairs]
        for rows, origin in (
            (slice(0, held), self._held_position),
            (slice(held, len(position)), origin_of_all),
        ):
            if rows.start == rows.stop:
                continue
            shift = position[rows] - origin[rows]
            cos, sin = turn_in_time(shift, frequencies, self.device)
            self.store.turn(rows, cos, sin)
        self.position[..., : len(position)] = position

    def state(self) -> State:
        """The history, copied to the CPU."""
        return {
            **self.columns.state(self.committed),
            "held_position": self._held_position.clone(),
            "layers": self.store.state(self.committed),
        }

    def restore(self, state: State):
        """Begin with the history that `state` gave; KVMemoryError where it does not fit."""
        columns = self.columns.checked(state, self.geometry.tokens_per_frame)
        held = tensor_of(state, "held_position", torch.float64, None)
        length = columns["frame"].shape[-1]
        if max(length, len(held)) > self.most:
            raise damaged(f"it has {length} rows for a bank of at most {self.most}")
        if length > self.capacity:
            self._grow(length)
        self.columns.restore(columns)
        self.store.restore(state, length, len(held))
        if self.holds_values and len(held) and any("held_v" not in p for p in state["layers"]):
            raise damaged("it lacks values that belong to its held keys")
        self._held_position = held.clone()
        self.length = self.committed = length

    def free(self):
        """Drop every buffer now: an error's traceback may hold the bank for longer."""
        self.store = BankPages([])
        self.length = self.committed = 0

    def nbytes(self) -> int:
        """Allocated bytes: rows of keys and values, held keys, and what the layers share."""
        return self.store.nbytes()

    def main_bytes(self) -> int:
        """Of these, bytes in main memory, see `Pages.main_bytes`."""
        return self.store.main_bytes()

    def side_bytes(self, rows: int) -> int:
        """Bytes of the keys, or the values, of so many rows in the layer with the most heads."""
        return rows * self._key_row_bytes

    def live_bytes(self, rows: int) -> int:
        """Bytes that the first `rows` rows take of what is allocated, with what is held of them."""
        coded = self.store.coded_rows
        coded_bytes = int(coded * self.store.coded_row_bytes)
        return (rows - coded) * self._row_bytes + coded_bytes + self.store.held_bytes()
