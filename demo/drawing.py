"""What a demo world is painted with: a canvas of 8x8 cells, and the sky, ground and houses on
it. `world.py` says where they stand.
"""

from dataclasses import dataclass

import numpy as np

CELL = 8  # pixels in a latent cell
ROWS = 8  # cells from the top of the picture to its bottom


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


class Canvas:
    """Albedo and a mask of what shines, drawn on in cells or pixels from the left top."""

    def __init__(self, columns: int, light: Light):
        height = np.linspace(0, 1, ROWS * CELL)[:, None, None]
        sky = (1 - height) * light.zenith + height * light.horizon
        self.light = light
        self.pixels = np.broadcast_to(sky, (ROWS * CELL, columns * CELL, 3)).copy()
        self.shines = np.ones(self.pixels.shape[:2], bool)  # the sky is its own light

    def box(self, x0, y0, x1, y1, colour, shines=False):
        area = slice(max(y0, 0), y1), slice(max(x0, 0), x1)
        self.pixels[area] = colour
        self.shines[area] = shines

    def shape(self, x0, y0, x1, y1, inside, colour, shines=False):
        """Fill where `inside(u, v)` holds; u, v run over -1..1 across the box."""
        y, x = np.mgrid[y0:y1, x0:x1] + 0.5
        u = (x - x0) / (x1 - x0) * 2 - 1
        v = (y - y0) / (y1 - y0) * 2 - 1
        mask = inside(u, v)
        view = slice(y0, y1), slice(x0, x1)
        self.pixels[view][mask] = colour
        self.shines[view][mask] = shines

    def finish(self) -> np.ndarray:
        tinted = self.pixels * self.light.tint
        return np.where(self.shines[..., None], self.pixels, tinted)


def _window(canvas, column, row, style, lit):
    colour = (1.0, 0.86, 0.42) if lit else (0.16, 0.20, 0.28)
    x = column * CELL
    y = row * CELL
    for x0, y0, x1, y1 in WINDOWS[style]:
        canvas.box(x + x0, y + y0, x + x1, y + y1, colour, shines=lit)


def house(canvas, rng, column, district) -> int:
    """Draw a house, and return its columns. The draws from `rng` stand in their order: another
    order is another world.
    """
    # 1. The walls.
    tall = district == "downtown"
    wide = int(rng.integers(2, 5))
    high = int(rng.integers(2, 7 if tall else 5))
    wall = WALLS[district][rng.integers(5)]
    style = int(rng.integers(len(WINDOWS)))
    x = column * CELL
    top = (ROWS - 1 - high) * CELL
    canvas.box(x, top, x + wide * CELL, (ROWS - 1) * CELL, wall)
    # 2. The roof: a gable, a chimney or mast, or a flat edge.
    roof = int(rng.integers(3))
    dark = tuple(c * 0.6 for c in wall)
    if district == "old town" or roof == 2:
        tiles = (0.46, 0.20, 0.16) if wall[0] > 0.55 else (0.24, 0.26, 0.34)
        canvas.shape(
            x,
            top - CELL,
            x + wide * CELL,
            top,
            lambda u, v: np.abs(u) < (v + 1.1) / 2,
            tiles,
        )
    elif roof == 1:
        canvas.box(x + 3, top - 6, x + 5, top, dark)
        canvas.box(x + 3, top - 8, x + 5, top - 6, (0.95, 0.2, 0.15), shines=True)
    else:
        canvas.box(x, top, x + wide * CELL, top + 1, dark)
    # 3. Windows, in all storeys but the lowest.
    for row in range(ROWS - 1 - high, ROWS - 2):
        for c in range(wide):
            lit = rng.random() < canvas.light.lit
            _window(canvas, column + c, row, style, lit)
    # 4. A door, and beside it perhaps shops with signs.
    door = int(rng.integers(wide))
    has_shops = rng.random() < 0.5
    y = (ROWS - 2) * CELL
    for c in range(wide):
        left = x + c * CELL
        if c == door:
            canvas.box(left + 2, y + 2, left + 6, y + 8, HUES[rng.integers(5)])
        elif has_shops:
            sign = HUES[rng.integers(5)]
            canvas.box(left, y, left + 8, y + 2, sign, shines=canvas.light.stars > 0)
            canvas.box(left + 1, y + 3, left + 7, y + 7, (0.95, 0.90, 0.70), shines=True)
    return wide


def ground(canvas, district, columns):
    """Draw the street, or the water of the harbour."""
    y = (ROWS - 1) * CELL
    if district == "harbour":
        canvas.box(0, y, columns * CELL, y + CELL, (0.16, 0.36, 0.46))
        for x in range(0, columns * CELL, 16):
            canvas.box(x + 2, y + 3, x + 8, y + 4, (0.50, 0.68, 0.74))
            canvas.box(x + 10, y + 6, x + 15, y + 7, (0.34, 0.54, 0.62))
        canvas.box(0, y, columns * CELL, y + 1, (0.40, 0.34, 0.28))
        return
    verge = (0.58, 0.56, 0.52) if district == "downtown" else (0.34, 0.52, 0.26)
    canvas.box(0, y, columns * CELL, y + CELL, (0.28, 0.28, 0.31))
    canvas.box(0, y, columns * CELL, y + 2, verge)
    for x in range(0, columns * CELL, 16):
        canvas.box(x + 3, y + 5, x + 10, y + 6, (0.88, 0.84, 0.60))


def sky(canvas, rng, columns):
    """Draw stars and clouds, at random over the upper rows."""
    light = canvas.light
    for column in range(columns):
        for row in range(5):
            x = column * CELL
            y = row * CELL
            dice = rng.random()
            if dice < light.stars:
                left = x + (5 if dice < light.stars / 2 else 1)
                canvas.box(left, y + 3, left + 1, y + 4, (0.9, 0.9, 0.8), shines=True)
            elif row < 2 and dice < light.clouds and column + 3 < columns:
                canvas.shape(
                    x,
                    y,
                    x + 24,
                    y + 8,
                    lambda u, v: (u * u + (v - 0.4) ** 2 < 0.7) & (v < 0.6),
                    (0.97, 0.96, 0.95),
                    shines=True,
                )
