"""Controls to compare a token-pruning policy with: the same chunks, as many tokens of each, but
other tokens (arXiv 2609.39096, tables 1 and 3).
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as functional
from torch import Tensor

from ..cache.cache import KVCache
from ..take import Chunk
from ..words import title_of
from .decoprune import DeCoPrune
from .other_choice import Choice, OtherChoice
from .retention import Retention
from .scores import highest
from .token_prune import TokenPrune, TokenPruneRun

GRID_BLOCKS = 6, 13  # blocks of a frame, down and across, in which TempDiff averages
TEMP_DIFF_LAYER = 1


@dataclass(frozen=True)
class PruneControl(OtherChoice):
    """Keep as many tokens of each chunk as `of` would, those with the highest `rank`."""

    title: ClassVar = "Pruning Control"

    of: TokenPrune = DeCoPrune()

    @abstractmethod
    def rank(self, run: TokenPruneRun, cache: KVCache, chunk: Chunk, ranks: Tensor) -> Tensor:
        """The control's ranks, like the method's own `ranks` `[F * h * w]`."""

    def choose(
        self, run: TokenPruneRun, cache: KVCache, chunk: Chunk, ranks: Tensor
    ) -> Choice | None:
        keep = run.keep(ranks)
        if keep is None:
            return None
        other = self.rank(run, cache, chunk, ranks)
        return highest(other, int(keep.sum())), other


@dataclass(frozen=True)
class RandomPrune(PruneControl):
    """Tokens drawn at random, by a generator of the policy's own."""

    def rank(self, run: TokenPruneRun, cache: KVCache, chunk: Chunk, ranks: Tensor) -> Tensor:
        seed = run.take.seed + 7919 * (chunk.index + 1)
        return torch.rand(len(ranks), generator=torch.Generator().manual_seed(seed % 2**64))


@dataclass(frozen=True)
class ReversePrune(PruneControl):
    """The tokens that were easiest to predict."""

    def rank(self, run: TokenPruneRun, cache: KVCache, chunk: Chunk, ranks: Tensor) -> Tensor:
        return -ranks


@dataclass(frozen=True)
class TempDiffPrune(PruneControl):
    """The tokens whose keys differ most from those of the frame before, at layer 1, averaged over
    blocks of a 6x13 grid.

    The paper's TempDiff (`temp_diff.TempDiff`) chooses once, where generation begins, a fixed
    number of tokens of the whole context; this control chooses chunk by chunk, as many as
    DeCoPrune.
    """

    def rank(self, run: TokenPruneRun, cache: KVCache, chunk: Chunk, ranks: Tensor) -> Tensor:
        h, w = cache.geometry.grid
        change = key_change(cache, chunk)
        if not len(change):  # a single frame, and the one before it is not whole
            return torch.ones(h * w)
        # The chunk's first frame has no change of its own where the frame before is not whole.
        change = torch.cat([change[:1], change])[-chunk.frames :]
        block = max(1, h // GRID_BLOCKS[0]), max(1, w // GRID_BLOCKS[1])
        coarse = functional.avg_pool2d(change, block, ceil_mode=True)
        change = coarse.repeat_interleave(block[0], 1).repeat_interleave(block[1], 2)
        return change[:, :h, :w].reshape(-1).cpu()


def key_change(cache: KVCache, chunk: Chunk) -> Tensor:
    """1 - cosine of a token's key and that of its cell in the frame before, fp32 `[n, h, w]`, for
    the chunk's frames, without the first one where the frame before it is not whole.
    """
    bank, (h, w) = cache.banks[0], cache.geometry.grid
    layer = min(TEMP_DIFF_LAYER, cache.geometry.layers - 1)
    rows = bank.rows_of(chunk.start_frame - 1, chunk.end_frame - 1)
    is_before_whole = rows.stop - rows.start == (chunk.frames + 1) * h * w
    first = rows.start if is_before_whole else rows.stop - chunk.frames * h * w
    keys = bank.read(layer, slice(first, rows.stop))[0][0].flatten(1).float()
    keys = functional.normalize(keys, dim=-1).unflatten(0, (-1, h, w))
    return 1 - (keys[1:] * keys[:-1]).sum(-1)


CONTROLS = {"random": RandomPrune, "reverse": ReversePrune, "temporal difference": TempDiffPrune}


def control_of(retention: Retention, ranking: str) -> PruneControl:
    """The control that matches a DeCoPrune."""
    if type(retention) is not DeCoPrune:
        raise ValueError(
            f"Pruning Control got the policy {title_of(retention)} and matches DeCoPrune "
            "alone. Connect KV Policy: DeCoPrune without a head map."
        )
    return CONTROLS[ranking](retention)
