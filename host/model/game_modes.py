"""The modes of Matrix-Game 2: which keys each knows, and what a row of keys and mouse is. From the
authors' `configs/distilled_model` and `pipeline/causal_inference.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

MOUSE_WIDTH = 2  # pitch, up positive, and yaw, right positive
MOUSE_STEP = 0.1  # of a key that moves the mouse, as in training
PIXEL_FRAMES = 4  # of a latent frame
ROWS = 3 * PIXEL_FRAMES  # of keys and mouse that a latent frame is steered by


@dataclass(frozen=True, kw_only=True)
class GameMode:
    """A published mode. Letters are those that the authors' own control takes."""

    name: str
    moves: Mapping[str, int]  # by letter, the number of the key that it presses
    looks: Mapping[str, tuple[float, float]]  # by letter, how it moves the mouse
    keys: int
    window_frames: int  # latent frames that attention reads, the chunk in work included
    no_move: int | None = None  # number of the key that stands for none
    together: bool = True  # whether several keys can be pressed at once

    @property
    def profile(self) -> str:
        """Name of its AR profile."""
        return f"Matrix-Game 2 {self.name}"

    @property
    def letters(self) -> str:
        """All keys that the mode knows."""
        return "".join([*self.moves, *self.looks])

    @property
    def has_mouse(self) -> bool:
        return bool(self.looks)

    @property
    def mouse(self) -> int:
        """Numbers in a row that the mouse has."""
        return MOUSE_WIDTH if self.looks else 0

    @property
    def width(self) -> int:
        """Numbers in a row: the keys, and behind them the mouse."""
        return self.keys + self.mouse


TURNS = {"left": (0.0, -MOUSE_STEP), "right": (0.0, MOUSE_STEP)}
MODES = (
    GameMode(
        name="universal",
        moves={"w": 0, "s": 1, "a": 2, "d": 3},
        looks={
            "i": (MOUSE_STEP, 0.0),
            "k": (-MOUSE_STEP, 0.0),
            "j": TURNS["left"],
            "l": TURNS["right"],
        },
        keys=4,
        window_frames=6,
    ),
    GameMode(
        name="gta_drive",
        moves={"w": 0, "s": 1},
        looks={"a": TURNS["left"], "d": TURNS["right"]},
        keys=2,
        window_frames=4,
    ),
    GameMode(
        name="templerun",
        moves={"w": 1, "s": 2, "z": 3, "c": 4, "a": 5, "d": 6},
        looks={},
        keys=7,
        window_frames=6,
        no_move=0,
        together=False,
    ),
)
MODES_BY_NAME = {mode.name: mode for mode in MODES}
MODES_BY_WIDTH = {mode.keys: mode for mode in MODES}
