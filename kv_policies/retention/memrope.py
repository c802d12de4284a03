"""Two frames that remember what has left as running means, a slow and a fast one (MemRoPE, arXiv
2603.12513).
"""

from dataclasses import dataclass
from functools import cache as once
from typing import ClassVar

import torch
from torch import Tensor

from ..cache.bank import Bank
from ..cache.cache import KVCache
from ..cache.pages import Sides
from ..cache.rope import frequencies_of, spatial_frequencies_of, turn, turn_in_time_and_space
from ..take import BankPlan, Chunk, Geometry, Take
from .retention import Retention, RetentionRun

MEMORY_FRAMES = 2  # the slow mean, then the fast one
LEAST_MOTION = 1e-8


@dataclass(frozen=True)
class MemRope(Retention):
    """Hold `window_frames` latent frames, all in a row before the chunk in work: the first
    `sink_frames` of a shot, a slow and a fast running mean of what has left, and the latest frames.

    Frames that leave together become one mean of their bare keys (without rotation) and of their
    values, which enters the running means by `alpha_long` and `alpha_short`. It is one vector for
    each head, spread over the picture; with `adaptive` one for each place, and the fast mean takes
    up more of it where the new differs from the old: from a tenth of `alpha_short` to five times.

    The means take the places of two frames, which are lost when the window is full for the first
    time (the authors' code, which their paper does not say).
    """

    window_frames: int = 12
    sink_frames: int = 3
    alpha_long: float = 0.01
    alpha_short: float = 0.1
    adaptive: bool = False
    title: ClassVar = "MemRoPE"
    whole_frames: ClassVar = True
    own_frames: ClassVar = False
    rewrites: ClassVar = True

    def __post_init__(self):
        if not 0 <= self.sink_frames < self.window_frames - MEMORY_FRAMES:
            raise ValueError(
                f"sink_frames is {self.sink_frames} and window_frames {self.window_frames}. The "
                f"window holds the sink, {MEMORY_FRAMES} frames of means and the chunk in work: "
                f"use sink_frames of at least 0, and window_frames of at least "
                f"{max(self.sink_frames, 0) + MEMORY_FRAMES} plus the chunk's frames."
            )
        most = 0.2 if self.adaptive else 1
        if not 0 <= self.alpha_long <= 1 or not 0 <= self.alpha_short <= most:
            raise ValueError(
                f"alpha_long is {self.alpha_long} and alpha_short {self.alpha_short}. Use 0 to 1, "
                "and with adaptive, which takes up to five times of it, an alpha_short of 0 to 0.2."
            )

    def check(self, geometry: Geometry, take: Take):
        least = self.sink_frames + MEMORY_FRAMES + geometry.chunk_frames
        if self.window_frames < least:
            raise ValueError(
                f"window_frames is {self.window_frames}, and the sink ({self.sink_frames}), "
                f"{MEMORY_FRAMES} frames of means and the chunk in work ({geometry.chunk_frames}) "
                f"are {least} latent frames. Use window_frames of at least {least}, or smaller "
                "chunks."
            )
        frequencies_of(geometry)
        spatial_frequencies_of(geometry)

    def banks(self, geometry: Geometry, take: Take) -> list[BankPlan]:
        frames = min(take.total_frames, self.window_frames)
        return [BankPlan(frames, frames, held_frames=self.sink_frames, merges=True)]

    def start(self, geometry: Geometry, take: Take) -> RetentionRun:
        return MemRopeRun(self)

    def full_frames(self, geometry: Geometry) -> int | None:
        return self.window_frames

    def sink(self, geometry: Geometry) -> int:
        return self.sink_frames

    def moving_frames(self, take: Take) -> int:
        return self.sink_frames + MEMORY_FRAMES

    def grain(self, geometry: Geometry, lengths: set[int]) -> int:
        return geometry.tokens_per_frame


