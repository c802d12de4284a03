"""Preallocated rows of keys and values, and for every row the token that it came from."""

from collections.abc import Callable

import torch
from torch import Tensor

from ..state import State, damaged, tensor_of
from ..take import BankPlan, Geometry, Span
from .pages import BankPages, Pages, PageSource, Sides
from .rope import frequencies_of, turn_in_time

COLUMNS = ("frame", "cell", "position")


class Bank:
    """Cached tokens of one group of heads. All layers hold the same tokens in the same order.

    Rows `[0, committed)` are history, rows `[committed, length)` belong to the chunk in work and
    are overwritten by each of its forwards. Each row has a `frame`, a `cell` (row * w + column of
    the token in its latent frame) and a `position` (the temporal position that its key is rotated
    at). These three lie on the CPU, so that policies decide without waiting for the device.

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
        self.columns = (*COLUMNS, "source") if plan.merges else COLUMNS
        self.store = storage.pages(self.capacity, heads, geometry, dtype, device)
        # Bytes of a row: of the keys alone in the layer with the most heads, and of keys and values
        # in all layers.
        self._key_row_bytes = max(heads) * geometry.head_dim * dtype.itemsize
        self._row_bytes = 2 * sum(heads) * geometry.head_dim * dtype.itemsize
        self.frame = torch.empty(self.capacity, dtype=torch.long)
        self.cell = torch.empty(self.capacity, dtype=torch.long)
        self.position = torch.empty(self.capacity, dtype=torch.float64)
        self.source = torch.empty(self.capacity if plan.merges else 0, dtype=torch.long)
        self.length = 0
        self.committed = 0
        self.shot = 0  # first latent frame of the shot of the chunk in work
        self._held_position = torch.empty(0, dtype=torch.float64)  # of held rows, see `hold`
        self.copied_bytes = 0  # most bytes of temporary copies that moving rows has made

    @property
    def pages(self) -> list[Pages]:
        """The pages by layer."""
        return self.store.layers

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
        rows = slice(self.length, end)
        numbers = torch.tensor(span.numbers)
        positions = torch.tensor(span.positions, dtype=torch.float64)
        self.frame[rows] = numbers.repeat_interleave(tokens)
        self.position[rows] = positions.repeat_interleave(tokens)
        self.cell[rows] = torch.arange(tokens).repeat(len(span))
        if self.merges:
            self.source[rows] = self.frame[rows] * tokens + self.cell[rows]
        self.length = end
        self.shot = shot

    def _grow(self, capacity: int):
        self.store.grow(capacity, self.length)
        self.copied_bytes = max(self.copied_bytes, self.side_bytes(self.capacity))
        for name in self.columns:
            old = getattr(self, name)
            new = old.new_empty(capacity)
            new[: self.length] = old[: self.length]
            setattr(self, name, new)
        self.capacity = capacity

    def take_names(self, other: "Bank", rows: Tensor, frames: int):
        """Begin with `rows` (row numbers, long, ascending) of another bank, with room for `frames`
        latent frames; `take_rows` brings their keys and values. This bank has no row yet.
        """
        self.capacity = frames * self.geometry.tokens_per_frame
        for name in COLUMNS:
            new = getattr(self, name).new_empty(self.capacity)
            new[: len(rows)] = getattr(other, name)[rows]
            setattr(self, name, new)
        self.length = self.committed = len(rows)

    def take_rows(self, other: "Bank", rows: Tensor, layer: int):
        """Copy a layer's keys and values of these rows, of the heads that are this bank's, from a
        bank of all heads.
        """
        heads = self.head_index[layer]
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

    def commit(self):
        """The rows of the chunk in work become history."""
        self.committed = self.length
        self.store.commit(self.frame[: self.length].contiguous(), self.shot)

    def discard(self):
        """Give up the rows of the chunk in work."""
        self.length = self.committed

    def clear(self):
        """Forget all rows; the buffers stay."""
        self._truncate(0)
        self._hold(0)

    def rewind(self, first: int) -> Tensor:
        """Forget the history rows from latent frame `first` on, and return their `token_ids`."""
        start = self.rows_of(0, first - 1).stop
        forgotten = self.token_ids()[start:]
        self._truncate(start)
        return forgotten

    def _truncate(self, length: int):
        """Forget the rows from `length` on, those of the chunk in work too."""
        # `keep` refuses to drop rows of the chunk in work: as history they may go.
        self.committed = self.length
        self.keep(torch.arange(length))

    def token_ids(self) -> Tensor:
        """One number for the token of each live row, long: frame * tokens of a frame + cell."""
        return self.frame[: self.length] * self.geometry.tokens_per_frame + self.cell[: self.length]

    def source_ids(self, rows: slice) -> Tensor:
        """The tokens that live rows count as, long; rows that count as none are left out."""
        if not self.merges:
            return self.token_ids()[rows]
        source = self.source[rows]
        return source[source >= 0]

    def stand_for_themselves(self, rows: slice) -> bool:
        """Whether none of these live rows counts as another token, or as none."""
        return not self.merges or torch.equal(self.source[rows], self.token_ids()[rows])

    def rows_of(self, first: int, last: int) -> slice:
        """Where the history rows of the latent frames `first` to `last` lie; frames ascend."""
        frame = self.frame[: self.committed].contiguous()
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
        for name in self.columns:
            column = getattr(self, name)
            column[target] = column[moving]
        self.committed = length - own
        self.length = length

    def hold(self, count: int):
        """Keep a copy of the keys of the first `count` rows beside the bank, once, for `move` to
        start from. Those rows must stay the first ones.

        A bank whose plan holds values keeps a copy of both, to compute rows from after the first
        ones are gone, see `read_held`; it cannot be moved.
        """
        if not len(self._held_position):
            self._hold(count)

    def _hold(self, count: int):
        self._held_position = self.position[:count].clone()
        self.store.hold(count, self.holds_values)

    def read_held(self, layer: int, rows: Tensor) -> tuple[Sides, Tensor]:
        """Keys and values of held rows (long), and the positions that the keys are turned to."""
        return self.pages[layer].read_held(rows, self.device), self._held_position[rows]

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
            self.source[rows] = source
        if holds:
            self._held_position[rows] = self.position[rows]

    def move(self, position: Tensor, pairs: int | None = None):
        """Re-rotate the first rows to temporal positions, float64, as many as `position` has.

        `pairs`: only so many temporal channel pairs, from the fastest on, are turned; the same at
        every move of a bank. None: all.

        Held rows start from their originals, so that a sink which moves with every chunk gathers no
        rounding error; for the others each move rounds the key to its dtype once.
        """
        if torch.equal(position, self.position[: len(position)]):
            return
        held = min(len(self._held_position), len(position))
        frequencies = frequencies_of(self.geometry)[:pairs]
        for rows, origin in (
            (slice(0, held), self._held_position),
            (slice(held, len(position)), self.position),
        ):
            if rows.start == rows.stop:
                continue
            shift = position[rows] - origin[rows]
            cos, sin = turn_in_time(shift, frequencies, self.device)
            self.store.turn(rows, cos, sin)
        self.position[: len(position)] = position

    def state(self) -> State:
        """The history, copied to the CPU."""
        return {
            "frame": self.frame[: self.committed].clone(),
            "cell": self.cell[: self.committed].clone(),
            "position": self.position[: self.committed].clone(),
            "held_position": self._held_position.clone(),
            **({"source": self.source[: self.committed].clone()} if self.merges else {}),
            "layers": self.store.state(self.committed),
        }

    def restore(self, state: State):
        """Begin with the history that `state` gave; KVMemoryError where it does not fit."""
        frame = tensor_of(state, "frame", torch.long, None)
        cell = tensor_of(state, "cell", torch.long, len(frame))
        position = tensor_of(state, "position", torch.float64, len(frame))
        held = tensor_of(state, "held_position", torch.float64, None)
        tokens = self.geometry.tokens_per_frame
        ascends = bool(((frame * tokens + cell).diff() > 0).all() and (frame >= 0).all())
        in_frame = bool((cell >= 0).all() and (cell < tokens).all())
        fits = len(frame) <= self.most and len(held) <= self.most
        if not (ascends and in_frame and fits):
            raise damaged(
                f"its {len(frame)} rows are not tokens of a take in their order, for a bank of at "
                f"most {self.most}"
            )
        columns = [frame, cell, position]
        if self.merges:
            columns.append(self._saved_source(state, frame))
        if len(frame) > self.capacity:
            self._grow(len(frame))
        for name, values in zip(self.columns, columns):
            getattr(self, name)[: len(frame)] = values
        self.store.restore(state, len(frame), len(held))
        if self.holds_values and len(held) and any("held_v" not in p for p in state["layers"]):
            raise damaged("it lacks values that belong to its held keys")
        self._held_position = held.clone()
        self.length = self.committed = len(frame)

    def _saved_source(self, state: State, frame: Tensor) -> Tensor:
        """What `source` was; a row can count as no token of a later frame than the last one."""
        source = tensor_of(state, "source", torch.long, len(frame))
        end = (int(frame[-1]) + 1) * self.geometry.tokens_per_frame if len(frame) else 0
        if not bool(((source >= -1) & (source < end)).all()):
            raise damaged("its rows count as tokens that the take does not have")
        return source

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
        """Bytes that the first `rows` rows take of what is allocated."""
        coded = self.store.coded_rows
        return (rows - coded) * self._row_bytes + int(coded * self.store.coded_row_bytes)
