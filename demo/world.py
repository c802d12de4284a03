"""The demo world: an endless side-scrolling street, drawn from a seed.

A world is one long picture, 64 pixels high, built on a grid of 8x8 cells (one latent cell each):
sky, ground, houses with windows that are lit or dark, shop signs, and landmarks that a viewer
recognises when the camera comes back. The camera moves sideways by whole tokens (two cells) per
latent frame, so a place that is seen again is the same latent tokens at other columns.
"""

from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from ..host.model.camera_keys import keys_by_frame, read_keys
from .drawing import CELL, ROWS, TIMES, WALLS, Canvas, ground, house, sky
from .landmarks import LANDMARKS

COLUMNS = 16  # cells of one view, which is ROWS high: 64 x 128 pixels
STEP = 2  # cells the camera moves in one latent frame, when it moves
PIXEL_FRAMES = 4  # pixel frames per latent frame after the first, as in Wan's VAE
PERIODS = (4, 8, 16, 32, 64, 128, 256, 512)  # cells; the control tells world-x modulo the last
AROUND = PERIODS[-1]  # cells of the whole world
CONTROL_CHANNELS = 2 * len(PERIODS)
DISTRICTS = tuple(WALLS)


def _paint(
    seed: int, columns: int, time: str, district: str
) -> tuple[Canvas, list[tuple[int, int]]]:
    """A painted canvas, and the first and last column of each landmark on it. The draws from `rng`
    stand in their order: another order is another world.
    """
    rng = np.random.default_rng(seed)
    canvas = Canvas(columns + 6, TIMES[time])  # the last house may hang over the end
    sky(canvas, rng, columns)
    ground(canvas, district, columns)
    # From left to right: landmarks with at least ten columns between them, gaps and houses.
    column = -int(rng.integers(3))
    since_landmark = int(rng.integers(12))
    found = []
    while column < columns:
        if since_landmark > 9 and column >= 0 and rng.random() < 0.5:
            landmark = LANDMARKS[rng.integers(len(LANDMARKS))]
            wide = landmark(canvas, column * CELL, (ROWS - 1) * CELL, rng)
            found.append((column, column + wide - 1))
            since_landmark = 0
        elif rng.random() < 0.18:
            wide = 1
            since_landmark += wide
        else:
            wide = house(canvas, rng, column, district) if column >= 0 else 1
            since_landmark += wide
        column += wide
    return canvas, found


def draw(seed: int, columns: int, time: str, district: str) -> Tensor:
    """The world's picture, `[3, 64, 8 * columns]` in 0..1."""
    canvas, _ = _paint(seed, columns, time, district)
    picture = canvas.finish()[:, : columns * CELL]
    return torch.from_numpy(picture.transpose(2, 0, 1).copy()).float()


def landmarks(seed: int, columns: int, time: str, district: str) -> list[tuple[int, int]]:
    """First and last column of each landmark in that picture; the last may hang over its end."""
    return _paint(seed, columns, time, district)[1]


def prompt(time: str, district: str) -> str:
    return f"{district} at {time}"


def views(picture: Tensor, positions: list[int]) -> Tensor:
    """What the camera sees, `[P, 3, 64, 128]` pixel frames for latent frames at `positions` (cells
    of the view's left edge).

    Between two latent frames the camera glides: P = 4 * (len(positions) - 1) + 1.
    """
    left_edges = [positions[0] * CELL]
    for a, b in zip(positions, positions[1:]):
        for i in range(1, PIXEL_FRAMES + 1):
            left_edges.append(round(CELL * (a + (b - a) * i / PIXEL_FRAMES)))
    return torch.stack([picture[:, :, x : x + COLUMNS * CELL] for x in left_edges])


def control(positions: Tensor, height: int = ROWS, width: int = COLUMNS) -> Tensor:
    """World-x of every latent column as Fourier features, `[..., F, 16, height, width]` from `[...,
    F]` positions in cells.
    """
    x = positions[..., None].float() + torch.arange(width)
    frequencies = 2 * torch.pi / torch.tensor(PERIODS, dtype=torch.float32)
    phase = x[..., None, :] * frequencies[:, None]
    features = torch.cat([phase.cos(), phase.sin()], -2)
    return features[..., None, :].expand(*features.shape[:-1], height, width)


