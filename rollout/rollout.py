"""What a schedule makes a take with: the chunks, the model's calls, the re-noise rule, and the
bookkeeping around each forward.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass

from torch import Tensor

from ..kv_policies import HISTORY, Chunk, Forward, State
from .memory_file import KVMemory
from .recache import planned_reruns, recache
from .session import Session
from .trace import Trace
from .walk import Worker, walk

OnStep = Callable[
    [Chunk, int, Tensor, Tensor], None
]  # chunk, step, x0, and the noisy chunk that it was made of


@dataclass
class Model:
    """The three calls that a rollout makes; latents `[1, C, F, 2h, 2w]`, sigma a 0-dim tensor."""

    predict: Callable[
        [Forward, Tensor, Tensor], Tensor
    ]  # x, sigma -> x0 after guidance; sigma may be [F], one of each frame
    write: Callable[
        [Forward, Tensor, float], None
    ]  # x, sigma: run every stream once, for the cache alone
    noise: Callable[
        [int, int, Tensor], Tensor
    ]  # number of the generated chunk, step, like -> fresh noise


class Rollout:
    """What a schedule works with: the chunks of one take and the calls that make one.

    The re-noise rule is that of the Self-Forcing family: x = (1 - sigma') x0 + sigma' noise, fresh
    noise at every step.
    """

    def __init__(
        self,
        chunks: list[Chunk],
        sigmas: Tensor,
        noise: Tensor,
        prefix: Tensor | None,
        model: Model,
        session: Session,
        trace: Trace,
        on_step: OnStep,
        workers: Mapping[str, Worker] = {},
    ):
        """`sigmas` [steps + 1], descending; `noise` [1, C, T, 2h, 2w]; `prefix` holds the given
        chunks' latents; `workers` by lane, or none.
        """
        self.chunks, self.steps = chunks, len(sigmas) - 1
        self._sigmas, self.sigmas = sigmas, sigmas.tolist()
        self._noise, self._prefix, self._model = noise, prefix, model
        self._session, self._trace, self._on_step, self._workers = session, trace, on_step, workers
        self._given_chunks = sum(chunk.given for chunk in chunks)
        self._reruns = planned_reruns(chunks, session.policy.retention.sink(session.geometry))
        self.pieces = [range(len(chunks))]  # numbers of the chunks to make, in pieces
        self.piece = self.pieces[0]  # those to make now
        self.keeps = False  # another piece or another run may go on from where this one ends
        self.carried: dict[
            str, Tensor
        ] = {}  # latents that the schedule needs in the next piece, see `Schedule.carries`

    def walk(self, graph: dict, run: Callable) -> Iterator:
        """Do a schedule's graph by `run(work, rollout)`, where there are workers side by side, and
        yield each work in the graph's order.

        Steps are told in that order too, and from this thread: each work has a rollout of its own,
        which takes down what it would tell.
        """
        told: dict = {}

        def run_one(work):
            told[work] = []
            run(work, self._telling(lambda *step: told[work].append(step)))

        for work in walk(graph, run_one, self._workers):
            for step in told.pop(work):
                self._on_step(*step)
            yield work

    def _telling(self, on_step: OnStep) -> Rollout:
        """The same, but for whom it tells of its steps."""
        other = copy(self)
        other._on_step = on_step
        return other

    def bring(self, x: Tensor, memory: str) -> Tensor:
        """The tensor where a memory lives."""
        return x.to(self._session.place(memory))

    def begin(self, chunk: Chunk, memory: str = HISTORY):
        with self._trace.phase("policy", chunk):
            self._session.begin(chunk, memory)

    def switch(self, chunk: Chunk, sigma: float):
        """Before a chunk that prompts come in with: forget the shot before it, or run the latest
        chunks again, clean, under the new prompts.
        """
        if chunk.switch and chunk.switch.mode == "cut":
            with self._trace.phase("policy", chunk):
                for stream in self._session.streams.values():
                    stream.retention.cut(stream.caches[HISTORY], chunk)
        if chunk.index in self._reruns:
            with self._trace.phase("recache", chunk):
                frames = recache(
                    self._session,
                    chunk,
                    self._reruns.pop(chunk.index),
                    lambda old, x0: self._write(Forward(old, self.steps), x0, sigma),
                )
            again = (
                f"latent frames {frames.start} to {frames.stop - 1} were"
                if frames
                else "nothing stood that could be"
            )
            self._trace.note(
                f"Latent frame {chunk.start_frame}: {again} run again under the new prompt."
            )
        self._hold_latents(self._session.latents)

    def forget(self, memory: str, before_frame: int, chunk: Chunk):
        """Drop what a memory holds of earlier latent frames, to make room for a chunk."""
        with self._trace.phase("policy", chunk):
            self._session.forget(memory, before_frame)

    def turn(self, memory: str, first_position: int, chunk: Chunk):
        """Turn what a memory holds in time, to begin at a latent frame, for a chunk that reads it."""
        with self._trace.phase("policy", chunk):
            self._session.turn(memory, first_position)

    def commit(self, memory: str):
        """What the last forward wrote is history from then on."""
        self._session.commit({}, memory)

    def discard(self, memory: str):
        """What the last forward wrote is not to be read again."""
        self._session.discard(memory)

    def in_work(self) -> list[Chunk]:
        """The chunks to make now."""
        return self.chunks[self.piece.start : self.piece.stop]

    def resume(self, memory: KVMemory, names: dict[Hashable, str]):
        """Begin where a memory ends; `names` of the streams' keys as in `Session.restore`."""
        self._session.restore(memory.streams, names)
        self.carried = {name: x.to(self._noise.device) for name, x in memory.carried.items()}
        latents = memory.latents.to(self._noise)
        self._hold_latents(
            {
                chunk.index: latents[:, :, chunk.start_frame : chunk.end_frame]
                for chunk in memory.chunks
            }
        )

    def memory(
        self, about: State, latents: Tensor, prefix: Tensor | None, names: dict[Hashable, str]
    ) -> KVMemory:
        """What this take, of which the piece is made, needs to go on; `latents`, `about` and
        `prefix` as in KVMemory.
        """
        return KVMemory.copied(
            about,
            self.chunks[: self.piece.stop],
            latents,
            prefix,
            self._session.state(names),
            self.carried,
        )

    def is_read_later(self, chunk: Chunk) -> bool:
        """Whether anything reads what a chunk leaves behind."""
        return self.keeps or chunk.index < self.piece.stop - 1

    def given(self, chunk: Chunk) -> Tensor:
        return self._prefix[:, :, chunk.start_frame : chunk.end_frame : chunk.stride]

    def noise(self, chunk: Chunk) -> Tensor:
        return self._noise[:, :, chunk.start_frame : chunk.end_frame : chunk.stride]

    def denoise(
        self,
        chunk: Chunk,
        step: int,
        x: Tensor,
        memory: str = HISTORY,
        reads: tuple = (),
        frame_steps: list[int] | None = None,
    ) -> Tensor:
        """One step: the prediction x0 of the noisy chunk `x`, whose frames may be at steps of their
        own.
        """
        forward = Forward(chunk, step, memory, reads)
        x = self.bring(x, memory)
        with self._trace.phase("denoise", chunk):
            x0 = self._model.predict(
                forward, x, self._sigmas[step if frame_steps is None else frame_steps].to(x.device)
            )
        self._trace.measure(self._session, forward)
        if memory == HISTORY:
            with self._trace.phase("policy", chunk):
                for stream in self._session.streams.values():
                    stream.retention.after_step(chunk, step, x0)
        self._on_step(chunk, step, x0, x)
        return x0

    def renoise(self, chunk: Chunk, step: int, x0: Tensor) -> Tensor:
        """The next step's noisy chunk; x0 itself after the last one."""
        if self.sigmas[step + 1] == 0:
            return x0
        sigma = self._sigmas[step + 1].to(x0.device)
        return (1.0 - sigma) * x0 + sigma * self._model.noise(
            chunk.index - self._given_chunks, step, x0
        )

    def clean(self, chunk: Chunk, x0: Tensor, sigma: float):
        """The clean pass: probe where a policy asks for it, compact, run the finished chunk once;
        then it is history.
        """
        streams = self._session.streams.values()
        self._probe(chunk, x0)
        with self._trace.phase("policy", chunk):
            for stream in streams:
                stream.retention.before_clean(stream.caches[HISTORY], chunk)
        self.write(chunk, x0, sigma)
        self._hold_latents({**self._session.latents, chunk.index: x0})
        with self._trace.phase("policy", chunk):
            for stream in streams:
                stream.retention.after_clean(stream.caches[HISTORY], chunk, x0)
        if chunk.given:
            self._on_step(chunk, 0, x0, x0)

    def write(
        self, chunk: Chunk, x: Tensor, sigma: float, memory: str = HISTORY, reads: tuple = ()
    ):
        """A forward for the memory alone; what it wrote is history from then on."""
        forward = Forward(chunk, self.steps, memory, reads)
        if chunk.given:
            self._trace.measure(self._session, forward)
        with self._trace.phase("clean", chunk):
            self._write(forward, x, sigma)

    def _write(self, forward: Forward, x: Tensor, sigma: float):
        before = self._session.forward_counts(forward.memory)
        self._model.write(forward, self.bring(x, forward.memory), sigma)
        self._session.commit(before, forward.memory)

    def _hold_latents(self, finished: dict[int, Tensor]):
        """Hold those of finished chunks that will be run again, by index."""
        needed = {chunk.index for chunks in self._reruns.values() for chunk in chunks}
        self._session.latents = {index: x0 for index, x0 in finished.items() if index in needed}

    def _probe(self, chunk: Chunk, x0: Tensor):
        """One guided forward of a noised copy. It writes into the chunk's own rows, which the clean
        pass overwrites.
        """
        retentions = [stream.retention for stream in self._session.streams.values()]
        probes = [retention.probe(chunk, x0) for retention in retentions]
        if (
            not probes or probes[0] is None
        ):  # streams run the same policy with the same seed, so all ask or none
            return
        with self._trace.phase("probe", chunk):
            predicted = self._model.predict(
                Forward(chunk, self.steps), probes[0].x, self._sigmas.new_tensor(probes[0].sigma)
            )
        for retention in retentions:
            retention.after_probe(chunk, predicted)
