"""What travels with a model call: the caches of all streams, and the one place where attention
meets the policy.
"""

from collections.abc import Callable, Hashable, Mapping
from threading import RLock

import torch
from torch import Tensor

from ..kv_policies import HISTORY, Attention, Bank, Chunk, Forward, Geometry, KVPolicy, State, Take
from .stream import Stream


class Session:
    """One take of one batch item. It holds every tensor of the run; `close` drops them all.

    Forwards into different memories may run at the same time, in threads of their own: `lock`
    guards which streams and chunks there are.
    """

    def __init__(
        self,
        policy: KVPolicy,
        geometry: Geometry,
        take: Take,
        dtype: torch.dtype,
        device: torch.device,
        places: Mapping[str, torch.device] = {},
    ):
        """`places`: the devices of lanes that do not live on `device`."""
        self.policy, self.geometry, self.take = policy, geometry, take
        self.dtype, self.device, self.places = dtype, device, places
        self.streams: dict[Hashable, Stream] = {}
        self.open: dict[str, Chunk] = {}  # the chunk in work of each memory
        self.latents: dict[int, Tensor] = {}  # of finished chunks that will be run again, by index
        self.lock = RLock()

    def place(self, memory: str) -> torch.device:
        return self.places.get(self.policy.schedule.lane(memory), self.device)

    def stream(self, key: Hashable) -> Stream:
        """The stream of a conditioning, made at its first forward."""
        with self.lock:
            if key not in self.streams:
                stream = self.streams[key] = Stream(
                    self.policy, self.geometry, self.take, self.dtype, self.place
                )
                for memory, chunk in self.open.items():
                    stream.begin(memory, chunk)
            return self.streams[key]

    def state(self, names: dict[Hashable, str]) -> State:
        """All streams between two chunks, on the CPU, under names that outlive the run's own keys."""
        return {names[key]: stream.state() for key, stream in self.streams.items()}

    def restore(self, state: State, names: dict[Hashable, str]):
        """Begin with such streams; KVMemoryError where they do not fit this session."""
        for key, name in names.items():
            if name in state:
                self.stream(key).restore(state[name])

    def begin(self, chunk: Chunk, memory: str = HISTORY):
        """Open a chunk: policies evict, then every stream's memory makes room for its rows."""
        with self.lock:
            self.open[memory] = chunk
            for stream in self.streams.values():
                stream.begin(memory, chunk)

    def forget(self, memory: str, before_frame: int):
        """Drop what a memory holds of earlier latent frames."""
        with self.lock:
            for bank in (
                bank for stream in self.streams.values() for bank in stream.caches[memory].banks
            ):
                bank.keep((bank.frame[: bank.length] >= before_frame).nonzero()[:, 0])

    def turn(self, memory: str, first_position: int):
        """Turn what a memory holds in time, to begin at a latent frame. The keys are held as they
        were written, so that turns do not add up.
        """
        with self.lock:
            for bank in (
                bank for stream in self.streams.values() for bank in stream.caches[memory].banks
            ):
                bank.hold(bank.committed)
                bank.move(bank.position[: bank.committed] - bank.position[0] + first_position)

    def attend(
        self,
        forward: Forward,
        keys: list[Hashable],
        layer: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        attention: Attention,
    ) -> Tensor:
        """Write the chunk's keys and values and read what the policy allows.

        q, k, v: `[B, N, H, D]` rotated at their true positions, one batch row per stream in `keys`.
        Returns `[B, N, H * D]`.
        """
        rows = [
            self._attend(
                forward,
                self.stream(key),
                layer,
                q[i : i + 1],
                k[i : i + 1],
                v[i : i + 1],
                attention,
            )
            for i, key in enumerate(keys)
        ]
        return rows[0] if len(rows) == 1 else torch.cat(rows)

    def _attend(
        self,
        forward: Forward,
        stream: Stream,
        layer: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        attention: Attention,
    ) -> Tensor:
        stream.forwards[forward.memory] += layer == 0
        banks = stream.caches[forward.memory].banks
        if len(banks) == 1:  # all heads together: no gather, no scatter
            banks[0].write(layer, k, v)
            if forward.reads:
                return attention(q, *stream.together(forward, layer))
            return self._read(forward, stream, layer, q, banks[0], attention)
        out = torch.empty_like(q)
        for bank in banks:
            heads = bank.head_index[layer]
            if len(heads):
                bank.write(layer, k[:, :, heads], v[:, :, heads])
                out[:, :, heads] = self._read(
                    forward, stream, layer, q[:, :, heads], bank, attention
                ).unflatten(-1, (len(heads), -1))
        return out.flatten(2)

    def _read(
        self,
        forward: Forward,
        stream: Stream,
        layer: int,
        q: Tensor,
        bank: Bank,
        attention: Attention,
    ) -> Tensor:
        if stream.retention.needs_queries:
            stream.retention.observe(layer, forward.chunk, forward.step, q, bank)
        return stream.selection.read(layer, forward.chunk, q, bank, attention)

    def text(
        self,
        forward: Forward,
        prompts: list[tuple[Hashable, Hashable]],
        layer: int,
        project: Callable[[], tuple[Tensor, Tensor]],
    ) -> tuple[Tensor, Tensor]:
        """Cross-attention keys and values `[B, L, H * D]`, projected once per layer and device for
        as long as a stream's prompt stays.

        `prompts`: the stream of each batch row and its prompt.
        """
        place = self.place(forward.memory), layer
        held = [self.stream(key).text.get(place, (None,)) for key, _ in prompts]
        if any(text[0] != prompt for text, (_, prompt) in zip(held, prompts)):
            k, v = project()
            held = [(prompt, k[i : i + 1], v[i : i + 1]) for i, (_, prompt) in enumerate(prompts)]
            for (key, _), text in zip(prompts, held):
                self.stream(key).text[place] = text
        parts = [text[1:] for text in held]
        return parts[0] if len(parts) == 1 else tuple(torch.cat(side) for side in zip(*parts))

    def commit(self, forwards_before: dict[Hashable, int], memory: str = HISTORY):
        """The chunk's rows are history from now on, for all streams. `forwards_before` counts them
        before the forward that wrote the rows.
        """
        with self.lock:
            for key, stream in self.streams.items():
                if stream.forwards[memory] > forwards_before.get(key, 0):
                    stream.caches[memory].commit()
                elif memory == HISTORY:
                    raise RuntimeError(
                        "A conditioning took part in denoising and not in the clean pass, so its "
                        "history would stay noisy. "
                        "This guider calls the model in a way that AR sampling does not know; use "
                        "CFGGuider or BasicGuider."
                    )
                else:  # a prompt that is off at this noise level has no history at it
                    stream.caches[memory].discard()
            del self.open[memory]

    def discard(self, memory: str):
        """The chunk's rows are not to be read again."""
        with self.lock:
            for stream in self.streams.values():
                stream.caches[memory].discard()
            del self.open[memory]

    def copied_bytes(self, forward: Forward) -> int:
        """Most that the caches hold twice while they make room for a forward, or while it reads
        several memories together.
        """
        caches = [cache for stream in self.streams.values() for cache in stream.caches.values()]
        most = max((bank.copied_bytes for cache in caches for bank in cache.banks), default=0)
        for stream in self.streams.values() if forward.reads else ():
            banks = [
                stream.caches[name].banks[0]
                for name in (forward.memory, *(name for name, _, _ in forward.reads))
            ]
            most = max(most, 2 * sum(bank.side_bytes(bank.length) for bank in banks))
        return most

    def forward_counts(self, memory: str = HISTORY) -> dict[Hashable, int]:
        with self.lock:
            return {key: stream.forwards[memory] for key, stream in self.streams.items()}

    def close(self):
        for stream in self.streams.values():
            stream.text.clear()
            stream.copies.clear()
            for cache in stream.caches.values():
                for bank in cache.banks:
                    bank.free()
        self.streams.clear()
        self.open.clear()
        self.latents.clear()
