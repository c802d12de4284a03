"""What travels with a model call: the caches of all streams, and the one place where attention meets the policy."""
from collections.abc import Callable, Hashable

import torch
from torch import Tensor

from ..kv_policies import Attention, Bank, Chunk, Geometry, KVCache, KVPolicy, Take


class Stream:
    """The memory of one conditioning branch. Streams never share a cache."""

    def __init__(self, policy: KVPolicy, geometry: Geometry, take: Take, dtype: torch.dtype, device: torch.device):
        self.retention = policy.retention.start(geometry, take)
        self.selection = policy.selection.start(geometry, take, policy.retention)
        self.cache = KVCache(geometry, policy.retention.banks(geometry, take), policy.storage, dtype, device)
        self.text: dict[int, tuple[Tensor, Tensor]] = {}     # cross-attention keys and values by layer
        self.forwards = 0

    def begin(self, chunk: Chunk):
        self.retention.begin_chunk(self.cache, chunk)
        self.cache.reserve(chunk)


class Session:
    """One take of one batch item. It holds every tensor of the run; `close` drops them all."""

    def __init__(self, policy: KVPolicy, geometry: Geometry, take: Take, dtype: torch.dtype, device: torch.device):
        self.policy, self.geometry, self.take = policy, geometry, take
        self.dtype, self.device = dtype, device
        self.streams: dict[Hashable, Stream] = {}
        self.chunk: Chunk | None = None
        self.step = 0

    def stream(self, key: Hashable) -> Stream:
        """The stream of a conditioning, made at its first forward."""
        if key not in self.streams:
            stream = self.streams[key] = Stream(self.policy, self.geometry, self.take, self.dtype, self.device)
            stream.begin(self.chunk)
        return self.streams[key]

    def begin(self, chunk: Chunk):
        """Open a chunk: policies evict, then every cache makes room for its rows."""
        self.chunk = chunk
        for stream in self.streams.values():
            stream.begin(chunk)

    def attend(self, keys: list[Hashable], layer: int, q: Tensor, k: Tensor, v: Tensor, attention: Attention) -> Tensor:
        """Write the chunk's keys and values and read what the policy allows.

        q, k, v: `[B, N, H, D]` rotated at their true positions, one batch row per stream in `keys`. Returns `[B, N, H * D]`.
        """
        rows = [self._attend(self.stream(key), layer, q[i:i + 1], k[i:i + 1], v[i:i + 1], attention) for i, key in enumerate(keys)]
        return rows[0] if len(rows) == 1 else torch.cat(rows)

    def _attend(self, stream: Stream, layer: int, q: Tensor, k: Tensor, v: Tensor, attention: Attention) -> Tensor:
        stream.forwards += layer == 0
        banks = stream.cache.banks
        if len(banks) == 1:                  # all heads together: no gather, no scatter
            banks[0].write(layer, k, v)
            return self._read(stream, layer, q, banks[0], attention)
        out = torch.empty_like(q)
        for bank in banks:
            heads = bank.head_index[layer]
            if len(heads):
                bank.write(layer, k[:, :, heads], v[:, :, heads])
                out[:, :, heads] = self._read(stream, layer, q[:, :, heads], bank, attention).unflatten(-1, (len(heads), -1))
        return out.flatten(2)

    def _read(self, stream: Stream, layer: int, q: Tensor, bank: Bank, attention: Attention) -> Tensor:
        if stream.retention.needs_queries:
            stream.retention.observe(layer, self.chunk, self.step, q, bank)
        return stream.selection.read(layer, self.chunk, q, bank, attention)

    def text(self, keys: list[Hashable], layer: int, project: Callable[[], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """Cross-attention keys and values `[B, L, H * D]`, projected once per stream and layer."""
        if any(layer not in self.stream(key).text for key in keys):
            k, v = project()
            for i, key in enumerate(keys):
                self.stream(key).text[layer] = k[i:i + 1], v[i:i + 1]
        parts = [self.stream(key).text[layer] for key in keys]
        return parts[0] if len(parts) == 1 else tuple(torch.cat(side) for side in zip(*parts))

    def commit(self, forwards_before: dict[Hashable, int]):
        """The chunk's rows are history from now on, for all streams. `forwards_before` counts them before the clean pass."""
        if any(stream.forwards == forwards_before.get(key, 0) for key, stream in self.streams.items()):
            raise RuntimeError("A conditioning took part in denoising and not in the clean pass, so its history would stay noisy. "
                               "This guider calls the model in a way that AR sampling does not know; use CFGGuider or BasicGuider.")
        for stream in self.streams.values():
            stream.cache.commit()

    def forward_counts(self) -> dict[Hashable, int]:
        return {key: stream.forwards for key, stream in self.streams.items()}

    def close(self):
        for stream in self.streams.values():
            stream.text.clear()
            for bank in stream.cache.banks:
                bank.free()
        self.streams.clear()
        self.chunk = None
