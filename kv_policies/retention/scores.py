"""How wrong an early prediction was, by token: the scores that decide what could not have been
predicted.
"""

import math

import torch
import torch.nn.functional as functional
from torch import Tensor

SCORES = ("mse", "mse / token energy", "mse / chunk energy", "cosine distance")


def token_scores(kind: str, predicted: Tensor, final: Tensor, grid: tuple[int, int]) -> Tensor:
    """Score of each token, fp32 `[F * h * w]` in token order; latents `[1, C, F, H, W]`,
    normalised.

    "mse": mean over a token's 2x2 patch and channels of (predicted - final)^2 (DeCoPrune, arXiv
    2609.39096, eq. 3). Divided by the mean of final^2 over the token, or over the chunk; or 1 - cos
    of the two patches. A token at the edge of an odd size is as much of a patch as there is.
    """
    predicted, final = predicted.float(), final.float()

    def by_token(values: Tensor) -> Tensor:
        patch = tuple(-(-size // tokens) for size, tokens in zip(values.shape[3:], grid))
        return functional.avg_pool2d(values[0].mean(0), patch, ceil_mode=True).flatten()

    if kind == "cosine distance":
        product, a, b = (
            by_token(predicted * final),
            by_token(predicted.square()),
            by_token(final.square()),
        )
        return 1 - product / (a * b).sqrt()
    error = by_token((predicted - final).square())
    if kind == "mse / token energy":
        return error / by_token(final.square())
    if kind == "mse / chunk energy":
        return error / final.square().mean()
    return error


def best_of_each_block(
    scores: Tensor, grid: tuple[int, int], least: int, threshold: float, block: int = 4
) -> Tensor:
    """A mask of the `least` best scored of each block x block tokens of a frame, bool like `scores`
    `[F * h * w]`.

    A block whose best score is not above `threshold` has nothing to say and is left alone.
    """
    h, w = grid
    pad = (0, -w % block, 0, -h % block)
    blocks = functional.pad(scores.nan_to_num(math.inf).view(-1, h, w), pad, value=-math.inf)
    tiled = (
        blocks.unflatten(1, (-1, block)).unflatten(3, (-1, block)).transpose(2, 3).flatten(3)
    )  # [F, h/b, w/b, b * b]
    best = torch.zeros_like(tiled, dtype=torch.bool).scatter_(
        -1, tiled.topk(min(least, block * block), -1).indices, True
    )
    best &= tiled.amax(-1, keepdim=True) > threshold
    best = best.unflatten(3, (block, block)).transpose(2, 3).flatten(3, 4).flatten(1, 2)
    return best[:, :h, :w].reshape(-1)


def highest(values: Tensor, count: int, first: Tensor | None = None) -> Tensor:
    """A mask of `count` of `values` `[N]`: those in the mask `first` before the others, then the
    highest; of equal ones the one that comes first.
    """
    order = values.argsort(descending=True, stable=True)
    if first is not None:
        order = torch.cat([order[first[order]], order[~first[order]]])
    return torch.zeros(len(values), dtype=torch.bool).index_fill_(0, order[:count], True)


class ScoreHistogram:
    """Counts of scores in bins that grow by a factor, from 1e-4 to 10, with one bin below and one
    above; and how many of the tokens were to stay.
    """

    EDGES = tuple(round(10 ** (exponent / 8), 6) for exponent in range(-32, 9))

    def __init__(self, name: str, threshold: float | None):
        self.name, self.threshold = name, threshold
        self.counts = [0] * (len(self.EDGES) + 1)
        self.kept = 0

    @property
    def share(self) -> float | None:
        """Of the tokens that were scored, those that were to stay; None: none was scored."""
        return self.kept / sum(self.counts) if any(self.counts) else None

    def add(self, scores: Tensor, keep: Tensor):
        """Count scores, and those of tokens that are to stay, bool; one equal to an edge lies below
        it, and one that is no number above all.
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
