"""The third slot of a policy: in which order forwards run. `Schedule` is what a method implements,
`Stage` what its loop may call.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar, Protocol

from torch import Tensor

from ..take import HISTORY, Chunk, Forward, Geometry, Span, Take

if TYPE_CHECKING:
    from ..retention.retention import Retention
    from ..take import BankPlan
    from .features import Features


class Stage(Protocol):
    """What a schedule makes a take with. Latents are `[1, C, F, 2h, 2w]`, normalised.

    A chunk in a cache goes through these calls: `begin` makes room for its rows, each `denoise` or
    `write` into the cache overwrites them, and `write`, `clean` or `commit` make them history (or
    `discard` gives them up).
    """

    chunks: list[Chunk]  # of the whole take
    piece: range  # numbers of the chunks to make now
    steps: int
    sigmas: list[float]  # noise level of each step, then 0
    # Latents that the schedule needs in the next piece, by name; saved and restored with the take.
    carried: dict[str, Tensor]

    def in_work(self) -> list[Chunk]:
        """The chunks to make now: those of `piece`."""
        ...

    def is_read_later(self, chunk: Chunk) -> bool:
        """Whether anything reads what a chunk leaves in a cache."""
        ...

    def given(self, span: Span) -> Tensor:
        """Latents of the prefix."""
        ...

    def noise(self, span: Span) -> Tensor:
        """The take's noise at latent frames."""
        ...

    def bring(self, x: Tensor, cache: str) -> Tensor:
        """A tensor, on the device on which a cache lives."""
        ...

    def switch(self, chunk: Chunk, sigma: float) -> None:
        """Before a chunk with which other prompts come in: forget the shot before it, or run the
        latest chunks again under the new prompts, at a noise level. For a retention's history only.
        """
        ...

    def begin(self, forward: Forward, oldest: int | None = None) -> None:
        """Make room in a forward's cache for the rows of its span; first drop rows of latent frames
        before `oldest`. A retention evicts here what it no longer keeps.
        """
        ...

    def denoise(self, forward: Forward, x: Tensor, frame_steps: list[int] | None = None) -> Tensor:
        """One step: the prediction x0 of the noisy latents `x`. `frame_steps`: the step of each
        frame, where they are not all at the forward's.
        """
        ...

    def renoise(self, forward: Forward, x0: Tensor) -> Tensor:
        """The noisy latents of the step after a forward's; x0 itself after the last one."""
        ...

    def clean(self, chunk: Chunk, x0: Tensor, sigma: float) -> None:
        """The clean pass of a finished chunk into a retention's history, at a noise level."""
        ...

    def write(self, forward: Forward, x: Tensor, sigma: float) -> None:
        """A forward for its cache alone; what it wrote is history from then on."""
        ...

    def commit(self, cache: str) -> None:
        """What the last forward wrote into a cache is history from then on."""
        ...

    def discard(self, cache: str) -> None:
        """What the last forward wrote into a cache is not to be read again."""
        ...

    def turn(self, cache: str, first_position: int, chunk: Chunk) -> None:
        """Turn a cache's history in time, to begin at a position, for a chunk that reads it."""
        ...

    def walk(self, graph: dict, run: Callable[[object, Stage], None]) -> Iterator:
        """Do every work of a graph by `run(work, stage)`, side by side where there are several
        devices, and yield each in the graph's order, see `Schedule.graph`.
        """
        ...


class Schedule(ABC):
    """Slot 3: in which order forwards run, and with that how history gets into the cache."""

    # its node's name without "KV Policy: "; empty: the class's own in words, see `title_of`
    title: ClassVar[str] = ""
    # the ways of SWITCHES in which its takes may change prompts
    switches: ClassVar[tuple[str, ...]] = ()
    # False: nothing is finished before the take's end, so it is made in one run
    pauses: ClassVar[bool] = True
    # False: the order depends on the take's length, which a later run cannot change
    extends: ClassVar[bool] = True
    # True: its caches are its own, and no retention acts on them
    keeps_own_history: ClassVar[bool] = True
    # True: a selection acts on its forwards
    selects: ClassVar[bool] = False
    # True: a forward works on frames that lie apart, or reads several caches together
    gathers: ClassVar[bool] = False
    # Who makes its forwards. Each role can run on a MODEL of its own, which a node takes by the
    # input `<role>_model`; the last role makes the most forwards.
    roles: ClassVar[tuple[str, ...]] = ()

    def caches(
        self, retention: Retention, geometry: Geometry, take: Take
    ) -> dict[str, list[BankPlan]]:
        """The caches of a stream, by name."""
        return {HISTORY: retention.banks(geometry, take)}

    def lane(self, cache: str) -> str:
        """Caches of one lane live on one device, where the forwards into them run; stats show them
        as one.
        """
        return cache

    def role_of(self, cache: str) -> str | None:
        """The role that makes the forwards into a cache; None: the sampler's own MODEL does."""
        return None

    def graph(self, chunks: list[Chunk], steps: int) -> dict:
        """Every work, which has a `lane`, with those it needs, in an order for one device. Empty:
        nothing here can run side by side.
        """
        return {}

    def full_frames(self, retention: Retention, geometry: Geometry) -> int | None:
        """Latent frames in reach of a forward, its own included, with which the window counts as
        full; None when there is no window.
        """
        return retention.full_frames(geometry)

    def frames_at_once(self, geometry: Geometry, take: Take) -> int:
        """Latent frames of the largest forward. More than a chunk's: several chunks run together,
        each at a noise level of its own.
        """
        return geometry.chunk_frames

    def reports(self, chunks: list[Chunk], steps: int, piece: range) -> int:
        """How often a piece of a take, numbers of chunks, calls `on_step`: what a progress bar
        counts to.
        """
        return sum(1 if chunks[i].given else steps for i in piece)

    def features(self) -> Features | None:
        """What each stream holds its modules' outputs in, where the schedule has forwards that are
        forecast from them.
        """
        return None

    def forecast_steps(self, steps: int) -> tuple[int, ...]:
        """Steps of denoising, of so many, whose forwards are forecast and not computed."""
        return ()

    def carries(self, chunks: list[Chunk], steps: int, made: int) -> dict[str, int]:
        """What is in `Stage.carried` once so many chunks are made: by name, how many latent
        frames.
        """
        return {}

    def check(self, geometry: Geometry, take: Take):
        """Raise ValueError, in a sentence, when this order cannot work with this model or take."""

    def notes(self, models: Mapping[str, object], noisy_history: bool) -> tuple[str, ...]:
        """What a user should know before a take. `models` by role, see `KVPolicy.models`;
        `noisy_history`: whether the sampler's model was trained to read history that is not clean.
        """
        return ()

    @abstractmethod
    def run(self, stage: Stage) -> Iterator[tuple[Chunk, Tensor]]:
        """Yield each chunk of `stage.piece` with its finished latents `[1, C, F, 2h, 2w]`.

        A take is made in one piece or in several. Between two of them it can be saved: the caches,
        the streams' runs and `stage.carried` are then all that the next piece may build on.
        """
