"""Preallocated rows of keys and values, and for every row the token that it came from."""

import torch
from torch import Tensor

from ..state import State, damaged, list_of, tensor_of
from ..storage.storage import Storage
from ..take import BankPlan, Chunk, Geometry
from .rope import frequencies_of, turn_in_time


class Bank:
    """Cached tokens of one group of heads. All layers hold the same tokens in the same order.

    Rows `[0, committed)` are history, rows `[committed, length)` belong to the chunk in work and
    are overwritten by each of its forwards. `frame`, `cell` (row * w + column) and `position` (the
    temporal position baked into the key) name each row; they live on the CPU, so that policies
    decide without waiting for the device.
    """

    def __init__(
        self,
        geometry: Geometry,
        plan: BankPlan,
        storage: Storage,
        dtype: torch.dtype,
        device: torch.device,
        number: int = 0,
    ):
        """`number`: place among the banks of its cache."""
        self.number = number
        self.geometry, self.heads, self.device = geometry, plan.heads_by_layer(geometry), device
        self.capacity, self.most = (
            frames * geometry.tokens_per_frame for frames in (plan.frames, plan.most_frames)
        )
        self.head_index = [
            torch.tensor(group, dtype=torch.long, device=device) for group in self.heads
        ]
        self.storage, self.pages = (
            storage,
            storage.pages(self.capacity, [*map(len, self.heads)], geometry, dtype, device),
        )
        self.sink_rows = self.coded_rows = (
            0  # held in full precision, and those behind them in fewer bits; the rest is full
        )
        self._dtype = dtype
        self._coded_row_bytes = sum(
            storage.row_bytes(len(group), geometry.head_dim) for group in self.heads
        )
        self._row_bytes = 2 * sum(map(len, self.heads)) * geometry.head_dim * dtype.itemsize
        self.frame, self.cell = (torch.empty(self.capacity, dtype=torch.long) for _ in range(2))
        self.position = torch.empty(self.capacity, dtype=torch.float64)
        self.length = self.committed = self.shot = (
            0  # `shot`: first latent frame of the shot of the chunk in work
        )
        self._held_position = torch.empty(
            0, dtype=torch.float64
        )  # of the first rows when they were held, see `hold`
        self.copied_bytes = 0  # most that moving rows has held twice

    def reserve(self, chunk: Chunk):
        """Append the chunk's rows. Their keys and values arrive with the forwards."""
        tokens = self.geometry.tokens_per_frame
        end = self.length + chunk.frames * tokens
        if end > self.most:
            raise RuntimeError(
                f"A KV bank for {self.most} rows was asked to hold {end}: the most_frames in the "
                "policy's plan are too few."
            )
        if end > self.capacity:
            self._grow(
                min(self.most, tokens * max(-(-end // tokens), self.capacity // tokens * 5 // 4))
            )  # whole frames
        rows = slice(self.length, end)
        self.frame[rows] = torch.tensor(chunk.numbers).repeat_interleave(tokens)
        self.position[rows] = torch.tensor(chunk.positions, dtype=torch.float64).repeat_interleave(
            tokens
        )
        self.cell[rows] = torch.arange(tokens).repeat(chunk.frames)
        self.length, self.shot = end, chunk.shot

    def _grow(self, capacity: int):
        for pages in self.pages:
            pages.grow(capacity, self.length)
        self.copied_bytes = max(self.copied_bytes, self.side_bytes(self.capacity))
        for name in ("frame", "cell", "position"):
            old = getattr(self, name)
            new = old.new_empty(capacity)
            new[: self.length] = old[: self.length]
            setattr(self, name, new)
        self.capacity = capacity

    def write(self, layer: int, k: Tensor, v: Tensor):
        """Overwrite the rows of the chunk in work, `[1, N, H, D]` each."""
        self.pages[layer].write(slice(self.committed, self.length), k, v)

    def read(self, layer: int, rows: slice | None = None) -> tuple[Tensor, Tensor]:
        """Keys and values of live rows, `[1, S, H, D]` each; None: of all."""
        return self.pages[layer].read(slice(0, self.length) if rows is None else rows)

    def commit(self):
        self.committed = self.length
        sink, settled = self.storage.settled(self)
        for pages in self.pages:
            pages.settle(sink, settled, self.length)
        if settled > self.sink_rows + self.coded_rows:
            if not self.coded_rows:
                self.sink_rows = max(self.sink_rows, sink)
            self.coded_rows = settled - self.sink_rows

    def discard(self):
        """Give up the rows of the chunk in work."""
        self.length = self.committed

    def clear(self):
        """Forget all rows; the buffers stay."""
        self._cut(0)
        self._hold(0)

    def rewind(self, first: int) -> Tensor:
        """Forget the history rows from latent frame `first` on, and return the names that they had,
        see `names`.
        """
        start = self.rows_of(0, first - 1).stop
        names = self.names()[start:]
        self._cut(start)
        return names

    def _cut(self, length: int):
        """Forget the rows from `length` on, those of the chunk in work too."""
        self.committed = self.length
        self.keep(torch.arange(length))

    def names(self) -> Tensor:
        """One number for the token of each live row, long: frame * tokens of a frame + cell."""
        return self.frame[: self.length] * self.geometry.tokens_per_frame + self.cell[: self.length]

    def rows_of(self, first: int, last: int) -> slice:
        """Where the history rows of the latent frames `first` to `last` lie; frames ascend."""
        bounds = torch.tensor([first, last + 1])
        return slice(
            *torch.searchsorted(self.frame[: self.committed].contiguous(), bounds).tolist()
        )

    def keep(self, rows: Tensor, after: int = 0):
        """Gather the given live rows (long, ascending) to the front, in all layers; the rest is
        gone.

        The first `after` rows stay too: `rows` tells of those behind them.
        """
        length, own = after + len(rows), self.length - self.committed
        if length == self.length:
            return
        if len(rows) < own or not torch.equal(
            rows[len(rows) - own :], torch.arange(self.committed, self.length)
        ):
            raise RuntimeError(
                "A KV policy dropped rows of the chunk in work; only history may be evicted."
            )
        # Rows that stay where they are (a sink) need no copy: begin at the first row that moves.
        still = (
            0
            if len(rows) and rows[0] != after
            else int((rows == torch.arange(after, length)).cumprod(0).sum())
        )
        moving, target = rows[still:], slice(after + still, length)
        edges = torch.tensor([self.sink_rows, self.sink_rows + self.coded_rows])
        cuts = torch.searchsorted(
            moving.contiguous(), edges
        ).tolist()  # of those that move: the first coded one, and the first behind those
        there = moving.to(self.pages[0].place)
        for pages in self.pages:
            pages.gather(there, target, cuts)
        self.copied_bytes = max(self.copied_bytes, self.side_bytes(len(moving)))
        for column in (self.frame, self.cell, self.position):
            column[target] = column[moving]
        self.sink_rows, coded_end = (
            min(edge, target.start) + cut for edge, cut in zip(edges.tolist(), cuts)
        )
        self.coded_rows = coded_end - self.sink_rows
        self.committed, self.length = length - own, length

    def hold(self, count: int):
        """Keep the keys of the first `count` rows as they are beside the bank, once; those rows
        must stay the first ones.
        """
        if not len(self._held_position):
            self._hold(count)

    def _hold(self, count: int):
        self._held_position = self.position[:count].clone()
        for pages in self.pages:
            pages.hold(count)

    def move(self, position: Tensor):
        """Re-rotate the first rows to temporal positions, float64, as many as `position` has.

        Held rows start from their originals, so that a sink which moves with every chunk gathers no
        rounding error; for the others each move rounds the key to its dtype once.
        """
        if torch.equal(position, self.position[: len(position)]):
            return
        held = min(len(self._held_position), len(position))
        frequencies = frequencies_of(self.geometry)
        for rows, origin in (
            (slice(0, held), self._held_position),
            (slice(held, len(position)), self.position),
        ):
            if rows.start < rows.stop:
                angles = turn_in_time(position[rows] - origin[rows], frequencies, self.device)
                for pages in self.pages:
                    pages.turn(rows, *angles)
        self.position[: len(position)] = position

    def state(self) -> State:
        """The history, copied to the CPU."""
        return {
            **{
                name: getattr(self, name)[: self.committed].clone()
                for name in ("frame", "cell", "position")
            },
            "held_position": self._held_position.clone(),
            "layers": [pages.state(self.committed) for pages in self.pages],
        }

    def restore(self, state: State):
        """Begin with such a history; KVMemoryError where it is none of this bank's."""
        frame, held = (
            tensor_of(state, "frame", torch.long, None),
            tensor_of(state, "held_position", torch.float64, None),
        )
        cell, position = (
            tensor_of(state, "cell", torch.long, len(frame)),
            tensor_of(state, "position", torch.float64, len(frame)),
        )
        tokens = self.geometry.tokens_per_frame
        in_order = (
            ((frame * tokens + cell).diff() > 0).all()
            and (frame >= 0).all()
            and (cell >= 0).all()
            and (cell < tokens).all()
        )
        if not in_order or len(frame) > self.most or len(held) > self.most:
            raise damaged(
                f"its {len(frame)} rows are not tokens of a take in their order, for a bank of at "
                f"most {self.most}"
            )
        if len(frame) > self.capacity:
            self._grow(len(frame))
        for name, values in (("frame", frame), ("cell", cell), ("position", position)):
            getattr(self, name)[: len(frame)] = values
        parts = {
            pages.restore(saved, len(frame), len(held))
            for pages, saved in zip(self.pages, list_of(state, "layers", len(self.pages)))
        }
        if len(parts) > 1:
            raise damaged("its layers do not hold the same tokens in fewer bits")
        ((self.sink_rows, self.coded_rows),) = parts
        self._held_position, self.length, self.committed = held.clone(), len(frame), len(frame)

    def free(self):
        """Drop every buffer now: the frames of an error's traceback may hold the bank for longer."""
        self.pages = []
        self.length = self.committed = self.sink_rows = self.coded_rows = 0

    def nbytes(self) -> int:
        """Allocated bytes: rows of keys and values, and the held originals of a moving sink."""
        return sum(pages.nbytes() for pages in self.pages)

    def host_bytes(self) -> int:
        """Of these, those in main memory, see `Pages.host_bytes`."""
        return sum(pages.host_bytes() for pages in self.pages)

    def side_bytes(self, rows: int) -> int:
        """Bytes of the keys, or the values, of so many rows in the layer with the most heads."""
        return rows * max(map(len, self.heads)) * self.geometry.head_dim * self._dtype.itemsize

    def live_bytes(self, rows: int) -> int:
        return (rows - self.coded_rows) * self._row_bytes + int(
            self.coded_rows * self._coded_row_bytes
        )