CAMERA_PATHS = ("go and return", "pan right", "pan left", "hold", "loop")


def camera(path: str, frames: int, away_frames: int) -> list[int]:
    """Left edge of the view in cells, per latent frame, from 0 on.

    `away_frames` is how long the camera walks before it turns back: "go and return" then stays,
    "loop" turns for ever.
    """
    if away_frames < 1:
        raise ValueError(
            f"A camera walks at least 1 frame before it turns, got away_frames = {away_frames}."
        )
    steps = {
        "hold": lambda i: 0,
        "pan right": lambda i: i,
        "pan left": lambda i: -i,
        "go and return": lambda i: max(0, away_frames - abs(i - away_frames)),
        "loop": lambda i: away_frames - abs(i % (2 * away_frames) - away_frames),
    }
    if path not in steps:
        raise ValueError(
            f"There is no camera path '{path}'. Use one of: {', '.join(CAMERA_PATHS)}."
        )
    return [STEP * steps[path](i) for i in range(frames)]


def keys_camera(text: str, frames: int) -> list[int]:
    """Left edge of the view in cells, per latent frame, of a walk in keys (`camera_keys`): d and l
    go right, a and j left, and this world has no other way to go.
    """
    held = keys_by_frame(read_keys(text), PIXEL_FRAMES * (frames - 1))
    # A pixel frame is a quarter of a step, and a view stands on whole steps.
    ways = [len(keys & {"d", "l"}) - len(keys & {"a", "j"}) for keys in held]
    quarters = [0, *accumulate(max(-1, min(1, way)) for way in ways)]
    return [STEP * round(place / PIXEL_FRAMES) for place in quarters[::PIXEL_FRAMES]]


def camera_control(
    shape: tuple[int, ...], path: str, away_frames: int, start: int, keys: str = ""
) -> Tensor:
    """Control `[1, 16, T, h, w]` for latents of `shape` [B, C, T, h, w]; `start` in screens. With
    `keys`, a walk in words, in place of the path.
    """
    positions = camera_positions(shape, path, away_frames, start, keys)
    return control(positions, *shape[3:]).movedim(0, 1)[None].contiguous()


def camera_positions(
    shape: tuple[int, ...], path: str, away_frames: int, start: int, keys: str = ""
) -> Tensor:
    """Left edge of the view in cells at each latent frame, long [T]; the arguments as above."""
    if len(shape) != 5:
        raise ValueError(
            f"The camera got an image latent of shape {list(shape)} and needs a video latent [B, "
            "C, T, H, W]. "
            "Use EmptyARVideoLatent."
        )
    walk = keys_camera(keys, shape[2]) if keys.strip() else camera(path, shape[2], away_frames)
    return torch.tensor(walk) + start * COLUMNS


def poses(positions: Tensor) -> Tensor:
    """Camera to world at positions in cells, fp32 [T, 4, 4]: the world goes round in a circle, and
    the camera on it without turning.
    """
    angle = positions.double() * (2 * torch.pi / AROUND)
    radius = AROUND / (2 * torch.pi)
    placed = torch.eye(4).repeat(len(positions), 1, 1)
    placed[:, 0, 3] = angle.sin() * radius
    placed[:, 2, 3] = (1 - angle.cos()) * radius
    return placed


def wander(rng: np.random.Generator, frames: int, limit: int) -> list[int]:
    """A camera that walks and pauses at random inside a strip of `limit` cells, so that places come
    back.
    """
    position = int(rng.integers(0, limit // STEP + 1)) * STEP
    positions = []
    while len(positions) < frames:
        move = STEP * int(rng.choice((0, 1, -1), p=(0.1, 0.45, 0.45)))
        moves = int(rng.integers(1, 19))
        for _ in range(moves):
            if not 0 <= position + move <= limit:
                move = -move
            positions.append(position)
            position += move
    return positions[:frames]
