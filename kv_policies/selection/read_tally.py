"""Which latent frames a chunk read."""

import torch
from torch import Tensor

from ..take import Chunk


class ReadTally:
    """How many pairs of a query frame and a head read each latent frame, over the layers and steps
    of one chunk. The counts stay on the device.
    """

    def __init__(self, total_frames: int):
        self.total_frames = total_frames
        self.chunk: int | None = None  # index of the chunk that is counted
        self.pairs = 0  # pairs that have read so far
        self.counts = torch.empty(0)  # [T], how many of them read each latent frame

    def count(self, chunk: Chunk, pairs: int, device: torch.device):
        """So many more pairs read; another chunk begins anew."""
        if chunk.index != self.chunk:
            self.chunk = chunk.index
            self.pairs = 0
            self.counts = torch.zeros(self.total_frames, dtype=torch.long, device=device)
        self.pairs += pairs

    def add(self, numbers: Tensor, times: int = 1):
        """These latent frames were read, each entry of `numbers` by `times` pairs."""
        per_entry = self.counts.new_full((numbers.numel(),), times)
        self.counts.index_add_(0, numbers.flatten(), per_entry)

    def shares(self, chunk: Chunk) -> Tensor | None:
        """By which share of the pairs each latent frame was read, `[T]`; None where another chunk
        is counted.
        """
        return self.counts / self.pairs if chunk.index == self.chunk else None
