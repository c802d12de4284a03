"""Keep all that was seen, a part of each chunk, and read of it what was seen from nearby poses
(WorldKV, arXiv 2605.22718).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from ..cache.bank import Bank
from ..cache.cache import KVCache
from ..state import KVMemoryError, State, count_of, counts_of, tensor_of
from ..take import BankPlan, Chunk, Geometry, Take
from .pose_retrieval import nearest
from .retention import Retention, RetentionRun

SAME_POSE = 1e-4  # largest difference of two numbers of a pose that is one


@dataclass(frozen=True)
class WorldKV(Retention):
    """Read the first `sink_frames` latent frames of the shot, whole chunks of `retrieved_frames`
    latent frames whose camera stood nearest to the chunk in work, and the latest frames: at least
    `recent_frames` with the chunk's own, and more while the three together hold fewer tokens than
    so many whole frames.

    A chunk that is no longer among the latest is compressed: its first frame stays whole, and of
    the others a share `keep_ratio` of the tokens, over all of them those whose keys are least like
    the mean key of the first frame, in each layer its own. With 1 all stay.
    """

    sink_frames: int = 3
    retrieved_frames: int = 18
    recent_frames: int = 6
    keep_ratio: float = 0.5
    title: ClassVar = "WorldKV"
    needs_poses: ClassVar = True

    def __post_init__(self):
        if not 0 <= self.keep_ratio <= 1:
            raise ValueError(f"keep_ratio is {self.keep_ratio}. Use a number from 0 to 1.")
        if self.sink_frames < 0 or self.recent_frames < 1 or self.retrieved_frames < 0:
            raise ValueError(
                f"sink_frames is {self.sink_frames}, retrieved_frames {self.retrieved_frames} and "
                f"recent_frames {self.recent_frames}. Use at least 0, 0 and 1."
            )

    def check(self, geometry: Geometry, take: Take):
        for name in ("retrieved_frames", "recent_frames"):
            if getattr(self, name) < geometry.chunk_frames:
                raise ValueError(
                    f"{name} is {getattr(self, name)}, and a chunk has {geometry.chunk_frames} "
                    f"latent frames, which come together. Use {name} of at least "
                    f"{geometry.chunk_frames}, or smaller chunks."
                )

    @property
    def whole_frames(self) -> bool:
        return self.keep_ratio == 1

    @property
    def window_frames(self) -> int:
        """Latent frames' worth of tokens that a chunk reads at most, its own included."""
        return self.sink_frames + self.retrieved_frames + self.recent_frames

    def tokens_of_frame(self, geometry: Geometry) -> int:
        """How many tokens stay of a frame that is compressed, in the mean."""
        return max(1, math.ceil(self.keep_ratio * geometry.tokens_per_frame))

    def tokens_of_chunk(self, geometry: Geometry, frames: int) -> int:
        """How many stay of a compressed chunk."""
        return geometry.tokens_per_frame + (frames - 1) * self.tokens_of_frame(geometry)

    def compresses(self, geometry: Geometry) -> bool:
        whole = geometry.chunk_frames * geometry.tokens_per_frame
        return self.tokens_of_chunk(geometry, geometry.chunk_frames) < whole

    def banks(self, geometry: Geometry, take: Take) -> list[BankPlan]:
        """Room for the window and the chunks at its edges whole, and for what stays of the rest."""
        total, chunk = take.total_frames, geometry.chunk_frames
        whole = self.window_frames + 2 * chunk
        share = self.tokens_of_chunk(geometry, chunk) / (chunk * geometry.tokens_per_frame)
        frames = min(total, whole + math.ceil(share * max(0, total - whole)))
        return [BankPlan(frames, total, by_layer=self.compresses(geometry))]

    def start(self, geometry: Geometry, take: Take) -> RetentionRun:
        return WorldKVRun(self, geometry, take)

    def full_frames(self, geometry: Geometry) -> int | None:
        return self.window_frames

    def sink(self, geometry: Geometry) -> int:
        return self.sink_frames

    def grain(self, geometry: Geometry, lengths: set[int]) -> int:
        return math.gcd(geometry.tokens_per_frame, self.tokens_of_frame(geometry))


