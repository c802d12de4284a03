"""Squeezing a long history in time, so that it lies no further back than a model was trained on
(DeCoPrune, arXiv 2609.39096, appendix A).
"""

import torch
from torch import Tensor

from ..cache.cache import KVCache
from ..take import Chunk, Take

REINDEX = ("auto", "off", "periodic")


class Reindex:
    """ "auto" squeezes a given history once, where generation begins; "periodic", ours, any
    history, whenever more than `recent` frames were made.
    """

    def __init__(self, how: str, virtual_length: int, recent: int, take: Take):
        self.how, self.virtual_length, self.recent, self.given_frames = (
            how,
            virtual_length,
            recent,
            take.given_frames,
        )
        self.at = 0  # latent frame at which it was done last, or at which the shot began

    def cut(self, chunk: Chunk):
        self.at = chunk.start_frame

    def begin_chunk(self, cache: KVCache, chunk: Chunk):
        if chunk.given or self.how == "off":
            return
        boundary, shot = chunk.start_frame, chunk.shot
        again = self.how == "periodic" and boundary - self.at > self.recent
        if boundary == self.given_frames > 0 or again:
            self.at = boundary
            for bank in cache.banks:
                bank.move(
                    shot
                    + virtual_frames(
                        bank.frame[: bank.committed] - shot,
                        boundary - shot,
                        self.virtual_length,
                        self.recent,
                    )
                )


def virtual_frames(frame: Tensor, boundary: int, virtual_length: int, recent: int) -> Tensor:
    """Temporal positions that squeeze a history into the last `virtual_length` frames before
    `boundary`, float64 like `frame`'s shape.

    The `recent` latest frames keep their places, the older ones are spread evenly over the rest. A
    history that is no longer than that stays as it is.
    """
    offset = boundary - frame.double()
    if boundary > virtual_length:
        squeezed = recent + (offset - recent) * (virtual_length - recent) / (boundary - recent)
        offset = torch.where(offset <= recent, offset, squeezed)
    return boundary - offset
