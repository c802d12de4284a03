"""How a MODEL's RoPE turns keys in time and space, as other nodes have patched it (RIFLEx and its
kin).
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ...kv_policies.cache.rope import temporal_frequencies

# Latent frames, rows or columns at which a RoPE is looked at. Each is at most twice the one before,
# so that an angle known from the smaller ones tells how many whole turns the next one has made.
FRAMES = (1, 2, 3, 5, 8, 16, 24, 37, 64, 128, 200, 333, 512, 1024)
# Angles in radians: what fp32 tables, or positions in fp32, are off by at these frames.
TOLERANCE = 1e-3


def temporal_angles(embedder, channels: int, theta: float) -> tuple[float, ...] | None:
    """Angle per latent frame of each of the first `channels` / 2 pairs, by the host's module for
    RoPE. None: those of `theta`; empty: they are not constant in time, or other pairs turn too.
    """
    return _angles(embedder, 0, slice(0, channels // 2), theta)


def spatial_angles(
    embedder, channels: Sequence[int], theta: float, scales: tuple[float, float] = (1.0, 1.0)
) -> tuple[tuple[float, ...], ...] | None:
    """Angles per row and per column of a grid; `channels` of the axes time, height and width, and
    by how much a step on the grid is stretched in height and width. None and empty as above.
    """
    found = []
    first = channels[0] // 2
    for axis, scale in zip((1, 2), scales):
        pairs = slice(first, first + channels[axis] // 2)
        angles = _angles(embedder, axis, pairs, theta)
        if angles == ():
            return ()
        if angles is None:
            angles = temporal_frequencies(channels[axis], theta).tolist()
        found.append(tuple(scale * angle for angle in angles))
        first = pairs.stop
    stock = tuple(tuple(temporal_frequencies(count, theta).tolist()) for count in channels[1:])
    return None if tuple(found) == stock else tuple(found)


def _angles(embedder, axis: int, pairs: slice, theta: float) -> tuple[float, ...] | None:
    """Angle of each of the pairs that turn along an axis. None: those of `theta`; empty: they are
    not constant along it, or other pairs turn too.
    """
    turned = _turned(embedder, axis)
    stock = torch.zeros(turned.shape[1], dtype=torch.float64)
    stock[pairs] = temporal_frequencies(2 * (pairs.stop - pairs.start), theta)
    frames = torch.tensor(FRAMES, dtype=torch.float64)[:, None]
    if _apart(turned, frames * stock) < TOLERANCE:
        return None
    angles = _angle_per_frame(turned)
    others = angles.clone()
    others[pairs] = 0
    if _apart(turned, frames * angles) > TOLERANCE or others.abs().max() > 1e-6:
        return ()
    return tuple(angles[pairs].tolist())


def _turned(embedder, axis: int) -> Tensor:
    """By how much each pair has turned at `FRAMES` along an axis since its start, modulo whole
    turns, float64 `[frames, pairs]`.
    """
    ids = torch.zeros(1, len(FRAMES) + 1, 3)
    ids[0, 1:, axis] = torch.tensor(FRAMES, dtype=torch.float32)
    matrices = embedder(ids).double().reshape(len(FRAMES) + 1, -1, 2, 2)
    angle = torch.atan2(matrices[..., 1, 0], matrices[..., 0, 0])
    return _modulo(angle[1:] - angle[0])


def _angle_per_frame(turned: Tensor) -> Tensor:
    angles = turned[0]
    for frame, now in zip(FRAMES[1:], turned[1:]):
        angles = angles + _modulo(now - frame * angles) / frame
    return angles


def _apart(turned: Tensor, expected: Tensor) -> float:
    return float(_modulo(turned - expected).abs().max())


def _modulo(angle: Tensor) -> Tensor:
    """The same angle, from -pi to pi."""
    return (angle + math.pi) % (2 * math.pi) - math.pi
