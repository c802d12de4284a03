"""What a policy knows of a run: the backbone, the take, its chunks, and what each forward works
on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from torch import Tensor

# What becomes of the outputs of a forward's modules (`Forward.features`): held, to forecast later
# steps of the chunk from; or forecast from what is held.
HOLD, FORECAST = "hold", "forecast"
HISTORY = "history"  # the cache that a retention looks after
SWITCHES = ("swap", "recache", "cut")  # how a prompt comes in, by how much of the cache it changes


@dataclass(frozen=True, kw_only=True)
class ActionPlan:
    """What a stream holds for a model's action modules, which attend to keys and mouse of the
    latest latent frames.
    """

    window_frames: int = 0  # latent frames read, the chunk in work included, as trained
    layers: tuple[int, ...] = ()  # that have an action module
    # By part of a module, the places of a latent frame that have keys of their own: all, or one
    # for all.
    places: Mapping[str, int] = field(default_factory=dict)
    heads: int = 0
    head_dim: int = 0


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
    # Angle per row and per column of the grid, of each spatial pair, in the order of the channels;
    # None and empty as above.
    spatial_angles: tuple[tuple[float, ...], ...] | None = None
    actions: ActionPlan | None = None  # None: the model has no action modules

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

    A recache runs chunk by chunk, each reading those before it, and leaves a sink as it is; or,
    with `together`, all frames in one forward, reading each other, and where it reaches back to the
    shot's first frame the sink too.
    """

    mode: str
    recache_frames: int = 0
    together: bool = False


@dataclass(frozen=True)
class Cue:
    """Which prompts are in force, how they came in, and the shot."""

    prompt: int = 0  # number of the prompts in force
    switch: Switch | None = None  # how they come in, where they begin with this chunk
    shot: int = 0  # first latent frame of the shot


@dataclass(frozen=True)
class Span:
    """The latent frames that one forward works on, in their order, and where in time each stands:
    the position that RoPE turns its keys to.
    """

    numbers: tuple[int, ...]  # of the latent frames in the take
    positions: tuple[int, ...]

    @classmethod
    def of_frames(cls, numbers) -> Span:
        """Latent frames that stand at their own numbers."""
        return cls(tuple(numbers), tuple(numbers))

    def __len__(self) -> int:
        return len(self.numbers)

    def at(self, position: int) -> Span:
        """The same frames, the first at a position and each other right behind the one before."""
        return replace(self, positions=tuple(range(position, position + len(self))))

    def cut(self, latents: Tensor) -> Tensor:
        """Its frames of a take's latents `[B, C, T, 2h, 2w]`; no copy where they lie evenly."""
        first, last = self.numbers[0], self.numbers[-1]
        stride = self.numbers[1] - first if len(self) > 1 else 1
        if self.numbers == tuple(range(first, last + 1, stride)):
            return latents[:, :, first : last + 1 : stride]
        return latents[:, :, list(self.numbers)]


@dataclass(frozen=True)
class Chunk:
    """Latent frames that are denoised together and become part of the take; the first or the last
    one may be short.
    """

    index: int
    start_frame: int
    frames: int
    given: bool = False  # part of the prefix: observed, not generated
    cue: Cue = Cue()

    @property
    def end_frame(self) -> int:
        return self.start_frame + self.frames

    @property
    def span(self) -> Span:
        return Span.of_frames(range(self.start_frame, self.end_frame))


@dataclass(frozen=True)
class Take:
    """What is known of a take before its first forward."""

    total_frames: int  # latent frames, given ones included
    given_frames: int
    sigmas: tuple[float, ...]  # noise level of each step, then 0
    seed: int
    # first latent frames of the chunks with which other prompts come in
    prompt_frames: tuple[int, ...] = ()
    # camera to world at each latent frame, fp32 [T, 4, 4]; None: no camera is known
    poses: Tensor | None = field(default=None, compare=False, repr=False)

    @property
    def steps(self) -> int:
        return len(self.sigmas) - 1


class Read(NamedTuple):
    """History that a forward reads in another cache: latent frames `first` to `last`."""

    cache: str
    first: int
    last: int


@dataclass(frozen=True, kw_only=True)
class Forward:
    """One model call: what it works on, the cache that its keys and values go into and that it
    reads, and what it reads besides.

    `chunk` is the chunk that it is made for. It works on that chunk's own frames, on several chunks
    of which it is the first, or on frames that are made ahead for it, such as anchors.
    """

    span: Span
    cue: Cue
    chunk: Chunk
    # Number under which its fresh noise is drawn: the chunk's index. Frames that are made ahead
    # have negative ones, and so draws of their own.
    noise_number: int
    step: int = 0  # of denoising; the number of steps: after the last one
    cache: str = HISTORY
    reads: tuple[Read, ...] = ()
    features: str = ""  # HOLD or FORECAST; a forecast forward writes nothing into its cache

    @classmethod
    def of(
        cls, chunk: Chunk, step: int = 0, cache: str = HISTORY, reads: tuple[Read, ...] = ()
    ) -> Forward:
        """A forward of a chunk's own frames."""
        return cls(
            span=chunk.span,
            cue=chunk.cue,
            chunk=chunk,
            step=step,
            cache=cache,
            reads=reads,
            noise_number=chunk.index,
        )

    def at(self, step: int) -> Forward:
        """The same at another step."""
        return replace(self, step=step)

    @property
    def is_ahead(self) -> bool:
        """Whether it works on frames that are made ahead for its chunk."""
        return self.noise_number != self.chunk.index


@dataclass(frozen=True)
class BankPlan:
    """A bank that a retention asks for. Frames are latent frames, the chunk in work included."""

    frames: int  # made for so many at first
    most_frames: int  # and grows up to so many
    heads: tuple[tuple[int, ...], ...] | None = None  # by layer; None: all heads in every layer
    held_frames: int = 0  # whose original keys are held beside the bank, see `Bank.hold`
    holds_values: bool = False  # and whose values, so that the rows themselves may go
    merges: bool = False  # rows are rewritten that count as other tokens, see `Bank.rewrite`
    by_layer: bool = False  # each layer holds as many tokens as the others, but its own

    def heads_by_layer(self, geometry: Geometry) -> tuple[tuple[int, ...], ...]:
        return self.heads or (tuple(range(geometry.heads)),) * geometry.layers
