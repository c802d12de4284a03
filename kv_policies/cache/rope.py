"""Moving stored keys in time: a key that was rotated at one temporal position is turned to another,
in fp32.
"""

import torch
from torch import Tensor


def temporal_frequencies(channels: int, theta: float) -> Tensor:
    """Angle per latent frame of each temporal channel pair, float64 `[channels / 2]` (RoFormer,
    arXiv 2104.09864, eq. 15).
    """
    return theta ** (-torch.arange(0, channels, 2, dtype=torch.float64) / channels)


def turn_in_time(
    shift: Tensor, channels: int, theta: float, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Cosine and sine that turn keys by `shift` latent frames, float64 `[S]`: fp32 `[S, 1, channels
    / 2]` each, for `turn`.

    Angles are built in float64, since a fp32 position past some thousand frames has lost the digits
    that the fastest pair needs.
    """
    angle = shift[:, None] * temporal_frequencies(
        channels, theta
    )  # on the CPU: not every device has float64
    return tuple(part.float()[:, None].to(device) for part in (angle.cos(), angle.sin()))


def turn(k: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Keys `[B, S, H, D]` turned in time; the first channels of D are temporal, in adjacent pairs.
    The product is taken in fp32.

    Rotations compose, so this equals rotating the bare key at the new place.
    """
    channels = 2 * cos.shape[-1]
    even, odd = k[..., :channels].float().unflatten(-1, (-1, 2)).unbind(-1)
    turned = torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)
    return torch.cat([turned.to(k.dtype), k[..., channels:]], -1)
