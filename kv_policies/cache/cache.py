"""A KV cache of one stream."""

import torch

from ..state import State, list_of
from ..take import BankPlan, Chunk, Geometry
from .bank import Bank
from .pages import PageSource


class KVCache:
    """All banks of one stream under one name."""

    def __init__(
        self,
        geometry: Geometry,
        plans: list[BankPlan],
        storage: PageSource,
        dtype: torch.dtype,
        device: torch.device,
    ):
        self.geometry = geometry
        self.banks = [
            Bank(geometry, plan, storage, dtype, device, number)
            for number, plan in enumerate(plans)
        ]
        self._check_heads()

    def _check_heads(self):
        """Raise RuntimeError where the banks do not hold each head of every layer once."""
        every_head = list(range(self.geometry.heads))
        for groups in zip(*(bank.heads for bank in self.banks), strict=True):
            if sorted(head for group in groups for head in group) != every_head:
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
        """History rows, summed over layers and heads."""
        return sum(bank.committed * sum(map(len, bank.heads)) for bank in self.banks)

    def nbytes(self) -> int:
        return sum(bank.nbytes() for bank in self.banks)

    def host_bytes(self) -> int:
        return sum(bank.host_bytes() for bank in self.banks)