class Reach(NamedTuple):
    """Of the history, what a chunk reads: ranges of latent frames, ascending and apart."""

    sink: range
    retrieved: list[range]
    recent: range


class WorldKVRun(RetentionRun):
    def __init__(self, policy: WorldKV, geometry: Geometry, take: Take):
        self.policy = policy
        self.geometry = geometry
        self.take = take
        self.starts: list[int] = []  # first latent frame of each chunk of the shot
        self.end = 0  # of the last of them
        self.compressed = 0  # how many of the first chunks were asked about, and compressed
        self._known: tuple[tuple, tuple[slice, ...]] | None = None  # rows in reach, and of what

    def begin_shot(self, cache: KVCache, chunk: Chunk):
        super().begin_shot(cache, chunk)
        self.starts.clear()
        self.compressed = 0

    def begin_chunk(self, cache: KVCache, chunk: Chunk):
        (bank,) = cache.banks
        first_recent = self._reach(chunk).recent.start
        old = [frames for frames in self._chunks(chunk) if frames.stop <= first_recent]
        new = [frames for frames in old[self.compressed :] if not self._is_sink(frames, chunk)]
        self.compressed = max(self.compressed, len(old))
        if new and bank.by_layer:
            self._compress(bank, new)
        self.starts.append(chunk.start_frame)
        self.end = chunk.end_frame

    # -- what a chunk reads

    def _chunks(self, chunk: Chunk) -> list[range]:
        """The latent frames of each finished chunk of the shot before `chunk`."""
        starts = [start for start in self.starts if start < chunk.start_frame]
        return [range(*ends) for ends in zip(starts, [*starts[1:], chunk.start_frame])]

    def _is_sink(self, frames: range, chunk: Chunk) -> bool:
        """Whether a chunk has frames of the sink: it stays whole, and is not retrieved."""
        return frames.start < chunk.cue.shot + self.policy.sink_frames

    def _reach(self, chunk: Chunk) -> Reach:
        policy, geometry = self.policy, self.geometry
        # 1. The chunks to choose from: neither of the sink nor among the latest.
        latest = policy.recent_frames // geometry.chunk_frames
        finished = self._chunks(chunk)
        candidates = [
            frames for frames in finished[: -latest or None] if not self._is_sink(frames, chunk)
        ]

        # 2. Those of the nearest poses.
        count = min(policy.retrieved_frames // geometry.chunk_frames, len(candidates))
        chosen = [candidates[i] for i in self._nearest(chunk, candidates, count)]

        # 3. The latest frames get what is left of the window.
        tokens = geometry.tokens_per_frame
        retrieved = sum(policy.tokens_of_chunk(geometry, len(frames)) for frames in chosen)
        left = policy.window_frames - policy.sink_frames - round(retrieved / tokens)
        sink_end = min(chunk.cue.shot + policy.sink_frames, chunk.start_frame)
        first = min(max(sink_end, chunk.end_frame - left), chunk.start_frame)
        # A chunk that was compressed before, as one that is run again may find, is no longer whole.
        for frames in finished[: self.compressed]:
            if frames.start < first < frames.stop:
                first = frames.stop

        # 4. What is both is read once.
        apart = [range(frames.start, min(frames.stop, first)) for frames in chosen]
        return Reach(
            range(chunk.cue.shot, sink_end),
            [frames for frames in apart if frames],
            range(first, chunk.start_frame),
        )

    def _nearest(self, chunk: Chunk, candidates: list[range], count: int) -> list[int]:
        """Places among the candidates. Without a camera, as in an estimate from inputs, the first:
        how many bytes it takes does not depend on which they are.
        """
        poses = self.take.poses
        if poses is None or len(poses) < chunk.end_frame or count in (0, len(candidates)):
            return list(range(count))
        return nearest(poses, range(chunk.start_frame, chunk.end_frame), candidates, count)

    def reach(self, chunk: Chunk, bank: Bank) -> tuple[slice, ...] | None:
        """Kept for all layers and steps of a chunk."""
        key = chunk.index, bank.committed, self.compressed
        if self._known is None or self._known[0] != key:
            self._known = key, self._rows(chunk, bank)
        return self._known[1]

    def _rows(self, chunk: Chunk, bank: Bank) -> tuple[slice, ...]:
        reach = self._reach(chunk)
        rows: list[slice] = []
        for frames in (reach.sink, *reach.retrieved, reach.recent):
            part = bank.rows_of(frames.start, frames.stop - 1)
            if rows and rows[-1].stop == part.start:
                rows[-1] = slice(rows[-1].start, part.stop)
            elif part.start < part.stop:
                rows.append(part)
        return tuple(rows) or (slice(0, 0),)

    def reads(self, chunk: Chunk) -> Tensor | None:
        reach, in_reach = self._reach(chunk), torch.zeros(self.take.total_frames)
        for frames in (reach.sink, *reach.retrieved, reach.recent):
            in_reach[frames.start : frames.stop] = 1
        return in_reach

    # -- what stays of a chunk

    def _compress(self, bank: Bank, chunks: list[range]):
        """Drop tokens of whole chunks that follow each other, in each layer its own."""
        first = bank.rows_of(chunks[0].start, chunks[-1].stop - 1).start
        parts = [bank.rows_of(frames.start, frames.stop - 1) for frames in chunks]
        behind = torch.arange(parts[-1].stop, bank.committed)
        kept = []
        for layer in range(len(bank.heads)):
            chosen = [self._kept_rows(bank, layer, rows) for rows in parts]
            kept.append(torch.cat([*chosen, behind]))
        bank.open(first + len(kept[0]), first)
        for layer, rows in enumerate(kept):
            bank.choose(layer, rows)

    def _kept_rows(self, bank: Bank, layer: int, rows: slice) -> Tensor:
        """Of a whole chunk's rows those that stay, ascending."""
        tokens = self.geometry.tokens_per_frame
        keys = bank.read(layer, rows)[0][0].flatten(1).float()
        count = self.policy.tokens_of_chunk(self.geometry, len(keys) // tokens) - tokens
        likeness = likeness_to_mean(keys[tokens:], keys[:tokens]).cpu()
        least = likeness.argsort(stable=True)[:count].sort().values
        return rows.start + torch.cat([torch.arange(tokens), tokens + least])

    # -- saved and restored

    def state(self) -> State:
        return {
            "starts": list(self.starts),
            "end": self.end,
            "compressed": self.compressed,
            "poses": self._poses_so_far(),
        }

    def restore(self, state: State):
        self.starts = counts_of(state, "starts", self.take.total_frames)
        self.end = count_of(state, "end", self.take.total_frames)
        self.compressed = count_of(state, "compressed", len(self.starts))
        self._check_poses(tensor_of(state, "poses", torch.float32, None, 4, 4))

    def _poses_so_far(self) -> Tensor:
        """Of the latent frames up to the end of the latest chunk, `[T, 4, 4]`; none without a
        camera.
        """
        poses = self.take.poses
        return torch.empty(0, 4, 4) if poses is None else poses[: self.end].clone()

    def _check_poses(self, before: Tensor):
        """What is retrieved is found by where the camera stood, so coordinates must be the same."""
        now = self._poses_so_far()
        is_other = before.shape != now.shape
        if not is_other and len(now):
            far = max(1.0, float(before.abs().max()))
            is_other = float((before - now).abs().max()) > SAME_POSE * far
        if is_other:
            raise KVMemoryError(
                f"The camera's path up to latent frame {self.end} is not the one that the KV "
                "memory was made with, and WorldKV finds what was seen by where the camera stood. "
                "Let the path begin as it did, and change only what comes after."
            )


def likeness_to_mean(keys: Tensor, anchor: Tensor) -> Tensor:
    """Cosine of each key `[N, C]` and the mean of the anchor's `[T, C]`, fp32 [N]."""
    return torch.cosine_similarity(keys, anchor.mean(0, keepdim=True), dim=-1)
