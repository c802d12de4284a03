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
        raise ValueError(
            "Another node on this MODEL changes its RoPE so that a key at one latent frame cannot "
            "be turned to another, which this policy does. Remove that node, or use a policy that "
            "leaves keys in place: a sink with sink_rope 'absolute', re-index 'off'."
        )
    return torch.tensor(geometry.temporal_angles, dtype=torch.float64)


def turn_in_time(shift: Tensor, frequencies: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosine and sine that turn keys by `shift` latent frames, float64 `[S]`: fp32 `[S, 1, P]`
    each, for `turn`. `frequencies` `[P]`, float64.

    Angles are built in float64, since a fp32 position past some thousand frames has lost the digits
    that the fastest pair needs.
    """
    angle = shift[:, None] * frequencies  # on the CPU: not every device has float64
    return tuple(part.float()[:, None].to(device) for part in (angle.cos(), angle.sin()))


def turn(k: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Keys `[B, S, H, D]` turned in time; the first channels of D are temporal, in adjacent pairs,
    the fastest first, and as many pairs are turned as `cos` has. The product is taken in fp32.

    Rotations compose, so this equals rotating the bare key at the new place.
    """
    channels = 2 * cos.shape[-1]
    even, odd = k[..., :channels].float().unflatten(-1, (-1, 2)).unbind(-1)
    turned = torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)
    return torch.cat([turned.to(k.dtype), k[..., channels:]], -1)
