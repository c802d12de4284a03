"""The demo world: an endless side-scrolling street, drawn from a seed.

A world is one long picture, 64 pixels high, built on a grid of 8x8 cells (one latent cell each):
sky, ground, houses with windows that are lit or dark, shop signs, and landmarks that a viewer
recognises when the camera comes back. The camera moves sideways by whole tokens (two cells) per
latent frame, so a place that is seen again is the same latent tokens at other columns.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

CELL = 8  # pixels in a latent cell
ROWS, COLUMNS = 8, 16  # cells of one view: 64 x 128 pixels
STEP = 2  # cells the camera moves in one latent frame, when it moves
PIXEL_FRAMES = 4  # pixel frames per latent frame after the first, as in Wan's VAE
PERIODS = (4, 8, 16, 32, 64, 128, 256, 512)  # cells; the control tells world-x modulo the last
CONTROL_CHANNELS = 2 * len(PERIODS)


@dataclass(frozen=True)
class Light:
    zenith: tuple
    horizon: tuple
    tint: tuple  # multiplies everything that does not shine by itself
    lit: float  # share of windows with light in them
    stars: float = 0.0
    clouds: float = 0.0


TIMES = {
    "day": Light((0.36, 0.62, 0.92), (0.80, 0.90, 0.97), (1.0, 1.0, 1.0), 0.12, clouds=0.10),
    "sunset": Light((0.32, 0.22, 0.48), (0.99, 0.60, 0.34), (0.86, 0.62, 0.56), 0.45, clouds=0.05),
    "night": Light((0.02, 0.03, 0.11), (0.09, 0.11, 0.25), (0.34, 0.38, 0.56), 0.60, stars=0.12),
    "dawn": Light((0.52, 0.56, 0.78), (0.99, 0.82, 0.74), (0.86, 0.78, 0.80), 0.25, clouds=0.05),
}
WALLS = {
    "downtown": (
        (0.42, 0.50, 0.58),
        (0.62, 0.66, 0.70),
        (0.30, 0.36, 0.44),
        (0.52, 0.58, 0.50),
        (0.70, 0.62, 0.54),
    ),
    "old town": (
        (0.72, 0.34, 0.26),
        (0.84, 0.62, 0.36),
        (0.60, 0.44, 0.34),
        (0.88, 0.80, 0.66),
        (0.52, 0.28, 0.24),
    ),
    "harbour": (
        (0.58, 0.30, 0.26),
        (0.30, 0.46, 0.52),
        (0.78, 0.72, 0.60),
        (0.44, 0.40, 0.38),
        (0.26, 0.36, 0.46),
    ),
}
HUES = (
    (0.90, 0.22, 0.20),
    (0.96, 0.76, 0.16),
    (0.20, 0.66, 0.36),
    (0.20, 0.46, 0.86),
    (0.70, 0.30, 0.72),
    (0.94, 0.94, 0.90),
)
WINDOWS = (
    ((2, 2, 6, 6),),
    ((1, 2, 3, 6), (5, 2, 7, 6)),
    ((1, 3, 7, 5),),
    ((3, 1, 5, 7),),
)  # x0, y0, x1, y1 in a cell
GLYPHS = (
    "01110 11011 11111 11011",
    "11111 00100 00100 00100",
    "10001 01010 00100 11111",
    "00100 01110 11111 01110",
    "11111 10001 10001 11111",
    "10101 01010 10101 01010",
    "00100 00110 11111 00110",
    "11011 11111 01110 00100",
)


class _Canvas:
    """Albedo and a mask of what shines, drawn on in cells or pixels from the left top."""

    def __init__(self, columns: int, light: Light):
        height = np.linspace(0, 1, ROWS * CELL)[:, None, None]
        self.light = light
        self.pixels = np.broadcast_to(
            (1 - height) * light.zenith + height * light.horizon, (ROWS * CELL, columns * CELL, 3)
        ).copy()
        self.shines = np.ones(self.pixels.shape[:2], bool)  # the sky is its own light

    def box(self, x0, y0, x1, y1, colour, shines=False):
        self.pixels[max(y0, 0) : y1, max(x0, 0) : x1] = colour
        self.shines[max(y0, 0) : y1, max(x0, 0) : x1] = shines

    def shape(self, x0, y0, x1, y1, inside, colour, shines=False):
        """Fill where `inside(u, v)` holds; u, v run over -1..1 across the box."""
        v, u = np.mgrid[y0:y1, x0:x1] + 0.5
        mask = inside((u - x0) / (x1 - x0) * 2 - 1, (v - y0) / (y1 - y0) * 2 - 1)
        view = slice(y0, y1), slice(x0, x1)
        self.pixels[view][mask] = colour
        self.shines[view][mask] = shines

    def finish(self) -> np.ndarray:
        return np.where(self.shines[..., None], self.pixels, self.pixels * self.light.tint)


def _window(canvas, rng, column, row, style, lit):
    colour = (1.0, 0.86, 0.42) if lit else (0.16, 0.20, 0.28)
    for x0, y0, x1, y1 in WINDOWS[style]:
        canvas.box(
            column * CELL + x0,
            row * CELL + y0,
            column * CELL + x1,
            row * CELL + y1,
            colour,
            shines=lit,
        )


def _house(canvas, rng, column, district) -> int:
    tall = district == "downtown"
    wide, high = int(rng.integers(2, 5)), int(rng.integers(2, 7 if tall else 5))
    wall = WALLS[district][rng.integers(5)]
    style, x, top = int(rng.integers(len(WINDOWS))), column * CELL, (ROWS - 1 - high) * CELL
    canvas.box(x, top, x + wide * CELL, (ROWS - 1) * CELL, wall)
    roof = int(rng.integers(3))
    dark = tuple(c * 0.6 for c in wall)
    if district == "old town" or roof == 2:
        canvas.shape(
            x,
            top - CELL,
            x + wide * CELL,
            top,
            lambda u, v: np.abs(u) < (v + 1.1) / 2,
            (0.46, 0.20, 0.16) if wall[0] > 0.55 else (0.24, 0.26, 0.34),
        )
    elif roof == 1:
        canvas.box(x + 3, top - 6, x + 5, top, dark)
        canvas.box(x + 3, top - 8, x + 5, top - 6, (0.95, 0.2, 0.15), shines=True)
    else:
        canvas.box(x, top, x + wide * CELL, top + 1, dark)
    for row in range(ROWS - 1 - high, ROWS - 2):
        for c in range(wide):
            _window(canvas, rng, column + c, row, style, rng.random() < canvas.light.lit)
    door, sign = int(rng.integers(wide)), rng.random() < 0.5
    y = (ROWS - 2) * CELL
    for c in range(wide):
        left = x + c * CELL
        if c == door:
            canvas.box(left + 2, y + 2, left + 6, y + 8, HUES[rng.integers(5)])
        elif sign:
            canvas.box(
                left, y, left + 8, y + 2, HUES[rng.integers(5)], shines=canvas.light.stars > 0
            )
            canvas.box(left + 1, y + 3, left + 7, y + 7, (0.95, 0.90, 0.70), shines=True)
    return wide


def _billboard(canvas, x, ground, rng):
    paper, ink = HUES[rng.integers(6)], HUES[rng.integers(6)]
    ink = (0.10, 0.10, 0.12) if ink == paper else ink
    canvas.box(x + 6, ground - 16, x + 8, ground, (0.3, 0.3, 0.3))
    canvas.box(x + 24, ground - 16, x + 26, ground, (0.3, 0.3, 0.3))
    canvas.box(x, ground - 40, x + 32, ground - 16, paper, shines=True)
    for row, bits in enumerate(GLYPHS[rng.integers(len(GLYPHS))].split()):
        for i, bit in enumerate(bits):
            if bit == "1":
                canvas.box(
                    x + 6 + 4 * i,
                    ground - 36 + 4 * row,
                    x + 10 + 4 * i,
                    ground - 32 + 4 * row,
                    ink,
                    shines=True,
                )
    return 4


def _clock_tower(canvas, x, ground, rng):
    stone = (0.76, 0.70, 0.58)
    canvas.box(x + 4, ground - 48, x + 20, ground, stone)
    canvas.shape(
        x + 4,
        ground - 56,
        x + 20,
        ground - 48,
        lambda u, v: np.abs(u) < (v + 1) / 2,
        HUES[rng.integers(5)],
    )
    canvas.shape(
        x + 6,
        ground - 46,
        x + 18,
        ground - 34,
        lambda u, v: u * u + v * v < 1,
        (0.97, 0.96, 0.86),
        shines=True,
    )
    canvas.box(x + 11, ground - 44, x + 13, ground - 39, (0.1, 0.1, 0.1))
    canvas.box(x + 11, ground - 41, x + 16, ground - 39, (0.1, 0.1, 0.1))
    canvas.box(x + 9, ground - 8, x + 15, ground, (0.3, 0.2, 0.15))
    return 3


def _ferris_wheel(canvas, x, ground, rng):
    hue = HUES[rng.integers(5)]
    canvas.shape(
        x + 12,
        ground - 26,
        x + 28,
        ground,
        lambda u, v: np.abs(np.abs(u) - (v + 1) / 2) < 0.22,
        (0.4, 0.4, 0.45),
    )
    canvas.shape(
        x,
        ground - 48,
        x + 40,
        ground - 8,
        lambda u, v: (
            (np.abs(u * u + v * v - 0.82) < 0.13)
            | ((u * u + v * v < 0.8) & (np.minimum(np.abs(u), np.abs(v)) < 0.06))
        ),
        hue,
        shines=canvas.light.lit > 0.4,
    )
    return 5


def _lighthouse(canvas, x, ground, rng):
    hue = HUES[rng.integers(5)]
    for i in range(6):
        canvas.box(
            x + 3, ground - 8 * i - 8, x + 13, ground - 8 * i, hue if i % 2 else (0.95, 0.95, 0.92)
        )
    canvas.box(x + 4, ground - 54, x + 12, ground - 48, (1.0, 0.95, 0.6), shines=True)
    canvas.box(x + 3, ground - 56, x + 13, ground - 54, (0.2, 0.2, 0.25))
    return 2


def _water_tower(canvas, x, ground, rng):
    for leg in (3, 11, 19):
        canvas.box(x + leg, ground - 24, x + leg + 2, ground, (0.35, 0.30, 0.28))
    canvas.box(x + 1, ground - 42, x + 23, ground - 22, HUES[rng.integers(6)])
    canvas.shape(
        x + 1,
        ground - 48,
        x + 23,
        ground - 42,
        lambda u, v: np.abs(u) < (v + 1) / 2,
        (0.35, 0.30, 0.28),
    )
    canvas.box(x + 1, ground - 33, x + 23, ground - 31, (0.35, 0.30, 0.28))
    return 3


def _observatory(canvas, x, ground, rng):
    canvas.box(x + 2, ground - 16, x + 30, ground, (0.86, 0.84, 0.78))
    canvas.shape(
        x + 2,
        ground - 32,
        x + 30,
        ground,
        lambda u, v: (u * u + v * v < 1) & (v < 0),
        HUES[rng.integers(6)],
    )
    canvas.box(x + 15, ground - 32, x + 18, ground - 16, (0.12, 0.12, 0.16))
    return 4


def _crane(canvas, x, ground, rng):
    hue = HUES[rng.integers(3)]
    canvas.shape(
        x + 4,
        ground - 48,
        x + 10,
        ground,
        lambda u, v: (np.abs(u) > 0.5) | (np.abs((v * 8) % 1 - 0.5) < 0.14),
        hue,
    )
    canvas.box(x, ground - 48, x + 32, ground - 45, hue)
    canvas.box(x + 26, ground - 45, x + 27, ground - 26, (0.25, 0.25, 0.25))
    canvas.box(x + 22, ground - 26, x + 31, ground - 18, HUES[rng.integers(6)])
    return 4


LANDMARKS = (
    _billboard,
    _clock_tower,
    _ferris_wheel,
    _lighthouse,
    _water_tower,
    _observatory,
    _crane,
)


def _ground(canvas, district, columns):
    y = (ROWS - 1) * CELL
    if district == "harbour":
        canvas.box(0, y, columns * CELL, y + CELL, (0.16, 0.36, 0.46))
        for x in range(0, columns * CELL, 16):
            canvas.box(x + 2, y + 3, x + 8, y + 4, (0.50, 0.68, 0.74))
            canvas.box(x + 10, y + 6, x + 15, y + 7, (0.34, 0.54, 0.62))
        canvas.box(0, y, columns * CELL, y + 1, (0.40, 0.34, 0.28))
        return
    canvas.box(0, y, columns * CELL, y + CELL, (0.28, 0.28, 0.31))
    canvas.box(
        0,
        y,
        columns * CELL,
        y + 2,
        (0.58, 0.56, 0.52) if district == "downtown" else (0.34, 0.52, 0.26),
    )
    for x in range(0, columns * CELL, 16):
        canvas.box(x + 3, y + 5, x + 10, y + 6, (0.88, 0.84, 0.60))


def _paint(
    seed: int, columns: int, time: str, district: str
) -> tuple[_Canvas, list[tuple[int, int]]]:
    """A painted canvas, and the first and last column of each landmark on it."""
    rng = np.random.default_rng(seed)
    light = TIMES[time]
    canvas = _Canvas(columns + 6, light)  # the last house may hang over the end
    for column in range(columns):
        for row in range(5):
            x, y, dice = column * CELL, row * CELL, rng.random()
            if dice < light.stars:
                canvas.box(
                    x + 1 + 4 * (dice < light.stars / 2),
                    y + 3,
                    x + 2 + 4 * (dice < light.stars / 2),
                    y + 4,
                    (0.9, 0.9, 0.8),
                    True,
                )
            elif row < 2 and dice < light.clouds and column + 3 < columns:
                canvas.shape(
                    x,
                    y,
                    x + 24,
                    y + 8,
                    lambda u, v: (u * u + (v - 0.4) ** 2 < 0.7) & (v < 0.6),
                    (0.97, 0.96, 0.95),
                    True,
                )
    _ground(canvas, district, columns)
    column, since, found = -int(rng.integers(3)), int(rng.integers(12)), []
    while column < columns:
        if since > 9 and column >= 0 and rng.random() < 0.5:
            wide = LANDMARKS[rng.integers(len(LANDMARKS))](
                canvas, column * CELL, (ROWS - 1) * CELL, rng
            )
            found.append((column, column + wide - 1))
            column, since = column + wide, 0
        elif rng.random() < 0.18:
            column, since = column + 1, since + 1
        else:
            wide = _house(canvas, rng, column, district) if column >= 0 else 1
            column, since = column + wide, since + wide
    return canvas, found


def draw(seed: int, columns: int, time: str, district: str) -> Tensor:
    """The world's picture, `[3, 64, 8 * columns]` in 0..1."""
    canvas, _ = _paint(seed, columns, time, district)
    return torch.from_numpy(canvas.finish()[:, : columns * CELL].transpose(2, 0, 1).copy()).float()


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
    edge = [positions[0] * CELL]
    for a, b in zip(positions, positions[1:]):
        edge += [round(CELL * (a + (b - a) * (i + 1) / PIXEL_FRAMES)) for i in range(PIXEL_FRAMES)]
    return torch.stack([picture[:, :, x : x + COLUMNS * CELL] for x in edge])


