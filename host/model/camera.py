"""A camera by latent frame, as world models read it: the rays of its pixels.

A camera value is 16 numbers a frame, of any picture size: rows of the pose relative to the frame
before (3x4: rotation and translation, camera to world, x right, y down, z forward), then the focal
lengths and the centre (fx, fy, cx, cy) as shares of the picture's width and height.
"""

import torch
from torch import Tensor

CHANNELS = 16


def rays(camera: Tensor, height: int, width: int) -> Tensor:
    """Origin and direction of each pixel's ray, `[1, 6, F, height, width]`, of cameras `[16, F]`.

    Origins are the translations, the same for all pixels of a frame; directions have length 1. An
    odd number of latent cells is filled up as the model fills it up, and the rays go on there.
    """
    pose, (fx, fy, cx, cy) = camera[:12].T.reshape(-1, 3, 4), camera[12:]
    y = (torch.arange(_even_cells(height), device=camera.device) + 0.5)[None, :, None]
    x = (torch.arange(_even_cells(width), device=camera.device) + 0.5)[None, None, :]
    fx, cx = (share[:, None, None] * width for share in (fx, cx))
    fy, cy = (share[:, None, None] * height for share in (fy, cy))
    right = ((x - cx) / fx).expand(-1, y.shape[1], -1)
    down = ((y - cy) / fy).expand(-1, -1, x.shape[2])
    toward = torch.stack([right, down, torch.ones_like(right)], 1)
    toward = toward / toward.norm(dim=1, keepdim=True)
    directions = torch.einsum("fij,fjhw->fihw", pose[:, :, :3], toward)
    origins = pose[:, :, 3, None, None].expand_as(directions)
    return torch.cat([origins, directions], 1).transpose(0, 1)[None]


def _even_cells(pixels: int) -> int:
    """The picture's side, filled up to whole patches of two latent cells of 8 pixels."""
    return -(-pixels // 16) * 16
