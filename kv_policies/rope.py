"""Moving stored keys in time: a key that was rotated at one temporal position is turned to another, in fp32."""
import torch
from torch import Tensor


def temporal_frequencies(channels: int, theta: float) -> Tensor:
    """Angle per latent frame of each temporal channel pair, float64 `[channels / 2]` (RoFormer, arXiv 2104.09864, eq. 15)."""
    return theta ** (-torch.arange(0, channels, 2, dtype=torch.float64) / channels)


def rotate_in_time(k: Tensor, shift: Tensor, channels: int, theta: float) -> Tensor:
    """Turn keys `[B, S, H, D]` by `shift` latent frames, float64 `[S]`; the first `channels` of D are temporal, in adjacent pairs.

    Rotations compose, so this equals rotating the bare key at the new position. Angles are built in float64, since a fp32
    position past some thousand frames has lost the digits that the fastest pair needs; the product is taken in fp32.
    """
    angle = shift[:, None] * temporal_frequencies(channels, theta)      # on the CPU: not every device has float64
    cos, sin = (turn.float()[:, None].to(k.device) for turn in (angle.cos(), angle.sin()))
    even, odd = k[..., :channels].float().unflatten(-1, (-1, 2)).unbind(-1)
    turned = torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)
    return torch.cat([turned.to(k.dtype), k[..., channels:]], -1)


def virtual_frames(frame: Tensor, boundary: int, virtual_length: int, recent: int) -> Tensor:
    """Temporal positions that squeeze a history into the last `virtual_length` frames before `boundary`, float64 like `frame`'s shape.

    The `recent` latest frames keep their places, the older ones are spread evenly over the rest (DeCoPrune, arXiv 2609.39096,
    appendix A). A history that is no longer than that stays as it is.
    """
    offset = boundary - frame.double()
    if boundary > virtual_length:
        squeezed = recent + (offset - recent) * (virtual_length - recent) / (boundary - recent)
        offset = torch.where(offset <= recent, offset, squeezed)
    return boundary - offset
