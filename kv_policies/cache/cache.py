"""The KV cache of one stream."""

import torch

from ..state import State, list_of
from ..storage.storage import Storage
from ..take import BankPlan, Chunk, Geometry
from .bank import Bank


class KVCache:
    """All banks of one stream."""

    def __init__(
        self,
        geometry: Geometry,
        plans: list[BankPlan],
        storage: Storage,
        dtype: torch.dtype,
        device: torch.device,
    ):
        self.geometry = geometry
        self.banks = [
            Bank(geometry, plan, storage, dtype, device, number)
            for number, plan in enumerate(plans)
        ]
        everyone = list(range(geometry.heads))
        if any(
            sorted(head for heads in layer for head in heads) != everyone
            for layer in zip(*(bank.heads for bank in self.banks), strict=True)
        ):
            raise RuntimeError(
                "A KV policy's banks must share out all heads of every layer, each head once."
            )

    def reserve(self, chunk: Chunk):
        for bank in self.banks:
            bank.reserve(chunk)

    def commit(self):
        for bank in self.banks:
            bank.commit()

    def discard(self):
        for bank in self.banks:
            bank.discard()

    def state(self) -> State:
        return {"banks": [bank.state() for bank in self.banks]}

    def restore(self, state: State):
        for bank, saved in zip(self.banks, list_of(state, "banks", len(self.banks))):
            bank.restore(saved)

    def history_tokens(self) -> int:
        """Kept history rows, summed over layers and heads."""
        return sum(bank.committed * sum(map(len, bank.heads)) for bank in self.banks)

    def nbytes(self) -> int:
        return sum(bank.nbytes() for bank in self.banks)

    def host_bytes(self) -> int:
        return sum(bank.host_bytes() for bank in self.banks)
