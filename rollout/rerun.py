"""A forward of several finished chunks whose keys and values are written afterwards."""

from collections.abc import Hashable, Mapping

from torch import Tensor

from ..kv_policies import Bank, Span


class Rerun:
    """Keys and values of one forward, by bank and layer; they wait in main memory."""

    def __init__(
        self,
        start_frame: int,
        kept: Mapping[Bank, Tensor],
        forwards_before: Mapping[Hashable, int],
        reads_all: bool = False,
    ):
        """The forward begins with latent frame `start_frame`. `kept`: the ids of the tokens that
        each bank keeps of it; `forwards_before` as in `Session.commit`; `reads_all`: it reads all
        of its tokens, not only those.
        """
        self.start_frame = start_frame
        self.forwards_before = forwards_before
        self._kept = kept
        self._reads_all = reads_all
        self._sides: dict[Bank, dict[int, tuple[Tensor, Tensor]]] = {bank: {} for bank in kept}

    def take(self, bank: Bank, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Take down a layer's keys and values `[1, N, H, D]`; returns those of the tokens that the
        bank keeps, or all where it would else have nothing to read.
        """
        self._sides[bank][layer] = k.to("cpu"), v.to("cpu")
        first_token = self.start_frame * bank.geometry.tokens_per_frame
        rows = self._kept[bank] - first_token
        if self._reads_all or len(rows) == k.shape[1] or not len(rows) + bank.committed:
            return k, v
        rows = rows.to(k.device)
        return k[:, rows], v[:, rows]

    def write(self, span: Span):
        """Write a chunk's share into the rows in work of every bank."""
        for bank, layers in self._sides.items():
            tokens = bank.geometry.tokens_per_frame
            first = (span.numbers[0] - self.start_frame) * tokens
            rows = slice(first, first + len(span) * tokens)
            for layer, (k, v) in layers.items():
                bank.write(layer, k[:, rows].to(bank.device), v[:, rows].to(bank.device))
