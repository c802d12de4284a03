"""A camera by latent frame, as LingBot-World reads it: first as numbers, then as the rays of its
pixels.

A camera value is 16 numbers a frame, of any picture size: rows of the pose relative to the frame
before (3x4: rotation and translation, camera to world, x right, y down, z forward), then the focal
lengths and the centre (fx, fy, cx, cy) as shares of the picture's width and height.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from .world_control import WorldControl

PIXEL_FRAMES = 4  # for each latent frame after the first
STILL = 1e-9  # a translation below it is none
LARGEST = 100.0  # translation that a model is told; it was trained with at most 1


class Lens(NamedTuple):
    """Focal lengths and centre in pixels of a picture of 832x480, whatever the take's size. The
    defaults are those of the authors' examples, and of CMBench.
    """

    fx: float = 502.9116
    fy: float = 503.10812
    cx: float = 415.77786
    cy: float = 239.77779

    def shares(self) -> list[float]:
        return [self.fx / 832, self.fy / 480, self.cx / 832, self.cy / 480]


def pixel_frames(frames: int) -> int:
    """Pixel frames of a take of latent frames, each of which has a pose."""
    return PIXEL_FRAMES * (frames - 1) + 1


def camera_control(poses: Tensor, scale: float, lens: Lens) -> WorldControl:
    """The control of a camera whose poses are given by pixel frame, `[4 (T - 1) + 1, 4, 4]`, camera
    to world.

    Each latent frame is told how the camera came to it from the one before, its translation as a
    share of `scale`; 0: of the largest one of this path. So a path as such has no speed, and a
    longer or another path has that of this one only at the same scale. ValueError where that is no
    scale for this path.
    """
    poses = poses.double()[::PIXEL_FRAMES]
    steps = torch.eye(4, dtype=torch.float64).repeat(len(poses), 1, 1)
    steps[1:] = torch.linalg.inv(poses[:-1]) @ poses[1:]
    largest = float(steps[:, :3, 3].norm(dim=1).max())
    if not scale:
        scale = float(f"{largest:.6g}") if largest > STILL else 1.0
    if not largest <= LARGEST * scale:
        raise ValueError(
            f"This path moves by {largest:g} from one latent frame to the next, and scale is "
            f"{scale:g}: the model was trained with moves of at most the scale. Set scale to "
            f"about {largest:g}, or to 0, which takes that."
        )
    steps[:, :3, 3] /= scale
    lens_of_frames = torch.tensor(lens.shares(), dtype=torch.float64).expand(len(poses), 4)
    values = torch.cat([steps[:, :3].flatten(1), lens_of_frames], 1)
    return WorldControl(
        name="world_camera",
        values=values.float().T[None, :, :, None, None].contiguous(),
        scale=scale,
        poses=poses.float(),
    )


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
