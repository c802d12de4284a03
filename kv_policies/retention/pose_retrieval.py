"""Which finished chunks were seen from where the camera stands now."""

from collections.abc import Sequence

import torch
from torch import Tensor

# Differences that rounding makes where there is none: of a turn in radians, and of a place as a
# share of how far it lies from the origin.
LEAST_TURN = 1e-3
LEAST_MOVE = 1e-6


def nearest(poses: Tensor, now: range, others: Sequence[range], count: int) -> list[int]:
    """Places among `others` of the `count` chunks whose poses are nearest to those of chunk `now`,
    ascending; of equal ones the earlier. Chunks are ranges of latent frames, `poses` [T, 4, 4].
    """
    order = pose_distances(poses, now, others).argsort(stable=True)
    return sorted(order[:count].tolist())


def pose_distances(poses: Tensor, now: range, others: Sequence[range]) -> Tensor:
    """How far apart chunks are seen, fp64 [N]: half the squared distance of their mean places and
    half the angle between their mean rotations, each as a share of the largest (arXiv 2605.22718).

    Neither depends on the origin, the heading or the unit of the path.
    """
    here = _mean(poses, now)
    there = torch.stack([_mean(poses, frames) for frames in others])
    moved = (there[..., 3] - here[:, 3]).square().sum(-1)
    # The trace of R1^T R2.
    cosine = ((there[..., :3] * here[:, :3]).sum((-2, -1)) - 1) / 2
    turned = cosine.clamp(-1, 1).acos()
    far = max(1.0, float(here[:, 3].norm()))
    return (_shares(moved, (LEAST_MOVE * far) ** 2) + _shares(turned, LEAST_TURN)) / 2


def _mean(poses: Tensor, frames: range) -> Tensor:
    return poses[frames.start : frames.stop, :3].double().mean(0)


def _shares(values: Tensor, least: float) -> Tensor:
    """Of the largest; 0 where even that one is no more than rounding."""
    largest = values.max()
    return values / largest if largest > least else torch.zeros_like(values)
