"""The beginning of a shot, replayed forward and backward behind the latest chunk (Rolling Sink,
arXiv 2602.07775).
"""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from ..cache.bank import Bank
from ..cache.cache import KVCache
from ..cache.pages import Sides
from ..cache.rope import frequencies_of, turn, turn_in_time
from ..take import BankPlan, Chunk, Geometry, Take
from .retention import Retention, RetentionRun


@dataclass(frozen=True)
class RollingSink(Retention):
    """Hold `window_frames` latent frames: the chunk in work, the latest finished chunk, and in the
    places of older ones a replay of the shot's beginning, the first P = `window_frames` - chunk
    frames.

    Frame f of the shot is replaced by frame `replayed(f)`, turned to stand where f stood. The
    beginning is held beside the cache, keys and values.
    """

    window_frames: int = 21
    whole_frames: ClassVar = True
    own_frames: ClassVar = False
    rewrites: ClassVar = True

    def check(self, geometry: Geometry, take: Take):
        least = 2 * geometry.chunk_frames + 1
        if self.window_frames < least:
            raise ValueError(
                f"window_frames is {self.window_frames}, and the chunk in work, the latest "
                f"finished one and a frame to replay are {least} latent frames. Use window_frames "
                f"of at least {least}, or smaller chunks."
            )
        frequencies_of(geometry)

    def period(self, geometry: Geometry) -> int:
        """Latent frames of the beginning that are replayed."""
        return self.window_frames - geometry.chunk_frames

    def banks(self, geometry: Geometry, take: Take) -> list[BankPlan]:
        frames = min(take.total_frames, self.window_frames)
        held = min(take.total_frames, self.period(geometry))
        return [BankPlan(frames, frames, held_frames=held, holds_values=True, merges=True)]

    def start(self, geometry: Geometry, take: Take) -> RetentionRun:
        return RollingSinkRun(self.window_frames, self.period(geometry))

    def full_frames(self, geometry: Geometry) -> int | None:
        return self.window_frames

    def sink(self, geometry: Geometry) -> int:
        return self.period(geometry)

    def grain(self, geometry: Geometry, lengths: set[int]) -> int:
        return geometry.tokens_per_frame


def replayed(frame: Tensor, period: int) -> Tensor:
    """Which of the first `period` frames stands in the place of each: 0 1 2 2 1 0 0 1 ... for a
    period of 3.
    """
    at = frame % period
    is_backward = frame // period % 2 == 1
    return torch.where(is_backward, period - 1 - at, at)


class RollingSinkRun(RetentionRun):
    """It remembers nothing beside the cache: what each row is a replay of stands there."""

    def __init__(self, window_frames: int, period: int):
        self.window_frames = window_frames
        self.period = period

    def begin_chunk(self, cache: KVCache, chunk: Chunk):
        """Drop the oldest places."""
        (bank,) = cache.banks
        first = chunk.start_frame - (self.window_frames - chunk.frames)
        start = bank.rows_of(0, first - 1).stop
        if start:
            self._hold_beginning(bank)
            bank.keep(torch.arange(start, bank.length))

    def after_clean(self, cache: KVCache, chunk: Chunk, x0: Tensor):
        """Let the replay take the places of all frames before the chunk that are not it yet: of the
        chunk before.
        """
        (bank,) = cache.banks
        tokens, shot = cache.geometry.tokens_per_frame, chunk.cue.shot
        end = bank.rows_of(0, chunk.start_frame - 1).stop
        # Rows of the bank, as rows of the beginning.
        rows = replayed(bank.frame[:end] - shot, self.period) * tokens + bank.cell[:end]
        is_due = (bank.columns.source[:end] != shot * tokens + rows).nonzero()
        if not len(is_due):
            return
        self._hold_beginning(bank)
        due = slice(int(is_due[0]), end)
        shift = bank.position[due] - bank.held_position[rows[due]]
        turns = turn_in_time(shift, frequencies_of(cache.geometry), bank.device)
        compute = partial(replay, bank, rows[due], turns)
        bank.rewrite(due, compute, source=shot * tokens + rows[due])

    def _hold_beginning(self, bank: Bank):
        """Once, before any of its rows goes."""
        bank.hold(self.period * bank.geometry.tokens_per_frame)


def replay(bank: Bank, rows: Tensor, turns: tuple[Tensor, Tensor], layer: int) -> Sides:
    """Held rows, their keys turned."""
    k, v = bank.read_held(layer, rows)
    return turn(k, *turns), v
