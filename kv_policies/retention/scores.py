"""How wrong an early prediction was, by token, and choosing tokens by such scores."""

import math

import torch
import torch.nn.functional as functional
from torch import Tensor

SCORES = ("mse", "mse / token energy", "mse / chunk energy", "cosine distance")
BLOCK = 4  # tokens of a frame, each way, that share a spatial floor


def token_scores(kind: str, predicted: Tensor, final: Tensor, grid: tuple[int, int]) -> Tensor:
    """Score of each token, fp32 `[F * h * w]` in token order, from normalised latents
    `[1, C, F, H, W]`.

    With e = (predicted - final)^2, means over a token's 2x2 patch and channels:
    "mse": mean e (DeCoPrune, arXiv 2609.39096, eq. 3).
    "mse / token energy": mean e over mean final^2.
    "mse / chunk energy": mean e over the mean of final^2 over the whole chunk.
    "cosine distance": 1 - cos(predicted, final).
    A token at the edge of an odd size is as much of a patch as there is.
    """
    predicted, final = predicted.float(), final.float()

    def by_token(values: Tensor) -> Tensor:
        patch = tuple(-(-size // tokens) for size, tokens in zip(values.shape[3:], grid))
        return functional.avg_pool2d(values[0].mean(0), patch, ceil_mode=True).flatten()

    if kind == "cosine distance":
        product = by_token(predicted * final)
        energies = by_token(predicted.square()) * by_token(final.square())
        return 1 - product / energies.sqrt()
    error = by_token((predicted - final).square())
    if kind == "mse / token energy":
        return error / by_token(final.square())
    if kind == "mse / chunk energy":
        return error / final.square().mean()
    return error


def best_of_each_block(
    scores: Tensor, grid: tuple[int, int], count: int, threshold: float
) -> Tensor:
    """A mask of the `count` highest of each 4x4 tokens of a frame, bool like `scores`
    `[F * h * w]`; a block with no score above `threshold` has none.
    """
    h, w = grid

    # 1. Pad to whole blocks, and gather each block's tokens in the last dimension.
    pad = (0, -w % BLOCK, 0, -h % BLOCK)
    frames = functional.pad(scores.nan_to_num(math.inf).view(-1, h, w), pad, value=-math.inf)
    blocks = frames.unflatten(1, (-1, BLOCK)).unflatten(3, (-1, BLOCK))  # [F, h/4, 4, w/4, 4]
    blocks = blocks.transpose(2, 3).flatten(3)  # [F, h/4, w/4, 16]

    # 2. Choose in each block.
    highest_of_block = blocks.topk(min(count, BLOCK * BLOCK), -1).indices
    mask = torch.zeros_like(blocks, dtype=torch.bool).scatter_(-1, highest_of_block, True)
    mask &= blocks.amax(-1, keepdim=True) > threshold

    # 3. Back to token order, without the padding.
    mask = mask.unflatten(3, (BLOCK, BLOCK)).transpose(2, 3).flatten(3, 4).flatten(1, 2)
    return mask[:, :h, :w].reshape(-1)


def highest(values: Tensor, count: int, first: Tensor | None = None) -> Tensor:
    """A mask of `count` of `values` `[N]`: those in the mask `first` before the others, then the
    highest; of equal values the earlier one.
    """
    order = values.argsort(descending=True, stable=True)
    if first is not None:
        order = torch.cat([order[first[order]], order[~first[order]]])
    return torch.zeros(len(values), dtype=torch.bool).index_fill_(0, order[:count], True)


def count_of_share(share: float, tokens: int) -> int:
    """How many of a chunk's tokens a share is."""
    return round(share * tokens)


def grain_of_share(share: float, tokens_per_frame: int, lengths: set[int]) -> int:
    """See `Retention.grain`, where a share of each chunk of `lengths` latent frames stays."""
    kept = (count_of_share(share, frames * tokens_per_frame) for frames in lengths)
    return math.gcd(tokens_per_frame, *kept)


def highest_share(values: Tensor, share: float, first: Tensor | None = None) -> Tensor:
    """A mask of that share of `values` `[N]`, see `highest`."""
    return highest(values, count_of_share(share, len(values)), first)


class ScoreHistogram:
    """Counts of scores in bins whose edges grow by a factor of 10^(1/8) from 1e-4 to 10, one bin
    below and one above, and the count of tokens that stay (`kept`).
    """

    EDGES = tuple(round(10 ** (exponent / 8), 6) for exponent in range(-32, 9))

    def __init__(self, name: str, threshold: float | None):
        self.name = name
        self.threshold = threshold
        self.counts = [0] * (len(self.EDGES) + 1)
        self.kept = 0

    @property
    def share(self) -> float | None:
        """Share of the scored tokens that stay; None: no token was scored."""
        return self.kept / sum(self.counts) if any(self.counts) else None

    def add(self, scores: Tensor, keep: Tensor):
        """Count scores `[N]` and the mask of those that stay, bool `[N]`. A score equal to an edge
        is in the bin below it, NaN in the last bin.
        """
        self.kept += int(keep.sum())
        bins = torch.bucketize(scores.cpu().nan_to_num(math.inf), torch.tensor(self.EDGES))
        for i, count in enumerate(torch.bincount(bins, minlength=len(self.counts)).tolist()):
            self.counts[i] += count

    def to_dict(self) -> dict:
        return {
            "score": self.name,
            "threshold": self.threshold,
            "edges": list(self.EDGES),
            "counts": list(self.counts),
            "kept": self.kept,
        }
