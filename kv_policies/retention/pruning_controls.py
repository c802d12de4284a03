"""Controls for DeCoPrune: the same chunks, the same number of tokens from each, but other tokens
(arXiv 2609.39096, tables 1 and 3).
"""

from dataclasses import dataclass, fields

import torch
import torch.nn.functional as functional
from torch import Tensor

from ..cache.cache import KVCache
from ..take import Chunk, Geometry, Take
from .decoprune import DeCoPrune, DeCoPruneRun
from .retention import Retention, RetentionRun
from .scores import highest


class ControlRun(DeCoPruneRun):
    """Keeps those that its `ranks` put first, as many as DeCoPrune."""

    def choose(self, scores: Tensor, ranks: Tensor) -> Tensor:
        return highest(ranks, int(super().choose(scores, ranks).sum()))


@dataclass(frozen=True)
class RandomPrune(DeCoPrune):
    """Tokens drawn at random, by a generator of the policy's own."""

    def start(self, geometry: Geometry, take: Take) -> RetentionRun:
        return RandomPruneRun(self, geometry, take)


class RandomPruneRun(ControlRun):
    def ranks(self, cache: KVCache, chunk: Chunk, scores: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(
            (self.take.seed + 7919 * (chunk.index + 1)) % 2**64
        )
        return torch.rand(len(scores), generator=generator)


@dataclass(frozen=True)
class ReversePrune(DeCoPrune):
    """The tokens that were easiest to predict."""

    def start(self, geometry: Geometry, take: Take) -> RetentionRun:
        return ReversePruneRun(self, geometry, take)


class ReversePruneRun(ControlRun):
    def ranks(self, cache: KVCache, chunk: Chunk, scores: Tensor) -> Tensor:
        return -scores.nan_to_num(torch.inf)


@dataclass(frozen=True)
class TempDiffPrune(DeCoPrune):
    """The tokens whose keys differ most from those of the frame before, at layer 1, averaged over
    blocks of a 6x13 grid.
    """

    def start(self, geometry: Geometry, take: Take) -> RetentionRun:
        return TempDiffPruneRun(self, geometry, take)


class TempDiffPruneRun(ControlRun):
    def ranks(self, cache: KVCache, chunk: Chunk, scores: Tensor) -> Tensor:
        (h, w), bank, layer = self.geometry.grid, cache.banks[0], min(1, self.geometry.layers - 1)
        first = bank.committed - (chunk.frames + 1) * h * w
        if (
            first < 0 or bank.frame[first] != chunk.start_frame - 1
        ):  # the frame before is not whole: begin with the chunk's own
            first += h * w
        keys = bank.read(layer, slice(first, bank.committed))[0][0].flatten(1).float()
        keys = functional.normalize(keys, dim=-1).unflatten(0, (-1, h, w))
        change = 1 - (keys[1:] * keys[:-1]).sum(-1)
        change = (
            torch.cat([change[:1], change])[-chunk.frames :]
            if len(change)
            else keys.new_ones(1, h, w)
        )
        block = max(1, h // 6), max(1, w // 13)
        coarse = functional.avg_pool2d(change, block, ceil_mode=True)
        change = coarse.repeat_interleave(block[0], 1).repeat_interleave(block[1], 2)[:, :h, :w]
        return change.reshape(-1).cpu()


CONTROLS = {"random": RandomPrune, "reverse": ReversePrune, "temporal difference": TempDiffPrune}


def control_of(retention: Retention, ranking: str) -> DeCoPrune:
    """The control that matches a DeCoPrune."""
    if type(retention) is not DeCoPrune:
        raise ValueError(
            f"Pruning Control got the policy {type(retention).__name__} and matches DeCoPrune "
            "alone. "
            "Connect KV Policy: DeCoPrune without a head map."
        )
    return CONTROLS[ranking](
        **{field.name: getattr(retention, field.name) for field in fields(retention)}
    )
