"""Landmarks of a demo world, which a viewer recognises when the camera comes back.

Each is drawn by `landmark(canvas, x, ground, rng)`, from pixel column `x` on, to stand on pixel row
`ground`, and returns how many cells it is wide.
"""

import numpy as np

from .drawing import HUES

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


def _billboard(canvas, x, ground, rng):
    paper = HUES[rng.integers(6)]
    ink = HUES[rng.integers(6)]
    if ink == paper:
        ink = (0.10, 0.10, 0.12)
    canvas.box(x + 6, ground - 16, x + 8, ground, (0.3, 0.3, 0.3))
    canvas.box(x + 24, ground - 16, x + 26, ground, (0.3, 0.3, 0.3))
    canvas.box(x, ground - 40, x + 32, ground - 16, paper, shines=True)
    glyph = GLYPHS[rng.integers(len(GLYPHS))]
    for row, bits in enumerate(glyph.split()):
        y = ground - 36 + 4 * row
        for i, bit in enumerate(bits):
            if bit == "1":
                left = x + 6 + 4 * i
                canvas.box(left, y, left + 4, y + 4, ink, shines=True)
    return 4


def _clock_tower(canvas, x, ground, rng):
    stone = (0.76, 0.70, 0.58)
    roof = HUES[rng.integers(5)]
    canvas.box(x + 4, ground - 48, x + 20, ground, stone)
    canvas.shape(
        x + 4,
        ground - 56,
        x + 20,
        ground - 48,
        lambda u, v: np.abs(u) < (v + 1) / 2,
        roof,
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
        stripe = hue if i % 2 else (0.95, 0.95, 0.92)
        canvas.box(x + 3, ground - 8 * i - 8, x + 13, ground - 8 * i, stripe)
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
