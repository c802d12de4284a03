"""Keep the first and the latest frames (StreamingLLM, arXiv 2309.17453; frame sinks as in LongLive,
arXiv 2509.22622).
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from ..cache.cache import KVCache
from ..state import State, counts_of
from ..take import BankPlan, Chunk, Geometry, Take
from .retention import Retention, RetentionRun

SINK_ROPE = ("absolute", "shifted")


@dataclass(frozen=True)
class SinkWindow(Retention):
    """Hold at most `window_frames` latent frames: the first `sink_frames`, the chunk in work, and
    whole chunks before it; without `whole_chunks`, as many single frames as fit.

    `sink_frames` = 0 is a plain sliding window. `sink_rope`: "absolute" leaves the sink at its true
    place in time (LongLive); "shifted" turns it to stand just before the window, so that no
    distance exceeds the window (Rolling Forcing, arXiv 2509.25161; Deep Forcing's is `DeepSink`).
    """

    sink_frames: int = 3
    window_frames: int = 21
    sink_rope: str = "absolute"
    title: ClassVar = "Sink + Window"
    whole_frames: ClassVar = True
    whole_chunks: bool = True

    def __post_init__(self):
        if self.sink_rope not in SINK_ROPE:
            raise ValueError(f"sink_rope is '{self.sink_rope}'. Use 'absolute' or 'shifted'.")
        if not 0 <= self.sink_frames < self.window_frames:
            raise ValueError(
                f"sink_frames is {self.sink_frames} and window_frames {self.window_frames}. The "
                "window holds the sink and at least one chunk: use window_frames of at least "
                f"{max(self.sink_frames, 0)} plus the chunk's frames."
            )

    def check(self, geometry: Geometry, take: Take):
        if self.window_frames < self.sink_frames + geometry.chunk_frames:
            raise ValueError(
                f"window_frames = {self.window_frames} cannot hold sink_frames = "
                f"{self.sink_frames} and the chunk in work ({geometry.chunk_frames} frames). Use "
                f"window_frames of at least {self.sink_frames + geometry.chunk_frames}, or smaller "
                "chunks."
            )

    def grain(self, geometry: Geometry, lengths: set[int]) -> int:
        return geometry.tokens_per_frame

    def banks(self, geometry: Geometry, take: Take) -> list[BankPlan]:
        frames = min(take.total_frames, self.window_frames)
        return [BankPlan(frames, frames, held_frames=self.moving_frames(take))]

    def moving_frames(self, take: Take) -> int:
        return self.sink_frames if self.sink_rope == "shifted" else 0

    def full_frames(self, geometry: Geometry) -> int | None:
        """The fewest latent frames in reach once no further chunk fits.

        Only whole chunks fit. A window of 21 with a sink of 3 takes 5 chunks of 4 while nothing has
        left (20 frames), and the sink and 4 chunks later (19 frames): 19.
        """
        if not self.whole_chunks:
            return self.window_frames
        chunk = geometry.chunk_frames
        before_eviction = self.window_frames // chunk * chunk
        beside_sink = (self.window_frames - self.sink_frames) // chunk * chunk
        return min(before_eviction, self.sink_frames + beside_sink)

    def sink(self, geometry: Geometry) -> int:
        return self.sink_frames

    def start(self, geometry: Geometry, take: Take) -> RetentionRun:
        return SinkWindowRun(self, take)


class SinkWindowRun(RetentionRun):
    def __init__(self, policy: SinkWindow, take: Take):
        self.policy = policy
        self.total_frames = take.total_frames
        self.starts: list[int] = []  # first frame of each chunk that is still in the window

    def begin_shot(self, cache: KVCache, chunk: Chunk):
        super().begin_shot(cache, chunk)
        self.starts.clear()

    def begin_chunk(self, cache: KVCache, chunk: Chunk):
        (bank,) = cache.banks
        sink_end = chunk.cue.shot + self.policy.sink_frames
        oldest = self._oldest_frame(chunk)
        sink_rows = bank.rows_of(0, sink_end - 1).stop
        window_row = bank.rows_of(0, oldest - 1).stop
        if window_row > sink_rows:
            bank.keep(torch.arange(window_row, bank.length), first_kept=sink_rows)
        has_gap = self.policy.sink_frames > 0 and oldest > sink_end
        if has_gap and self.policy.sink_rope == "shifted":
            self._close_gap(cache, oldest)
        self.starts.append(chunk.start_frame)

    def _oldest_frame(self, chunk: Chunk) -> int:
        """First frame of the window, once what no longer fits beside the sink has left."""
        room = self.policy.window_frames - chunk.frames
        if chunk.start_frame - chunk.cue.shot > room:  # something must leave: count the sink apart
            room -= self.policy.sink_frames
        self.starts = [start for start in self.starts if chunk.start_frame - start <= room]
        if not self.policy.whole_chunks:
            return max(chunk.cue.shot, chunk.start_frame - room)
        return self.starts[0] if self.starts else chunk.start_frame

    def _close_gap(self, cache: KVCache, oldest: int):
        """Turn the sink to stand just before the window, from its keys as they were written."""
        (bank,), sink = cache.banks, self.policy.sink_frames
        tokens = cache.geometry.tokens_per_frame
        positions = torch.arange(oldest - sink, oldest, dtype=torch.float64)
        bank.hold(sink * tokens)
        bank.move(positions.repeat_interleave(tokens))

    def state(self) -> State:
        return {"starts": list(self.starts)}

    def restore(self, state: State):
        self.starts = counts_of(state, "starts", self.total_frames)
