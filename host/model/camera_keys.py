"""Walks in words: keys that are held for a number of pixel frames, as `w-16,wj-8,none-8`.

The keys, their speeds and what they turn about are those of LingBot-World's `wasd_ijkl_to_c2ws.py`
(prashant182/lingbot-world @ 91ff5f67): w a s d move on level ground, i k look up and down, j l turn
left and right.
"""

import math
from itertools import chain, islice, repeat
from typing import NamedTuple

import torch
from torch import Tensor

KEYS = "wasdijkl"
NONE = "none"
MOVE, TURN = 0.05, 2.0  # of a pixel frame: units of the world, and degrees
STEEPEST = 85.0  # degrees that a camera looks up or down
DIGITS = 9  # of a number of frames
SHOWN = 40  # characters of a faulty part that an error repeats


class Held(NamedTuple):
    """Keys that are held together."""

    keys: frozenset[str]
    frames: int  # pixel frames


def read_keys(text: str, allowed: str = KEYS) -> list[Held]:
    """The parts of a text. ValueError, in a sentence, for one that cannot be read."""
    parts = ["".join(part.split()).lower() for part in text.replace("\n", ",").split(",")]
    walk = []
    for part in filter(None, parts):
        keys, dash, count = part.rpartition("-")
        shown = beginning(part)
        is_count = count.isdecimal() and len(count) <= DIGITS and int(count) > 0
        if not (dash and keys and is_count):
            raise ValueError(
                f"'{shown}' is no part of a walk. Write keys, a dash and a number of frames from 1 "
                f"to {10**DIGITS - 1}, such as w-16; {NONE}-8 holds none."
            )
        held = frozenset() if keys == NONE else frozenset(keys)
        if unknown := sorted(held - set(allowed)):
            raise ValueError(
                f"'{shown}' holds the key '{unknown[0]}', and there are {' '.join(allowed)}. "
                f"{NONE} stands for no key."
            )
        walk.append(Held(held, int(count)))
    if not walk:
        raise ValueError(
            "The keys are empty. Write a walk, such as w-16,wj-8; none-8 stands still."
        )
    return walk


def beginning(text: str, most: int = SHOWN) -> str:
    """A text, or the beginning of a long one."""
    return text if len(text) <= most else f"{text[:most]}..."


def keys_by_frame(walk: list[Held], frames: int) -> list[frozenset[str]]:
    """The keys held in each of so many frames: the rest of a longer walk is left out, and after a
    shorter one none is held.
    """
    parts = chain.from_iterable(repeat(part.keys, part.frames) for part in walk)
    held = list(islice(parts, frames))  # a part may be far longer than the take
    return held + [frozenset()] * (frames - len(held))


def walk_poses(held: list[frozenset[str]], move: float = MOVE, turn: float = TURN) -> Tensor:
    """Camera to world before the first frame and after each, `[frames + 1, 4, 4]` in float64: x
    right, y down, z forward, from the origin.
    """
    pose = torch.eye(4, dtype=torch.float64)
    poses, pitch = [pose], 0.0
    for keys in held:
        # 1. Look: yaw about the world's vertical, pitch about the camera's own side.
        yaw = turn * (("l" in keys) - ("j" in keys))
        nod = turn * (("i" in keys) - ("k" in keys))
        nod = nod if abs(pitch + nod) <= STEEPEST else 0.0
        pitch += nod
        pose = pose.clone()
        pose[:3, :3] = _about(1, yaw) @ pose[:3, :3] @ _about(0, nod)
        # 2. Move over level ground, whatever the pitch.
        forward = _level(pose[:3, 2]) * (("w" in keys) - ("s" in keys))
        right = _level(pose[:3, 0]) * (("d" in keys) - ("a" in keys))
        pose[:3, 3] += move * (forward + right)
        poses.append(pose)
    return torch.stack(poses)


def _about(axis: int, degrees: float) -> Tensor:
    """A rotation about x (0) or y (1), 3x3."""
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    out = torch.eye(3, dtype=torch.float64)
    one, other = (axis + 1) % 3, (axis + 2) % 3
    out[one, one] = out[other, other] = cos
    out[one, other], out[other, one] = -sin, sin
    return out


def _level(direction: Tensor) -> Tensor:
    """A direction's unit vector on level ground."""
    flat = direction * torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64)
    return flat / (flat.norm() + 1e-6)


# Drawn paths, as keys: of the pixel frames until it turns round, and of all.
PATHS = {
    "away and back": lambda away, frames: f"w-{away},s-{away}",
    "turn and back": lambda away, frames: f"l-{away},j-{away}",
    "forward": lambda away, frames: f"w-{frames}",
    "turn": lambda away, frames: f"l-{frames}",
    "orbit": lambda away, frames: f"dj-{frames}",
    "stand still": lambda away, frames: f"none-{frames}",
}
