"""What a schedule makes a take with: the model's calls, the re-noise rule, and the bookkeeping
around each forward.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, replace

from torch import Tensor

from ..kv_policies import HISTORY, Chunk, Forward, Span, Stage, State
from .memory_file import KVMemory
from .recache import planned_reruns, recache
from .session import Session
from .trace import Trace
from .walk import Worker, walk

# chunk, step, x0, and the noisy latents that it was made of
OnStep = Callable[[Chunk, int, Tensor, Tensor], None]


@dataclass
class Model:
    """The three calls that a rollout makes; latents are `[1, C, F, 2h, 2w]`."""

    # x, sigma -> x0 after guidance; sigma is a 0-dim tensor, or [F], one for each frame
    predict: Callable[[Forward, Tensor, Tensor], Tensor]
    # x, sigma (a float): run every stream once, for the cache alone
    write: Callable[[Forward, Tensor, float], None]
    # number of the generated chunk, step, like -> fresh noise
    noise: Callable[[int, int, Tensor], Tensor]


class Rollout(Stage):
    """The stage of one batch item's take. What a schedule may call is documented on `Stage`.

    The re-noise rule is that of the Self-Forcing family: x = (1 - sigma') x0 + sigma' noise, fresh
    noise at every step.
    """

    def __init__(
        self,
        *,
        chunks: list[Chunk],
        sigmas: Tensor,
        noise: Tensor,
        prefix: Tensor | None,
        model: Model,
        session: Session,
        trace: Trace,
        on_step: OnStep = lambda *step: None,
        workers: Mapping[str, Worker] = {},
        pieces: list[range] | None = None,
        goes_on: bool = False,
        memory: KVMemory | None = None,
        names: Mapping[Hashable, str] = {},
        renoise_sigmas: Tensor | None = None,
    ):
        """`sigmas` [steps + 1], descending; `noise` [1, C, T, 2h, 2w]; `prefix` holds the given
        chunks' latents; `workers` by lane, or none. `renoise_sigmas` [steps + 1]: to which levels
        x0 is noised for each step; None: to those of the steps.

        `pieces`: numbers of the chunks to make, in pieces; None: all, in one. With `goes_on`
        another piece or another run may go on from where this one ends. The take goes on from
        `memory`, whose streams have the `names` of our keys.
        """
        self.chunks = chunks
        self.steps = len(sigmas) - 1
        self.sigmas = sigmas.tolist()
        self.pieces = [range(len(chunks))] if pieces is None else pieces
        self.piece = self.pieces[0]
        self.carried = {}
        self.model = model
        self.session = session
        self.trace = trace
        self._sigmas = sigmas
        self._renoise_sigmas = sigmas if renoise_sigmas is None else renoise_sigmas
        self._noise = noise
        self._prefix = prefix
        self._on_step = on_step
        self._workers = workers
        self._goes_on = goes_on
        self._given_chunks = sum(chunk.given for chunk in chunks)
        self._reruns = planned_reruns(chunks, session.policy.retention.sink(session.geometry))
        if memory:
            self._resume(memory, names)

    def _resume(self, memory: KVMemory, names: Mapping[Hashable, str]):
        self.session.restore(memory.streams, names)
        self.carried = {name: x.to(self._noise.device) for name, x in memory.carried.items()}
        latents = memory.latents.to(self._noise)
        self._hold_latents({chunk.index: chunk.span.cut(latents) for chunk in memory.chunks})

    def memory(
        self, about: State, latents: Tensor, prefix: Tensor | None, names: dict[Hashable, str]
    ) -> KVMemory:
        """What this take, of which the piece is made, needs to go on; `latents`, `about` and
        `prefix` as in KVMemory.
        """
        return KVMemory.copied(
            about=about,
            chunks=self.chunks[: self.piece.stop],
            latents=latents,
            prefix=prefix,
            streams=self.session.state(names),
            carried=self.carried,
        )

    # -- what a schedule asks

    def in_work(self) -> list[Chunk]:
        return self.chunks[self.piece.start : self.piece.stop]

    def is_read_later(self, chunk: Chunk) -> bool:
        return self._goes_on or chunk.index < self.piece.stop - 1

    def given(self, span: Span) -> Tensor:
        return span.cut(self._prefix)

    def noise(self, span: Span) -> Tensor:
        return span.cut(self._noise)

    def bring(self, x: Tensor, cache: str) -> Tensor:
        return x.to(self.session.place(cache))

    # -- the caches

    def begin(self, forward: Forward, oldest: int | None = None):
        with self.trace.phase("policy", forward.chunk):
            self.session.begin(forward, oldest)

    def turn(self, cache: str, first_position: int, chunk: Chunk):
        with self.trace.phase("policy", chunk):
            self.session.turn(cache, first_position)

    def commit(self, cache: str):
        self.session.commit(cache)

    def discard(self, cache: str):
        self.session.discard(cache)

    def switch(self, chunk: Chunk, sigma: float):
        if chunk.cue.shot == chunk.start_frame > 0:  # a cut, and the retention forgets at cuts
            with self.trace.phase("policy", chunk):
                for stream in self.session.streams.values():
                    stream.retention.begin_shot(stream.caches[HISTORY], chunk)
        if chunk.index in self._reruns:
            with self.trace.phase("recache", chunk):
                frames = self._run_again(chunk, self._reruns.pop(chunk.index), sigma)
            again = (
                f"latent frames {frames.start} to {frames.stop - 1} were"
                if frames
                else "no chunk is kept that could be"
            )
            how = " in one forward" if frames and chunk.cue.switch.together else ""
            self.trace.note(
                f"Latent frame {chunk.start_frame}: {again} run again{how} under the new prompt."
            )
        self._hold_latents(self.session.latents)

    def _run_again(self, chunk: Chunk, candidates: list[Chunk], sigma: float) -> range:
        """Write finished chunks anew, under the prompts of `chunk`; the latent frames that were."""

        def run(forward: Forward, x0: Tensor):
            cue = replace(forward.cue, prompt=chunk.cue.prompt)
            self.model.write(replace(forward, cue=cue, step=self.steps), x0, sigma)

        return recache(self.session, candidates, run, chunk.cue.switch.together)

    def _hold_latents(self, finished: dict[int, Tensor]):
        """Hold those of finished chunks that will be run again, by index."""
        needed = {chunk.index for chunks in self._reruns.values() for chunk in chunks}
        self.session.latents = {index: x0 for index, x0 in finished.items() if index in needed}

    # -- forwards

    def denoise(self, forward: Forward, x: Tensor, frame_steps: list[int] | None = None) -> Tensor:
        x = self.bring(x, forward.cache)
        steps = forward.step if frame_steps is None else frame_steps
        with self.trace.phase("denoise", forward.chunk):
            x0 = self.model.predict(forward, x, self._sigmas[steps].to(x.device))
        self.trace.measure(self.session, forward)
        if forward.cache == HISTORY:
            with self.trace.phase("policy", forward.chunk):
                for stream in self.session.streams.values():
                    stream.retention.after_step(forward.chunk, forward.step, x0)
        if forward.features and forward.step == self.steps - 1:
            self.session.forget_features()
        self._on_step(forward.chunk, forward.step, x0, x)
        return x0

    def renoise(self, forward: Forward, x0: Tensor) -> Tensor:
        if self.sigmas[forward.step + 1] == 0:
            return x0
        sigma = self._renoise_sigmas[forward.step + 1].to(x0.device)
        noise = self.model.noise(forward.noise_number - self._given_chunks, forward.step, x0)
        return (1.0 - sigma) * x0 + sigma * noise

    def clean(self, chunk: Chunk, x0: Tensor, sigma: float):
        streams = self.session.streams.values()

        # 1. Policies look at the finished chunk and compact.
        self._probe(chunk, x0)
        with self.trace.phase("policy", chunk):
            for stream in streams:
                stream.retention.before_clean(stream.caches[HISTORY], chunk)

        # 2. One forward of it: then it is history.
        self.write(Forward.of(chunk), x0, sigma)
        self._hold_latents({**self.session.latents, chunk.index: x0})

        # 3. Policies score it.
        with self.trace.phase("policy", chunk):
            for stream in streams:
                stream.retention.after_clean(stream.caches[HISTORY], chunk, x0)
        if chunk.given:
            self._on_step(chunk, 0, x0, x0)

    def write(self, forward: Forward, x: Tensor, sigma: float):
        forward = forward.at(self.steps)
        with self.trace.phase("clean", forward.chunk):
            self._write(forward, x, sigma)

    def _write(self, forward: Forward, x: Tensor, sigma: float):
        before = self.session.forward_counts(forward.cache)
        self.model.write(forward, self.bring(x, forward.cache), sigma)
        if forward.chunk.given:
            self.trace.measure(self.session, forward)
        self.session.commit(forward.cache, before)

    def _probe(self, chunk: Chunk, x0: Tensor):
        """One guided forward of a noised copy. It writes into the chunk's own rows, which the clean
        pass overwrites.
        """
        retentions = [stream.retention for stream in self.session.streams.values()]
        probes = [retention.probe(chunk, x0) for retention in retentions]
        # Streams run the same policy with the same seed, so all ask or none.
        if not probes or probes[0] is None:
            return
        x, sigma = probes[0]
        with self.trace.phase("probe", chunk):
            forward = Forward.of(chunk, self.steps)
            predicted = self.model.predict(forward, x, self._sigmas.new_tensor(sigma))
        for retention in retentions:
            retention.after_probe(chunk, predicted)

    # -- works side by side

    def walk(self, graph: dict, run: Callable[[object, Stage], None]) -> Iterator:
        """Steps are reported in the graph's order, and from this thread: each work has a rollout of
        its own, which takes down what it would report.
        """
        reports: dict = {}

        def run_one(work):
            reports[work] = []
            run(work, self._reporting_to(lambda *step: reports[work].append(step)))

        for work in walk(graph, run_one, self._workers):
            for step in reports.pop(work):
                self._on_step(*step)
            yield work

    def _reporting_to(self, on_step: OnStep) -> Rollout:
        """The same rollout, whose steps are reported to another."""
        other = copy(self)
        other._on_step = on_step
        return other
