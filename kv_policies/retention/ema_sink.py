"""A sink into which frames are blended as they leave the window (EMA-Sink of Reward Forcing, arXiv
2512.04678).
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from ..cache.bank import Bank
from ..cache.cache import KVCache
from ..cache.pages import Sides
from ..cache.rope import frequencies_of, turn, turn_in_time
from ..take import BankPlan, Chunk, Geometry, Take
from .retention import Retention, RetentionRun


@dataclass(frozen=True)
class EmaSink(Retention):
    """Hold `window_frames` latent frames: a sink that begins as the first `sink_frames` of a shot,
    the latest ones, and the chunk in work.

    A frame that leaves is blended into the sink frame whose turn it is, at each place of the
    picture: `sink_weight` of the sink and the rest of the frame, keys at one place in time and
    values. The sink always stands right before the window.

    With as many sink frames as a chunk has, as the authors use it, a chunk's first frame goes into
    the sink's first, and so on. With other numbers their code replaces the sink; here it goes on
    in turn.
    """

    window_frames: int = 9
    sink_frames: int = 3
    sink_weight: float = 0.999
    title: ClassVar = "EMA Sink (Reward Forcing)"
    whole_frames: ClassVar = True
    rewrites: ClassVar = True

    def __post_init__(self):
        if not 1 <= self.sink_frames < self.window_frames:
            raise ValueError(
                f"sink_frames is {self.sink_frames} and window_frames {self.window_frames}. Frames "
                "are blended into the sink, and the window holds it and the chunk in work: use "
                "sink_frames from 1 to window_frames minus the chunk's frames."
            )
        if not 0 <= self.sink_weight <= 1:
            raise ValueError(f"sink_weight is {self.sink_weight}. Use 0 to 1.")

    def check(self, geometry: Geometry, take: Take):
        least = self.sink_frames + geometry.chunk_frames
        if self.window_frames < least:
            raise ValueError(
                f"window_frames is {self.window_frames}, and the sink ({self.sink_frames}) with "
                f"the chunk in work ({geometry.chunk_frames}) are {least} latent frames. Use "
                f"window_frames of at least {least}, or smaller chunks."
            )
        frequencies_of(geometry)

    def banks(self, geometry: Geometry, take: Take) -> list[BankPlan]:
        frames = min(take.total_frames, self.window_frames)
        return [BankPlan(frames, frames, held_frames=self.sink_frames)]

    def start(self, geometry: Geometry, take: Take) -> RetentionRun:
        return EmaSinkRun(self)

    def full_frames(self, geometry: Geometry) -> int | None:
        return self.window_frames

    def sink(self, geometry: Geometry) -> int:
        return self.sink_frames

    def moving_frames(self, take: Take) -> int:
        return self.sink_frames

    def grain(self, geometry: Geometry, lengths: set[int]) -> int:
        return geometry.tokens_per_frame


class EmaSinkRun(RetentionRun):
    """It remembers nothing beside the cache."""

    def __init__(self, policy: EmaSink):
        self.policy = policy

    def begin_chunk(self, cache: KVCache, chunk: Chunk):
        (bank,) = cache.banks
        policy, tokens = self.policy, cache.geometry.tokens_per_frame
        sink_rows = policy.sink_frames * tokens

        # 1. Which rows leave, once the sink and the window are full.
        oldest = chunk.start_frame - (policy.window_frames - policy.sink_frames - chunk.frames)
        leaving = slice(sink_rows, bank.rows_of(0, oldest - 1).stop)
        if bank.length + chunk.frames * tokens <= policy.window_frames * tokens:
            return

        # 2. They go into the sink, which is held where it stood when it was written.
        bank.hold(sink_rows)
        if leaving.start < leaving.stop:
            self._blend(bank, leaving, chunk.cue.shot)
            bank.keep(torch.arange(leaving.stop, bank.length), first_kept=sink_rows)

        # 3. The sink stands right before the window.
        first = chunk.start_frame - bank.length // tokens
        places = torch.arange(first, first + policy.sink_frames, dtype=torch.float64)
        bank.move(places.repeat_interleave(tokens))

    def _blend(self, bank: Bank, leaving: slice, shot: int):
        """Blend rows into the held sink, frame by frame in their order."""
        tokens, weight = bank.geometry.tokens_per_frame, self.policy.sink_weight
        frames = bank.frame[leaving][::tokens] - shot
        targets = (frames % self.policy.sink_frames).tolist()
        rows = (frames % self.policy.sink_frames * tokens)[:, None] + torch.arange(tokens)
        shift = bank.held_position[rows.flatten()] - bank.position[leaving]
        turns = turn_in_time(shift, frequencies_of(bank.geometry), bank.device)
        sink = slice(0, leaving.start)
        sink_rows = torch.arange(leaving.start)

        def blend(layer: int) -> Sides:
            k, v = bank.read(layer, leaving)
            new = turn(k.float(), *turns), v.float()
            old = bank.read_held(layer, sink_rows)[0], bank.read(layer, sink)[1]
            old = tuple(side.to(torch.float32, copy=True) for side in old)
            for number, target in enumerate(targets):
                into = slice(target * tokens, (target + 1) * tokens)
                of = slice(number * tokens, (number + 1) * tokens)
                for side, frame in zip(old, new):
                    side[:, into] = weight * side[:, into] + (1 - weight) * frame[:, of]
            return old

        bank.rewrite(sink, blend, position=bank.held_position.clone())
