"""Episodes of the recall bench: a camera wanders through a street, leaves a place behind and
returns to it.

Episodes come in pairs: the same prompt and the same walk, another world. One is the other's
stranger: what a model that knows the prompt and the camera, but remembers nothing, would be as
close to. The place that the camera returns to was in view during the context and not at all during
its last `GAP` latent frames; only continuation frames that show nothing else are measured.
"""

import itertools
from typing import NamedTuple

import numpy as np
import torch
from keepsake.demo import world
from torch import Tensor

LIMIT = 64  # cells that the view's left edge wanders over
STRIP = LIMIT + world.COLUMNS  # cells of street that a walk can see
GAP = 21  # latent frames: no window here reaches back so far
CROP = (
    5  # cells; what stands for a landmark where nobody has drawn one, as wide as the widest of them
)
PROMPTS = list(itertools.product(world.TIMES, world.DISTRICTS))


class Pair(NamedTuple):
    """Two episodes that share prompt and walk."""

    time: str
    district: str
    origin: int  # world-x of the strip's first cell
    walk: list[int]  # left edge of the view in the strip, context and continuation
    returns: list[int]  # latent frames of the continuation that are measured
    worlds: tuple[int, int]  # seeds of the drawn worlds
    landmarks: tuple[
        list[tuple[int, int]], ...
    ]  # of each world: first and last column of those that the returns show whole

    @property
    def places(self) -> list[int]:
        return [self.walk[frame] for frame in self.returns]


def plan_pair(number: int, context: int, new: int) -> Pair:
    """Draw walks until one has a place to return to within `new` latent frames, and worlds until
    each has a landmark there.
    """
    rng = np.random.default_rng(number)
    time, district = PROMPTS[number % len(PROMPTS)]
    while True:
        walk = world.wander(rng, context, LIMIT)
        left = [
            x
            for x in sorted(set(walk))
            if all(abs(x - late) >= world.COLUMNS for late in walk[-GAP:])
        ]
        targets = [x for x in left if abs(x - walk[-1]) <= world.STEP * new]
        if targets:
            break
    way = int(rng.choice(targets)) - walk[-1]
    walk += [
        walk[-1] + int(np.sign(way)) * min(world.STEP * i, abs(way)) for i in range(1, new + 1)
    ]
    returns = [frame for frame in range(context, context + new) if walk[frame] in left]
    worlds, landmarks = [], []
    while len(worlds) < 2:
        seed = int(rng.integers(2**40))
        whole = [
            (first, last)
            for first, last in world.landmarks(seed, STRIP, time, district)
            if any(inside(first, last, walk[frame]) for frame in returns)
        ]
        if whole:
            worlds.append(seed)
            landmarks.append(whole)
    return Pair(
        time,
        district,
        int(rng.integers(world.PERIODS[-1])),
        walk,
        returns,
        tuple(worlds),
        tuple(landmarks),
    )


def inside(first: int, last: int, view: int) -> bool:
    """Whether the columns first..last lie inside the view whose left edge is at `view`."""
    return view <= first and last < view + world.COLUMNS


def decode(vae, latents: Tensor) -> Tensor:
    """Latents `[16, N, 8, 16]` as pictures `[N, 64, 128, 3]`, each frame by itself."""
    return vae.decode(latents.movedim(1, 0)[:, :, None])[:, 0]


def drawn_latents(vae, pair: Pair, member: int, positions: list[int]) -> Tensor:
    """The drawn world as seen from `positions`, raw latents `[16, N, 8, 16]`. The encoder looks at
    one cell at a time, so views are cuts.
    """
    picture = world.draw(pair.worlds[member], STRIP, pair.time, pair.district)
    strip = vae.encode(picture.movedim(0, -1)[None])[0]
    return torch.cat([strip[..., x : x + world.COLUMNS] for x in positions], 1)


def most_unusual(truth: Tensor, stranger: Tensor, places: list[int]) -> tuple[int, int]:
    """First and last column of the crop, `CROP` cells wide, in which two visits `[N, 64, 128, 3]`
    differ most.
    """
    columns = (
        (truth - stranger).square().mean((1, 3)).unflatten(1, (world.COLUMNS, world.CELL)).mean(2)
    )
    frame, column = divmod(
        int(columns.unfold(1, CROP, 1).mean(2).argmax()), world.COLUMNS - CROP + 1
    )
    return places[frame] + column, places[frame] + column + CROP - 1


def errors(
    again: Tensor,
    truth: Tensor,
    stranger: Tensor,
    places: list[int],
    landmarks: list[tuple[int, int]],
) -> dict[str, tuple[float, float]]:
    """By task: mean squared error of the return `[N, 64, 128, 3]` against the truth, and against
    the stranger's.
    """
    crops = [
        (i, slice((first - x) * world.CELL, (last + 1 - x) * world.CELL))
        for i, x in enumerate(places)
        for first, last in landmarks
        if inside(first, last, x)
    ]

    def both(of) -> tuple[float, float]:
        return tuple(float(of((again - other).square())) for other in (truth, stranger))

    return {
        "revisit": both(Tensor.mean),
        "landmark": both(
            lambda square: torch.stack(
                [square[i, :, columns].mean() for i, columns in crops]
            ).mean()
        ),
    }


def motion(frames: Tensor) -> float:
    """Mean absolute change from one frame `[N, 64, 128, 3]` to the next; 0 for a single one."""
    return float((frames[1:] - frames[:-1]).abs().mean()) if len(frames) > 1 else 0.0


def recall_of(sums: Tensor) -> Tensor:
    """1 - error against the truth / error against the stranger, `[...]`; `sums` `[..., episodes,
    2]`.
    """
    same, other = sums.sum(-2).unbind(-1)
    return 1 - same / other
