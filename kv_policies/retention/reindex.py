"""Squeezing a long history in time, so that it lies no further back than a model was trained on
(DeCoPrune, arXiv 2609.39096, appendix A).
"""

import torch
from torch import Tensor

from ..cache.cache import KVCache
from ..take import Chunk, Geometry, Take
from .retention import require_choice

REINDEX = ("auto", "off", "periodic")
BANDS = ("all", "fast")


def check_reindex(how: str, virtual_length: int, recent: int, bands: str = "all"):
    """Raise ValueError for parameters of a `Reindex` that cannot be."""
    require_choice("reindex", how, REINDEX)
    require_choice("reindex_bands", bands, BANDS)
    if not 0 <= recent < virtual_length:
        raise ValueError(
            f"reindex_recent is {recent} and virtual_length {virtual_length}: the latest frames "
            "keep their places inside the virtual length. Use a reindex_recent below "
            "virtual_length."
        )


class Reindex:
    """When a history is squeezed, and its move.

    how: "auto": a given history once, where generation begins. "periodic", ours: any history,
        whenever more than `recent` frames were made since the last time. "off": never.
    bands: "all" turns every temporal channel pair of a key, "fast" the first half of them, which
        turn fastest (11 of Wan's 22).

    The paper's formula also stretches a history that is longer than `recent` (8) and shorter than
    `virtual_length` (17 latent frames), to `virtual_length`; here it stays as it is.
    """

    def __init__(self, how: str, virtual_length: int, recent: int, bands: str, take: Take):
        self.how = how
        self.virtual_length = virtual_length
        self.recent = recent
        self.bands = bands
        self.given_frames = take.given_frames
        self.at = 0  # latent frame at which it was done last, or at which the shot began

    def begin_shot(self, chunk: Chunk):
        self.at = chunk.start_frame

    def begin_chunk(self, cache: KVCache, chunk: Chunk):
        if chunk.given or self.how == "off":
            return
        boundary, shot = chunk.start_frame, chunk.cue.shot
        is_first_new = boundary == self.given_frames > 0
        is_due_again = self.how == "periodic" and boundary - self.at > self.recent
        if not is_first_new and not is_due_again:
            return
        self.at = boundary
        pairs = pairs_of(self.bands, cache.geometry)
        for bank in cache.banks:
            frame = bank.frame[: bank.committed] - shot
            squeezed = virtual_frames(frame, boundary - shot, self.virtual_length, self.recent)
            bank.move(shot + squeezed, pairs)


def pairs_of(bands: str, geometry: Geometry) -> int:
    """How many temporal channel pairs, from the fastest on, are turned."""
    pairs = geometry.temporal_channels // 2
    return pairs if bands == "all" else pairs // 2


def virtual_frames(frame: Tensor, boundary: int, virtual_length: int, recent: int) -> Tensor:
    """Temporal positions that squeeze a history into the last `virtual_length` frames before
    `boundary`, float64 like `frame`'s shape.

    The `recent` latest frames keep their places, the older ones are spread evenly over the rest. A
    history of no more than `virtual_length` frames stays as it is.
    """
    offset = boundary - frame.double()
    if boundary > virtual_length:
        squeezed = recent + (offset - recent) * (virtual_length - recent) / (boundary - recent)
        offset = torch.where(offset <= recent, offset, squeezed)
    return boundary - offset