def control(positions: Tensor, height: int = ROWS, width: int = COLUMNS) -> Tensor:
    """World-x of every latent column as Fourier features, `[..., F, 16, height, width]` from `[...,
    F]` positions in cells.
    """
    x = positions[..., None].float() + torch.arange(width)
    phase = x[..., None, :] * (2 * torch.pi / torch.tensor(PERIODS, dtype=torch.float32))[:, None]
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


def camera_control(shape: tuple[int, ...], path: str, away_frames: int, start: int) -> Tensor:
    """Control `[1, 16, T, h, w]` for latents of `shape` [B, C, T, h, w]; `start` in screens."""
    if len(shape) != 5:
        raise ValueError(
            f"The camera got an image latent of shape {list(shape)} and needs a video latent [B, "
            "C, T, H, W]. "
            "Use EmptyARVideoLatent."
        )
    positions = torch.tensor(camera(path, shape[2], away_frames)) + start * COLUMNS
    return control(positions, *shape[3:]).movedim(0, 1)[None].contiguous()


def wander(rng: np.random.Generator, frames: int, limit: int) -> list[int]:
    """A camera that walks and pauses at random inside a strip of `limit` cells, so that places come
    back.
    """
    position, positions = int(rng.integers(0, limit // STEP + 1)) * STEP, []
    while len(positions) < frames:
        move = STEP * int(rng.choice((0, 1, -1), p=(0.1, 0.45, 0.45)))
        for _ in range(int(rng.integers(1, 19))):
            if not 0 <= position + move <= limit:
                move = -move
            positions.append(position)
            position += move
    return positions[:frames]
