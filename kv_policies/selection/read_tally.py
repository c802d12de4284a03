"""Which latent frames a chunk read."""

import torch
from torch import Tensor

from ..take import Chunk


class ReadTally:
    """How many pairs of a query frame and a head read each latent frame, over the layers and steps
    of one chunk. It stays on the device.
    """

    def __init__(self, total_frames: int):
        self.total_frames, self.chunk, self.pairs, self.counts = (
            total_frames,
            None,
            0,
            torch.empty(0),
        )

    def count(self, chunk: Chunk, pairs: int, device: torch.device):
        """So many more pairs read; another chunk begins anew."""
        if chunk.index != self.chunk:
            self.chunk, self.pairs, self.counts = (
                chunk.index,
                0,
                torch.zeros(self.total_frames, dtype=torch.long, device=device),
            )
        self.pairs += pairs

    def add(self, numbers: Tensor, times: int = 1):
        """Those of them, `times` each, read these latent frames."""
        self.counts.index_add_(
            0, numbers.flatten(), self.counts.new_full((numbers.numel(),), times)
        )

    def shares(self, chunk: Chunk) -> Tensor | None:
        """Of each latent frame, `[T]`; None where nothing is known of that chunk."""
        return self.counts / self.pairs if chunk.index == self.chunk else None
