"""Moving stored keys in time: a key that was rotated at one temporal position is turned to another,
in fp32.
"""

import torch
from torch import Tensor

from ..take import Geometry


def temporal_frequencies(channels: int, theta: float) -> Tensor:
    """Angle per latent frame of each temporal channel pair, float64 `[channels / 2]` (RoFormer,
    arXiv 2104.09864, eq. 15).
    """
    return theta ** (-torch.arange(0, channels, 2, dtype=torch.float64) / channels)


def frequencies_of(geometry: Geometry) -> Tensor:
    """Angle per latent frame of each temporal pair of a model, float64. ValueError where another
    node has changed its RoPE so that there is none.
    """
    if geometry.temporal_angles is None:
        return temporal_frequencies(geometry.temporal_channels, geometry.rope_theta)
    if not geometry.temporal_angles:
        raise _no_constant_angles("latent frame")
    return torch.tensor(geometry.temporal_angles, dtype=torch.float64)


def spatial_frequencies_of(geometry: Geometry) -> tuple[Tensor, Tensor]:
    """Angle per row, and per column, of each spatial pair of a model, float64; their channels
    follow the temporal ones. ValueError as in `frequencies_of`.
    """
    if geometry.spatial_angles is None:
        channels = (geometry.head_dim - geometry.temporal_channels) // 2
        return (temporal_frequencies(channels, geometry.rope_theta),) * 2
    if not geometry.spatial_angles:
        raise _no_constant_angles("place in the picture")
    rows, columns = (torch.tensor(a, dtype=torch.float64) for a in geometry.spatial_angles)
    return rows, columns


def _no_constant_angles(place: str) -> ValueError:
    return ValueError(
        f"Another node on this MODEL changes its RoPE so that a key at one {place} cannot be "
        "turned to another, which this policy does. Remove that node, or use a policy that leaves "
        "keys in place: a sink with sink_rope 'absolute', re-index 'off'."
    )


def turn_in_time(shift: Tensor, frequencies: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosine and sine that turn keys by `shift` latent frames, float64 `[S]`: fp32 `[S, 1, P]`
    each, for `turn`. `frequencies` `[P]`, float64.

    Angles are built in float64, since a fp32 position past some thousand frames has lost the digits
    that the fastest pair needs.
    """
    return _cos_sin(shift[:, None] * frequencies, device)


def turn_in_time_and_space(
    frames: Tensor, rows: Tensor, columns: Tensor, geometry: Geometry, device: torch.device
) -> tuple[Tensor, Tensor]:
    """The same for keys that move by so many latent frames, rows and columns, each `[S]`: cosine
    and sine of all pairs of a head, so that keys of different places can be compared, or a mean of
    them be put anywhere.
    """
    by_row, by_column = spatial_frequencies_of(geometry)
    moves = ((frames, frequencies_of(geometry)), (rows, by_row), (columns, by_column))
    angle = torch.cat([by.double()[:, None] * frequencies for by, frequencies in moves], -1)
    return _cos_sin(angle, device)


def _cos_sin(angle: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
    """Of angles `[S, P]`, float64 on the CPU: not every device has float64."""
    return tuple(part.float()[:, None].to(device) for part in (angle.cos(), angle.sin()))


def turn(k: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Keys `[B, S, H, D]` turned in time; the first channels of D are temporal, in adjacent pairs,
    the fastest first, and as many pairs are turned as `cos` has: all of a head's with that of
    `turn_in_time_and_space`. The product is taken in fp32.

    Rotations compose, so this equals rotating the bare key at the new place.
    """
    channels = 2 * cos.shape[-1]
    even, odd = k[..., :channels].float().unflatten(-1, (-1, 2)).unbind(-1)
    turned = torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)
    return torch.cat([turned.to(k.dtype), k[..., channels:]], -1)
