"""What a policy is told of a run: the backbone, the take, its chunks, and what each forward works
on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

HISTORY = "history"  # the memory that a retention looks after
SWITCHES = ("swap", "recache", "cut")  # how a prompt comes in, by how much of the memory it touches


@dataclass(frozen=True)
class Geometry:
    """What the cache must know of a backbone; read from the model, never assumed."""

    layers: int
    heads: int
    head_dim: int
    grid: tuple[int, int]  # (h, w) tokens of a latent frame
    chunk_frames: int  # latent frames of a full chunk
    temporal_channels: int  # first channels of a head, rotated by time in adjacent pairs
    rope_theta: float = 10000.0
    # Angle per latent frame of each temporal pair, where the model's RoPE does not turn by theta;
    # empty: no constant angles, so that stored keys cannot be turned.
    temporal_angles: tuple[float, ...] | None = None

    @property
    def tokens_per_frame(self) -> int:
        return self.grid[0] * self.grid[1]

    def bytes_per_frame(self, element_size: int) -> int:
        """Bytes of the keys and values of one latent frame over all layers and heads."""
        return 2 * self.layers * self.heads * self.head_dim * self.tokens_per_frame * element_size


@dataclass(frozen=True)
class Switch:
    """Another prompt. "swap": for cross-attention alone; "recache": the latest `recache_frames`
    latent frames are run again under it (LongLive, arXiv 2509.22622); "cut": a new shot, which
    remembers nothing of the one before.
    """

    mode: str
    recache_frames: int = 0


@dataclass(frozen=True)
class Chunk:
    """Latent frames that are denoised together; the first or the last one may be short."""

    index: int
    start_frame: int
    frames: int
    given: bool = False  # part of the prefix: observed, not generated
    stride: int = 1  # latent frames from one to the next; anchors lie apart
    prompt: int = 0  # number of the prompts in force
    switch: Switch | None = None  # how they come in, where they begin with this chunk
    shot: int = 0  # first latent frame of its shot
    apart: tuple[int, ...] = ()  # the latent frames, where they do not lie evenly
    position: int | None = (
        None  # where in time the first frame stands and the others follow; None: each at its number
    )

    @property
    def numbers(self) -> Sequence[int]:
        return self.apart or range(self.start_frame, self.end_frame, self.stride)

    @property
    def positions(self) -> Sequence[int]:
        return (
            self.numbers
            if self.position is None
            else range(self.position, self.position + self.frames)
        )

    @property
    def end_frame(self) -> int:
        return self.start_frame + (self.frames - 1) * self.stride + 1

    def under(self, other: Chunk) -> Chunk:
        """The same frames under another chunk's prompts."""
        return replace(self, prompt=other.prompt)


@dataclass(frozen=True)
class Take:
    """What is known of a take before its first forward."""

    total_frames: int  # latent frames, given ones included
    given_frames: int
    sigmas: tuple[float, ...]  # noise level of each step, then 0
    seed: int
    prompt_frames: tuple[
        int, ...
    ] = ()  # first latent frames of the chunks with which other prompts come in

    @property
    def steps(self) -> int:
        return len(self.sigmas) - 1


@dataclass(frozen=True)
class Forward:
    """One model call: what it works on, the memory that its keys and values go into and that it
    reads, and what it reads besides.
    """

    chunk: Chunk
    step: int
    memory: str = HISTORY
    reads: tuple[
        tuple[str, int, int], ...
    ] = ()  # other memories, from a first to a last latent frame


@dataclass(frozen=True)
class BankPlan:
    """A bank that a retention asks for. Frames are latent frames, the chunk in work included."""

    frames: int  # made for so many at first
    most_frames: int  # and grows up to so many
    heads: tuple[tuple[int, ...], ...] | None = None  # by layer; None: all heads in every layer
    held_frames: int = 0  # whose original keys are held beside the bank, see `Bank.hold`

    def heads_by_layer(self, geometry: Geometry) -> tuple[tuple[int, ...], ...]:
        return self.heads or (tuple(range(geometry.heads)),) * geometry.layers
