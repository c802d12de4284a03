"""One conditioning branch of a take: its caches and what it reads of them."""

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable

import torch
from torch import Tensor

from ..kv_policies import HISTORY, Bank, Forward, Geometry, KVCache, KVPolicy, State, Take, View
from ..kv_policies.cache.view import OtherRows
from ..kv_policies.state import damaged, part_of

Layers = list[tuple[Tensor, Tensor]]  # keys and values by layer, [1, S, H, D] each


class Stream:
    """One conditioning branch. Streams never share a cache."""

    def __init__(
        self,
        policy: KVPolicy,
        geometry: Geometry,
        take: Take,
        dtype: torch.dtype,
        place: Callable[[str], torch.device],
    ):
        """`place`: the device on which a cache lives."""
        self.place = place
        self.retention = policy.retention.start(geometry, take)
        self.selection = policy.selection.start(
            geometry, take, policy.schedule.full_frames(policy.retention, geometry)
        )
        plans = policy.schedule.caches(policy.retention, geometry, take)
        self.caches = {
            name: KVCache(geometry, banks, policy.storage, dtype, place(name))
            for name, banks in plans.items()
        }
        self.features = policy.schedule.features()
        # Histories that are read on another device, by cache and that device.
        self.copies: dict[tuple[str, torch.device], Layers] = {}
        # By device and layer: of which prompt, and its cross-attention keys and values.
        self.text: dict[tuple[torch.device, int], tuple[Hashable, Tensor, Tensor]] = {}
        self.forwards: Counter[str] = Counter()  # by cache
        # By cache, the layers whose keys and values the latest forward has written.
        self._layers: dict[str, set[int]] = defaultdict(set)

    def begin(self, forward: Forward, oldest: int | None = None):
        """Make room for a forward's span: rows of frames before `oldest` go, the policy evicts."""
        cache = self.caches[forward.cache]
        if oldest is not None:
            cache.forget(oldest)
        if forward.cache == HISTORY:
            self.retention.begin_chunk(cache, forward.chunk)
        self._drop_copies(lambda name, device: name == forward.cache)
        self.reserve(forward)

    def reserve(self, forward: Forward):
        self.caches[forward.cache].reserve(forward.span, forward.cue.shot)

    def count_layer(self, cache: str, layer: int):
        """A forward writes a layer's keys and values into a cache."""
        layers = self._layers[cache]
        if layer in layers:  # a new forward
            layers.clear()
        layers.add(layer)

    def missing_layers(self, cache: str) -> list[int]:
        """Layers that the latest forward into a cache has left out; none where none has written."""
        layers = self._layers[cache]
        geometry = self.caches[cache].geometry
        return [layer for layer in range(geometry.layers) if layers and layer not in layers]

    # -- what a forward reads

    def views(self, forward: Forward, layer: int | None = None) -> list[View]:
        """What a forward can read, for each bank of its cache; of those that have heads in a layer,
        where one is given.
        """
        others = forward.reads and tuple(
            self._other_rows(forward, read.cache, read.first, read.last) for read in forward.reads
        )
        banks = self.caches[forward.cache].banks
        return [
            View(bank, others, reach=self._reach(forward, bank))
            for bank in banks
            if layer is None or bank.heads[layer]
        ]

    def held(self, forward: Forward) -> list[View]:
        """The same, with all that a cache holds, in reach of the forward or not."""
        return [View(view.bank, view.others) for view in self.views(forward)]

    def _reach(self, forward: Forward, bank: Bank) -> tuple[slice, ...] | None:
        return self.retention.reach(forward.chunk, bank) if forward.cache == HISTORY else None

    def _other_rows(self, forward: Forward, name: str, first: int, last: int) -> OtherRows:
        """History that a forward reads in another cache, which has one bank."""
        (bank,) = self.caches[name].banks
        here = self.place(forward.cache)
        is_here = self.place(name) == here
        copies = None if is_here else self._copy(forward, name, here)
        return OtherRows(bank, bank.rows_of(first, last), copies)

    def _copy(self, forward: Forward, name: str, device: torch.device) -> Layers:
        """A cache's history on another device: copied once for what lies in it, and gone when that
        device reads other caches.
        """
        if (name, device) not in self.copies:
            read = {read.cache for read in forward.reads}
            self._drop_copies(lambda name, where: where == device and name not in read)
            (bank,) = self.caches[name].banks
            history = slice(0, bank.committed)
            self.copies[name, device] = [
                tuple(side.to(device) for side in bank.read(layer, history))
                for layer in range(bank.geometry.layers)
            ]
        return self.copies[name, device]

    def _drop_copies(self, is_useless: Callable[[str, torch.device], bool]):
        for key in list(self.copies):  # another thread may drop the same one
            if is_useless(*key):
                self.copies.pop(key, None)

    def forget_features(self):
        if self.features is not None:
            self.features.clear()

    # -- saved and restored

    def state(self) -> State:
        # "memories" is what the caches are called in files.
        return {
            "retention": self.retention.state(),
            "selection": self.selection.state(),
            "memories": {name: cache.state() for name, cache in self.caches.items()},
        }

    def restore(self, state: State):
        self.retention.restore(part_of(state, "retention", dict))
        self.selection.restore(part_of(state, "selection", dict))
        saved = part_of(state, "memories", dict)
        if saved.keys() != self.caches.keys():
            raise damaged(
                f"it has the memories {', '.join(saved) or 'none'}, and this policy's are "
                f"{', '.join(self.caches)}"
            )
        if HISTORY in self.caches:
            self.retention.split_again(self.caches[HISTORY])
        for name, cache in self.caches.items():
            cache.restore(saved[name])

    # -- bytes

    def nbytes(self) -> int:
        """Allocated bytes of caches and copies."""
        copied = sum(
            side.nbytes for layers in list(self.copies.values()) for pair in layers for side in pair
        )
        return copied + sum(cache.nbytes() for cache in self.caches.values())

    def feature_bytes(self) -> int:
        return 0 if self.features is None else self.features.nbytes()

    def action_bytes(self) -> int:
        """Of `nbytes`, what the model's action modules hold."""
        return sum(cache.actions.nbytes() for cache in self.caches.values())

    def main_bytes(self) -> int:
        return sum(cache.main_bytes() for cache in self.caches.values())

    def copied_bytes(self, forward: Forward) -> int:
        """Most that this stream holds twice: while rows have moved, or while a forward reads
        several caches or stretches of one together, keys and values of one layer.
        """
        moved = max(cache.copied_bytes for cache in self.caches.values())
        if not forward.reads:
            return max(moved, self._gathered_bytes(forward))
        names = [forward.cache, *(read.cache for read in forward.reads)]
        banks = [self.caches[name].banks[0] for name in names]
        return max(moved, 2 * sum(bank.side_bytes(bank.length) for bank in banks))

    def _gathered_bytes(self, forward: Forward) -> int:
        """Of what a forward reads of its cache, where that is not all that lies there."""
        views = self.views(forward)
        gathers = [view for view in views if view.history_rows < view.bank.committed]
        return sum(2 * view.bank.side_bytes(view.history_rows + view.own_rows) for view in gathers)

    def free(self):
        self.text.clear()
        self.copies.clear()
        self.forget_features()
        for cache in self.caches.values():
            cache.free()
