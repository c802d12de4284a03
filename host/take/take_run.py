"""One take in work: batch items, chunks, and what becomes of each finished one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import perf_counter

import torch
from torch import Tensor

from ...kv_policies import Chunk
from ...rollout.chunks import in_pieces
from ...rollout.loop import run
from ...rollout.memory_file import KVMemory
from ...rollout.rollout import Rollout
from ...rollout.session import Session
from ...rollout.stats import KVStats
from ...rollout.trace import Trace
from ..budget.peaks import Peaks
from ..files.growing_files import GrowingFiles
from ..forward.devices import workers_of_lanes
from ..model.flow import renoise_levels
from ..show.live import TakeMessages
from .plan import HostPlan
from .players import Players
from .progress import Progress
from .request import TakeRequest


class TakeRun:
    """Everything that changes while one sampling call makes a take. It ends with the call."""

    def __init__(
        self,
        *,
        host_plan: HostPlan,
        request: TakeRequest,
        guider,
        sigmas: Tensor,
        x: Tensor,
        callback: Callable | None,
        on_memory: Callable[[KVMemory], None] | None,
        files: GrowingFiles | None,
    ):
        """`x` [B, C, T, 2h, 2w], the noise that the take is made of; `sigmas` [steps + 1]."""
        self.host_plan = host_plan
        self.take_plan = host_plan.take_plan
        self.request = request
        self.guider = guider
        self.sigmas = sigmas
        self.x = x
        self.on_memory = on_memory
        self.files = files
        self.given = self.prefix = None
        if host_plan.prefix is not None:
            given = guider.inner_model.process_latent_in(host_plan.prefix)
            self.given = given.to(x.device, x.dtype)
            # The host's own AR sampler feeds the prefix rounded to the model's dtype.
            self.prefix = self.given.to(self.take_plan.dtype).to(x.dtype)
        # Written, so that its memory is taken now and not bit by bit.
        self.output = torch.empty_like(x).zero_()
        self.trace = Trace()
        self.peaks = Peaks(x.device)
        self.began = perf_counter()
        self.progress = self._progress(callback)
        self.messages = TakeMessages(self.take_plan.take.total_frames)

    def _progress(self, callback: Callable | None) -> Progress:
        take_plan = self.take_plan
        steps = take_plan.take.steps
        reports = take_plan.policy.schedule.reports(take_plan.chunks, steps, take_plan.piece)
        return Progress(callback, steps, len(self.x) * reports)

    def make(self, players: Players) -> Tensor:
        """Make the take, or the part of it that was asked for; latents of all its frames."""
        memory = self.take_plan.memory
        if memory:
            self.output[:, :, : memory.frames] = memory.latents
        for item in range(len(self.x)):
            self._make_item(players, item)
        if self.given is not None:  # they come out as they came in, to the last bit
            self.output[:, :, : self.given.shape[2]] = self.given
        return self.output

    def _make_item(self, players: Players, item: int):
        """Make the take of one batch item."""
        # 1. Caches of its own.
        take_plan = self.take_plan
        self.trace.item = item
        one = slice(item, item + 1)
        session = Session(
            take_plan.policy,
            take_plan.geometry,
            take_plan.take,
            take_plan.dtype,
            self.x.device,
            self.host_plan.lanes,
        )
        numbers = self.request.noise_index
        # 2. Which chunks to make, and from where to go on.
        save_every = self.files.stream.save_every if self.files else 0
        rollout = Rollout(
            chunks=take_plan.chunks,
            sigmas=self.sigmas,
            noise=self.x[one],
            prefix=None if self.prefix is None else self.prefix[one],
            model=players.model(session, item, numbers[item] if numbers else item),
            session=session,
            trace=self.trace,
            on_step=self.progress,
            workers=workers_of_lanes(self.guider, self.host_plan.lanes),
            pieces=in_pieces(take_plan.piece, save_every),
            goes_on=bool(self.request.save_input),
            memory=take_plan.memory,
            names=self.host_plan.stream_names,
            renoise_sigmas=renoise_levels(self.guider.inner_model.model_sampling, self.sigmas),
        )
        # 3. Chunk after chunk.
        for chunk, latents in run(rollout, partial(self._save_piece, rollout)):
            require_finite(chunk, latents)
            self.output[one, :, chunk.start_frame : chunk.end_frame] = latents
            self._hand_on(latents)

    def _hand_on(self, latents: Tensor):
        """After a chunk: preview it, note the memory in use, write its frames into the take's video
        file, and tell the page.
        """
        self.progress.play(latents)
        self.peaks.look()
        if self.files:
            raw = self.guider.inner_model.process_latent_out(latents.to(torch.float32))
            with self.trace.phase_after("video"):  # decoded and written
                self.files.add(raw)
        self.messages.tell_page(self.trace)

    def _save_piece(self, rollout: Rollout):
        """After a piece: save it in the take's files; after the last one, hand on the memory."""
        end = self.take_plan.chunks[rollout.piece.stop - 1].end_frame

        def memory_from(first_frame: int) -> KVMemory:
            latents = self.output[:, :, first_frame:end]
            return rollout.memory(
                self.host_plan.about, latents, self.host_plan.prefix, self.host_plan.stream_names
            )

        if self.files:
            ended = rollout.piece.stop == len(self.take_plan.chunks)
            with self.trace.phase_after("save"):
                self.files.save(memory_from(self.files.saved), ended)
        if self.on_memory and rollout.piece.stop == self.take_plan.piece.stop:
            self.on_memory(memory_from(0))

    def frames_made(self) -> slice:
        """The latent frames to return: those made so far, or of them the new ones alone."""
        take_plan = self.take_plan
        first = take_plan.take.given_frames if self.request.drop_given else 0
        return slice(first, take_plan.chunks[take_plan.piece.stop - 1].end_frame)

    def stats(self) -> KVStats:
        take_plan = self.take_plan
        trace = self.trace
        notes = [*self.host_plan.notes, *trace.notes]
        if self.files:
            notes.append(self.files.report())
        return KVStats(
            policy=take_plan.policy.describe(),
            geometry=take_plan.geometry,
            dtype=str(take_plan.dtype).removeprefix("torch."),
            steps=take_plan.take.steps,
            temporal_compression=self.host_plan.temporal_compression,
            streams=trace.streams,
            chunks=tuple(trace.rows),
            seconds=perf_counter() - self.began,
            peak_cache_bytes=trace.peak_cache_bytes,
            notes=tuple(notes),
            scores=trace.scores,
            latent_size=tuple(self.x.shape[3:]),
            memory_maps=tuple(trace.memory_maps),
            bank_names=trace.bank_names,
            measured_peaks=self.peaks.by_place(),
            given_frames=take_plan.take.given_frames,
            planned_bytes=self.host_plan.estimate.allocated,
        )


def require_finite(chunk: Chunk, latents: Tensor):
    """End a take that has gone black at once, and not after its last chunk."""
    if not torch.isfinite(latents).all():
        raise ValueError(
            f"Latent frames {chunk.start_frame} to {chunk.end_frame - 1} are not finite numbers. "
            "The weights do not fit this model class, or the dtype overflows: try another weight "
            "dtype, and the profile that belongs to the checkpoint."
        )
