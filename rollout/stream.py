"""One conditioning branch of a take: its caches and what it reads of them."""

from collections import Counter
from collections.abc import Callable, Hashable

import torch
from torch import Tensor

from ..kv_policies import HISTORY, Chunk, Forward, Geometry, KVCache, KVPolicy, State, Take
from ..kv_policies.state import damaged, part_of


class Stream:
    """The memory of one conditioning branch. Streams never share a cache."""

    def __init__(
        self,
        policy: KVPolicy,
        geometry: Geometry,
        take: Take,
        dtype: torch.dtype,
        place: Callable[[str], torch.device],
    ):
        self.place = place
        self.retention = policy.retention.start(geometry, take)
        self.selection = policy.selection.start(geometry, take, policy.retention)
        self.caches = {
            name: KVCache(geometry, plans, policy.storage, dtype, place(name))
            for name, plans in policy.schedule.memories(policy.retention, geometry, take).items()
        }
        self.copies: dict[
            tuple[str, torch.device], list[tuple[Tensor, Tensor]]
        ] = {}  # of a memory that is read on another device, by layer
        self.text: dict[
            tuple[torch.device, int], tuple[Hashable, Tensor, Tensor]
        ] = {}  # by device and layer: of which prompt, and its
        # cross-attention keys and values
        self.forwards: Counter[str] = Counter()  # by memory

    def begin(self, memory: str, chunk: Chunk):
        if memory == HISTORY:
            self.retention.begin_chunk(self.caches[HISTORY], chunk)
        self.drop_copies(lambda of, device: of == memory)
        self.caches[memory].reserve(chunk)

    def drop_copies(self, useless: Callable[[str, torch.device], bool]):
        for key in list(self.copies):  # another thread may drop the same one
            if useless(*key):
                self.copies.pop(key, None)

    def together(self, forward: Forward, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values of other memories' rows, then of the forward's own memory, `[1, S, H, D]`
        each, on the device of the latter.
        """
        parts, here = [], self.place(forward.memory)
        for name, first, last in forward.reads:
            bank = self.caches[name].banks[0]
            rows = bank.rows_of(first, last)
            if self.place(name) == here:
                parts.append(bank.read(layer, rows))
            else:
                parts.append(tuple(side[:, rows] for side in self.copy(forward, name, here)[layer]))
        parts.append(self.caches[forward.memory].banks[0].read(layer))
        return tuple(torch.cat(side, 1) for side in zip(*parts))

    def copy(
        self, forward: Forward, memory: str, device: torch.device
    ) -> list[tuple[Tensor, Tensor]]:
        """A memory's history by layer on another device: copied once for what lies in it, and gone
        when the device reads others.
        """
        if (memory, device) not in self.copies:
            read = {name for name, _, _ in forward.reads}
            self.drop_copies(lambda of, on: on == device and of not in read)
            bank = self.caches[memory].banks[0]
            self.copies[memory, device] = [
                tuple(side.to(device) for side in bank.read(layer, slice(0, bank.committed)))
                for layer in range(bank.geometry.layers)
            ]
        return self.copies[memory, device]

    def state(self) -> State:
        return {
            "retention": self.retention.state(),
            "selection": self.selection.state(),
            "memories": {name: cache.state() for name, cache in self.caches.items()},
        }

    def restore(self, state: State):
        self.retention.restore(part_of(state, "retention", dict))
        self.selection.restore(part_of(state, "selection", dict))
        memories = part_of(state, "memories", dict)
        if memories.keys() != self.caches.keys():
            raise damaged(
                f"it has the memories {', '.join(memories) or 'none'}, and this policy's are "
                f"{', '.join(self.caches)}"
            )
        for name, cache in self.caches.items():
            cache.restore(memories[name])

    def nbytes(self) -> int:
        copied = (
            side for layers in list(self.copies.values()) for layer in layers for side in layer
        )
        return sum(cache.nbytes() for cache in self.caches.values()) + sum(
            side.nbytes for side in copied
        )

    def host_bytes(self) -> int:
        return sum(cache.host_bytes() for cache in self.caches.values())
