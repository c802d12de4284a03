"""A KV cache of one stream."""

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from ..state import State, list_of
from ..take import BankPlan, Geometry, Span
from .action_rows import ActionRows
from .bank import Bank
from .pages import PageSource


class KVCache:
    """All banks of one stream under one name, and the rows of action modules beside them."""

    def __init__(
        self,
        geometry: Geometry,
        plans: list[BankPlan],
        storage: PageSource,
        dtype: torch.dtype,
        device: torch.device,
    ):
        self.geometry = geometry
        self._bank = partial(Bank, geometry, storage=storage, dtype=dtype, device=device)
        self.banks = [self._bank(plan, number=number) for number, plan in enumerate(plans)]
        self.actions = ActionRows(geometry.actions, dtype, device)
        self._check_heads()

    def _check_heads(self):
        """Raise RuntimeError where the banks do not hold each head of every layer once."""
        every_head = list(range(self.geometry.heads))
        for groups in zip(*(bank.heads for bank in self.banks), strict=True):
            if sorted(head for group in groups for head in group) != every_head:
                raise RuntimeError(
                    "A KV policy's banks must share out all heads of every layer, each head once."
                )

    def split(self, plans: list[BankPlan], rows: list[Tensor]):
        """Share out the heads of the first bank, which has had them all, among all banks, between
        two chunks. Each becomes the bank of its plan and begins with its `rows` (row numbers of the
        first bank, long, ascending).

        A layer's old rows go before the next layer's new ones are allocated.
        """
        whole = self.banks[0]
        self.banks = [
            self._bank(replace(plan, frames=0), number=number) for number, plan in enumerate(plans)
        ]
        self._check_heads()
        for bank, plan, taken in zip(self.banks, plans, rows, strict=True):
            bank.take_names(whole, taken, plan.frames)
        layer_bytes = 0  # most that one layer's new rows take
        for layer in range(self.geometry.layers):
            for bank, taken in zip(self.banks, rows):
                bank.take_rows(whole, taken, layer)
            whole.free_layer(layer)
            layer_bytes = max(layer_bytes, sum(bank.layer_bytes(layer) for bank in self.banks))
        whole.free()
        picked_bytes = 2 * whole.side_bytes(max(map(len, rows)))  # rows, then their heads
        self.banks[0].copied_bytes = max(whole.copied_bytes, layer_bytes + picked_bytes)

    def reserve(self, span: Span, shot: int = 0):
        for bank in self.banks:
            bank.reserve(span, shot)
        self.actions.reserve(span)

    def commit(self):
        for bank in self.banks:
            bank.commit()
        self.actions.commit()

    def discard(self):
        for bank in self.banks:
            bank.discard()
        self.actions.discard()

    def clear(self):
        """Forget all rows; the buffers stay."""
        for bank in self.banks:
            bank.clear()
        self.actions.clear()

    def forget(self, before_frame: int):
        """Drop the rows of earlier latent frames."""
        for bank in self.banks:
            bank.keep((bank.frame[: bank.length] >= before_frame).nonzero()[:, 0])
        self.actions.forget(before_frame)

    def turn(self, first_position: int):
        """Turn the history in time, to begin at a position. The keys are held as they were written,
        so that turns do not add up.
        """
        for bank in self.banks:
            bank.hold(bank.committed)
            position = bank.position[: bank.committed]
            bank.move(position - bank.position[0] + first_position)

    def free(self):
        """Drop every buffer now."""
        for bank in self.banks:
            bank.free()
        self.actions.free()

    @property
    def copied_bytes(self) -> int:
        """Most that moving rows has held twice."""
        return max((bank.copied_bytes for bank in self.banks), default=0)

    def state(self) -> State:
        state = {"banks": [bank.state() for bank in self.banks]}
        if actions := self.actions.state():
            state["actions"] = actions
        return state

    def restore(self, state: State):
        for bank, saved in zip(self.banks, list_of(state, "banks", len(self.banks))):
            bank.restore(saved)
        self.actions.restore(state.get("actions"))

    def history_tokens(self) -> int:
        """History rows, summed over layers and heads."""
        return sum(bank.committed * sum(map(len, bank.heads)) for bank in self.banks)

    def nbytes(self) -> int:
        return self.actions.nbytes() + sum(bank.nbytes() for bank in self.banks)

    def main_bytes(self) -> int:
        return sum(bank.main_bytes() for bank in self.banks)
