"""The KV cache of one stream: banks of preallocated rows, and for every row the token that it came from."""
import torch
from torch import Tensor

from .base import BankPlan, Chunk, Geometry, Storage
from .rope import rotate_in_time


class Bank:
    """Cached tokens of one group of heads. All layers hold the same tokens in the same order.

    Rows `[0, committed)` are history, rows `[committed, length)` belong to the chunk in work and are overwritten by each of
    its forwards. `frame`, `cell` (row * w + column) and `position` (the temporal position baked into the key) name each row;
    they live on the CPU, so that policies decide without waiting for the device.
    """

    def __init__(self, geometry: Geometry, plan: BankPlan, storage: Storage, dtype: torch.dtype, device: torch.device):
        self.geometry, self.heads, self.storage = geometry, plan.heads_by_layer(geometry), storage
        self.capacity, self.most = (frames * geometry.tokens_per_frame for frames in (plan.frames, plan.most_frames))
        self.head_index = [torch.tensor(group, dtype=torch.long, device=device) for group in self.heads]
        self.k, self.v = ([storage.allocate((1, self.capacity, len(group), geometry.head_dim), dtype, device) for group in self.heads]
                          for _ in range(2))
        self.frame = torch.empty(self.capacity, dtype=torch.long)
        self.cell = torch.empty(self.capacity, dtype=torch.long)
        self.position = torch.empty(self.capacity, dtype=torch.float64)
        self.length = self.committed = 0
        self._source: list[Tensor] = []              # keys of the first rows as they were written, see `hold`
        self._source_position = torch.empty(0, dtype=torch.float64)

    def reserve(self, chunk: Chunk):
        """Append the chunk's rows. Their keys and values arrive with the forwards."""
        tokens = self.geometry.tokens_per_frame
        end = self.length + chunk.frames * tokens
        if end > self.most:
            raise RuntimeError(f"A KV bank for {self.most} rows was asked to hold {end}: the most_frames in the policy's plan are too few.")
        if end > self.capacity:
            self._grow(min(self.most, max(end, self.capacity * 5 // 4)))
        rows = slice(self.length, end)
        frame = torch.tensor(chunk.numbers).repeat_interleave(tokens)
        self.frame[rows], self.position[rows] = frame, frame.double()
        self.cell[rows] = torch.arange(tokens).repeat(chunk.frames)
        self.length = end

    def _grow(self, capacity: int):
        """Move into larger buffers, one at a time, so that no more than one layer is held twice."""
        def larger(old: Tensor, new: Tensor, dim: int) -> Tensor:
            new.narrow(dim, 0, self.length).copy_(old.narrow(dim, 0, self.length))
            return new

        for buffers in (self.k, self.v):
            for layer, old in enumerate(buffers):
                buffers[layer] = larger(old, self.storage.allocate((1, capacity, *old.shape[2:]), old.dtype, old.device), 1)
                del old
        for name in ("frame", "cell", "position"):
            old = getattr(self, name)
            setattr(self, name, larger(old, old.new_empty(capacity), 0))
        self.capacity = capacity

    def write(self, layer: int, k: Tensor, v: Tensor):
        """Overwrite the rows of the chunk in work, `[1, N, H, D]` each."""
        self.k[layer][:, self.committed:self.length] = k
        self.v[layer][:, self.committed:self.length] = v

    def read(self, layer: int) -> tuple[Tensor, Tensor]:
        """Views of all live rows, `[1, S, H, D]` each; nothing is copied."""
        return self.k[layer][:, :self.length], self.v[layer][:, :self.length]

    def commit(self):
        self.committed = self.length

    def discard(self):
        """Give up the rows of the chunk in work."""
        self.length = self.committed

    def rows_of(self, first: int, last: int) -> slice:
        """Where the history rows of the latent frames `first` to `last` lie; frames ascend."""
        bounds = torch.tensor([first, last + 1])
        return slice(*torch.searchsorted(self.frame[:self.committed].contiguous(), bounds).tolist())

    def keep(self, rows: Tensor):
        """Gather the given live rows (long, ascending) to the front, in all layers; the rest is gone."""
        if len(rows) == self.length:
            return
        # Rows that stay where they are (a sink) need no copy: begin at the first row that moves.
        own = self.length - self.committed
        if len(rows) < own or (own and not torch.equal(rows[len(rows) - own:], torch.arange(self.committed, self.length))):
            raise RuntimeError("A KV policy dropped rows of the chunk in work; only history may be evicted.")
        moved = (rows != torch.arange(len(rows))).nonzero()
        first = int(moved[0]) if len(moved) else len(rows)
        moving, target = rows[first:], slice(first, len(rows))
        if len(moving):
            on_device = moving.to(self.k[0].device)
            for buffer in (*self.k, *self.v):
                buffer[:, target] = buffer.index_select(1, on_device)     # one layer's rows at a time: a small working set
            for name in (self.frame, self.cell, self.position):
                name[target] = name[moving]
        self.committed = len(rows) - own
        self.length = len(rows)

    def hold(self, count: int):
        """Keep the keys of the first `count` rows as they are beside the bank, once; those rows must stay the first ones."""
        if not self._source:
            self._source = [k[:, :count].clone() for k in self.k]
            self._source_position = self.position[:count].clone()

    def move(self, position: Tensor):
        """Re-rotate the first rows to temporal positions, float64, as many as `position` has.

        Held rows start from their originals, so that a sink which moves with every chunk gathers no rounding error; for the
        others each move rounds the key to its dtype once.
        """
        if torch.equal(position, self.position[:len(position)]):
            return
        g, held = self.geometry, len(self._source_position)
        for first, last, keys, origin in ((0, min(held, len(position)), self._source, self._source_position),
                                          (held, len(position), self.k, self.position)):
            if first < last:
                shift = position[first:last] - origin[first:last]
                for buffer, source in zip(self.k, keys):
                    buffer[:, first:last] = rotate_in_time(source[:, first:last], shift, g.temporal_channels, g.rope_theta)
        self.position[:len(position)] = position

    def free(self):
        """Drop every buffer now: the frames of an error's traceback may hold the bank for longer."""
        self.k, self.v, self._source = [], [], []
        self.length = self.committed = 0

    def nbytes(self) -> int:
        """Allocated bytes: rows of keys and values, and the held originals of a moving sink."""
        return sum(t.numel() * t.element_size() for t in (*self.k, *self.v, *self._source))

    def live_bytes(self, rows: int) -> int:
        return sum(2 * rows * k.shape[2] * k.shape[3] * k.element_size() for k in self.k)


class KVCache:
    """All banks of one stream."""

    def __init__(self, geometry: Geometry, plans: list[BankPlan], storage: Storage, dtype: torch.dtype, device: torch.device):
        self.geometry = geometry
        self.banks = [Bank(geometry, plan, storage, dtype, device) for plan in plans]
        everyone = list(range(geometry.heads))
        if any(sorted(head for heads in layer for head in heads) != everyone for layer in zip(*(bank.heads for bank in self.banks), strict=True)):
            raise RuntimeError("A KV policy's banks must share out all heads of every layer, each head once.")

    def reserve(self, chunk: Chunk):
        for bank in self.banks:
            bank.reserve(chunk)

    def commit(self):
        for bank in self.banks:
            bank.commit()

    def discard(self):
        for bank in self.banks:
            bank.discard()

    def history_tokens(self) -> int:
        """Kept history rows, summed over layers and heads."""
        return sum(bank.committed * sum(map(len, bank.heads)) for bank in self.banks)

    def nbytes(self) -> int:
        return sum(bank.nbytes() for bank in self.banks)