class MemRopeRun(RetentionRun):
    """It remembers nothing beside the cache: rows that count as no token are the means."""

    def __init__(self, policy: MemRope):
        self.policy = policy

    def begin_chunk(self, cache: KVCache, chunk: Chunk):
        (bank,) = cache.banks
        policy, tokens = self.policy, cache.geometry.tokens_per_frame

        # 1. Which rows leave, once the window is full: those between the means and the latest.
        if bank.length + chunk.frames * tokens <= policy.window_frames * tokens:
            return
        sink_rows = policy.sink_frames * tokens
        front = policy.sink_frames + MEMORY_FRAMES
        oldest = chunk.start_frame - (policy.window_frames - front - chunk.frames)
        leaving = slice(front * tokens, max(front * tokens, bank.rows_of(0, oldest - 1).stop))

        # 2. They go into the means, which take their new places at once.
        first = chunk.start_frame - (bank.length - leaving.stop) // tokens - front
        places = torch.arange(first, first + front, dtype=torch.float64)
        places = places.repeat_interleave(tokens)
        bank.hold(sink_rows)
        if leaving.start < leaving.stop:
            memory = slice(sink_rows, leaving.start)
            means = Means(policy, bank, memory, leaving, places[memory])
            none = torch.full((len(places[memory]),), -1)
            bank.rewrite(memory, means.compute, places[memory], none)
            bank.keep(torch.arange(leaving.stop, bank.length), first_kept=leaving.start)

        # 3. All that is not in its place stands there.
        moved = (bank.position[: len(places)] != places).nonzero()
        if len(moved):
            bank.move(places[: int(moved[-1]) + 1])


class Means:
    """The running means after rows have left: bare keys in fp32, then turned to their places."""

    def __init__(self, policy: MemRope, bank: Bank, memory: slice, leaving: slice, places: Tensor):
        """`places`: temporal positions of the rows `memory`, float64."""
        self.policy = policy
        self.bank = bank
        self.rows = slice(memory.start, leaving.stop)  # the old means, then what leaves
        self.places = places
        self.tokens = bank.geometry.tokens_per_frame
        self.are_begun = int(bank.columns.source[memory.start]) == -1
        self._turns = once(self._turns)

    def _turns(self, is_back: bool) -> tuple[Tensor, Tensor]:
        """That take the rotation off the rows that are read, or put it on those that are written.

        For the first layer only: a dry run computes no row, and has another head size.
        """
        bank, columns = self.bank, self.bank.geometry.grid[1]
        position, cell = bank.position[self.rows], bank.cell[self.rows]
        sign = -1 if is_back else 1
        if not is_back:
            position, cell = self.places, cell[: len(self.places)]
        moves = (sign * position, sign * (cell // columns), sign * (cell % columns))
        return turn_in_time_and_space(*moves, bank.geometry, bank.device)

    def compute(self, layer: int) -> Sides:
        """Keys and values of both means, `[1, 2T, H, D]` each."""
        k, v = self.bank.read(layer, self.rows)
        bare = turn(k.float(), *self._turns(True))
        sides = [side.unflatten(1, (-1, self.tokens)) for side in (bare, v.float())]
        new = [self._mean(side[:, MEMORY_FRAMES:]) for side in sides]
        if self.are_begun:
            alpha_short = self._alpha_short(new[0], sides[0][:, 1])
            alphas = (self.policy.alpha_long, alpha_short)
            means = [
                [
                    alpha * mean + (1 - alpha) * side[:, number]
                    for number, alpha in enumerate(alphas)
                ]
                for mean, side in zip(new, sides)
            ]
        else:
            means = [[mean, mean] for mean in new]
        keys, values = (torch.cat(frames, 1) for frames in means)
        return turn(keys, *self._turns(False)), values

    def _mean(self, frames: Tensor) -> Tensor:
        """`[1, E, T, H, D]` -> `[1, T, H, D]`, of each place or of all."""
        if self.policy.adaptive:
            return frames.mean(1)
        return frames.mean((1, 2))[:, None].expand(-1, self.tokens, -1, -1)

    def _alpha_short(self, new: Tensor, old: Tensor) -> Tensor | float:
        """How much of the new mean the fast one takes up: of each place `[1, T, 1, 1]` by how far
        the bare keys are from the old ones, or of all.
        """
        alpha = self.policy.alpha_short
        if not self.policy.adaptive:
            return alpha
        motion = (new - old).norm(dim=-1).mean(-1)
        share = motion / (motion.amax(-1, keepdim=True) + LEAST_MOTION)
        return (alpha * 0.1 + share * (alpha * 5.0 - alpha * 0.1))[..., None, None]
