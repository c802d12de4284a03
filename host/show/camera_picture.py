"""A camera's path as a picture from above."""

import torch
from torch import Tensor

from .plots import as_image, new_figure

ARROWS = 24  # views that are drawn, at most
COLOURS = "viridis"


def picture_of_path(poses: Tensor, title: str) -> Tensor:
    """The path of poses `[T, 4, 4]`, one for each latent frame, as an IMAGE `[1, H, W, 3]`: from
    above, forward at the start being up; arrows show where the camera looks.
    """
    side, ahead = poses[:, 0, 3].numpy(), poses[:, 2, 3].numpy()
    looks = torch.nn.functional.normalize(poses[:, [0, 2], 2], dim=1).numpy()
    # A camera that only turns, or stands, still gets a picture one unit wide.
    half = max(0.5, *(float(abs(line - line.mean()).max()) * 1.2 for line in (side, ahead)))
    figure = new_figure(5, 5)
    axes = figure.subplots()
    shown = slice(None, None, -(-len(poses) // ARROWS))
    axes.plot(side, ahead, color="0.7", linewidth=1, zorder=1)
    frames = range(len(poses))
    dots = axes.scatter(side, ahead, c=frames, cmap=COLOURS, s=14, zorder=2)
    axes.quiver(
        side[shown],
        ahead[shown],
        looks[shown, 0],
        looks[shown, 1],
        frames[shown],
        cmap=COLOURS,
        scale=14,
        width=0.006,
        zorder=3,
    )
    axes.scatter(side[:1], ahead[:1], s=90, facecolors="none", edgecolors="black", zorder=4)
    axes.set_xlim(side.mean() - half, side.mean() + half)
    axes.set_ylim(ahead.mean() - half, ahead.mean() + half)
    axes.set_aspect("equal")
    axes.grid(alpha=0.3)
    axes.set_xlabel("to the right")
    axes.set_ylabel("ahead")
    axes.set_title(title, fontsize="medium")
    figure.colorbar(dots, label="latent frame", shrink=0.7)
    return as_image(figure)
