"""Keys and mouse by pixel frame, from a text, and what each latent frame is steered by."""

import torch
from torch import Tensor

from .camera import pixel_frames
from .camera_keys import Held, keys_by_frame, read_keys
from .game_modes import MODES_BY_NAME, PIXEL_FRAMES, ROWS, GameMode
from .world_control import WorldControl

TEXT_WIDTH = 4096  # of Wan's text encoder


def read_actions(mode: str, text: str) -> list[Held]:
    """The parts of a text such as `w-16,wj-8,none-8`, for a mode by its name. ValueError, in a
    sentence, for one that cannot be read or holds keys that the mode does not know.
    """
    if mode not in MODES_BY_NAME:
        raise ValueError(f"There is no mode '{mode}'. Use one of: {', '.join(MODES_BY_NAME)}.")
    game = MODES_BY_NAME[mode]
    walk = read_keys(text, game.letters)
    for part in walk:
        if len(part.keys) > 1 and not game.together:
            keys = "".join(sorted(part.keys))
            raise ValueError(
                f"'{keys}-{part.frames}' holds {len(part.keys)} keys, and {mode} is played with "
                f"one at a time. Write them one after the other, such as "
                f"{keys[0]}-{part.frames},{keys[1]}-{part.frames}."
            )
    return walk


def action_control(mode: str, text: str, frames: int) -> WorldControl:
    """The control of a take of latent frames; after the end of the text no key is held.

    Each latent frame f is steered by the 12 rows of the pixel frames 4 f - 12 to 4 f - 1, the first
    row in place of those before it: so the row of pixel frame 4 f acts from latent frame f + 1 on.
    """
    held = keys_by_frame(read_actions(mode, text), pixel_frames(frames))
    rows = torch.stack([row_of(MODES_BY_NAME[mode], keys) for keys in held])
    frame = PIXEL_FRAMES * torch.arange(frames)[:, None]
    latest = rows[(frame - ROWS + torch.arange(ROWS)).clamp(min=0)]  # [T, 12, width]
    values = latest.flatten(1).T[None, :, :, None, None].contiguous()
    return WorldControl(name="world_actions", values=values)


def row_of(mode: GameMode, keys: frozenset[str]) -> Tensor:
    """The row of keys that are held together, `[width]`: 1 for each key, then the mouse."""
    row = torch.zeros(mode.width)
    for letter, number in mode.moves.items():
        row[number] = float(letter in keys)
    if mode.no_move is not None and not keys:
        row[mode.no_move] = 1.0
    for letter, move in mode.looks.items():
        if letter in keys:
            row[mode.keys :] += torch.tensor(move)
    return row


def no_prompt() -> list:
    """A CONDITIONING for a model that reads no text: what ComfyUI's nodes can go on from."""
    return [[torch.zeros(1, 1, TEXT_WIDTH), {}]]


def describe_actions(mode: str, text: str, frames: int) -> str:
    """What becomes of a text, in words for the node."""
    walk = read_actions(mode, text)
    total, written = pixel_frames(frames), sum(part.frames for part in walk)
    end = "then no key is held" if written < total else "which fills the take"
    if written > total:
        end = f"of which the last {written - total} are left out"
    return (
        f"{frames} latent frames, {total} pixel frames, of {mode}: {written} are written, {end}. A "
        "key acts from the latent frame after its own on."
    )
