"""A take inside ComfyUI: from a guider's sampling call down to the rollout, and back."""

import logging
from collections.abc import Callable
from contextlib import closing
from functools import partial
from time import perf_counter

import comfy.samplers
import torch
from torch import Tensor

from ...kv_policies import Chunk, KVPolicy
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
from ..show.live import tell_page
from .planning import Plan, plan_take
from .players import Players


def require_finite(chunk: Chunk, latents: Tensor):
    """End a take that has gone black at once, and not after its last chunk."""
    if not torch.isfinite(latents).all():
        raise ValueError(
            f"Latent frames {chunk.start_frame} to {chunk.end_frame - 1} are not finite numbers. "
            "The weights do not fit this "
            "model class, or the dtype overflows: try another weight dtype, and the profile that "
            "belongs to the checkpoint."
        )


def log_stats(stats: KVStats):
    logging.info("Keepsake: %s", stats.report().replace("\n", "; "))


class ARVideoSampler(comfy.samplers.Sampler):
    """Chunk by chunk sampling with a KV policy, as a host SAMPLER. Holds parameters only."""

    planned_bytes: tuple[int, int] | None = (
        None  # of the copy that makes one take, see `prepare_take`
    )

    def __init__(
        self,
        policy: KVPolicy | None = None,
        chunk_frames: int = 0,
        prefix: Tensor | None = None,
        control: Tensor | None = None,
        noise_index: list[int] | None = None,
        drop_given: bool = False,
        on_stats: Callable[[KVStats], None] = log_stats,
        memory: KVMemory | None = None,
        stop_after: int = 0,
        on_memory: Callable[[KVMemory], None] | None = None,
        files: GrowingFiles | None = None,
    ):
        """`policy` None and `chunk_frames` 0 take the model's profile. `prefix` [B, C, P, 2h, 2w]
        raw latents, `control` [B, K, T, 2h, 2w]; `noise_index` numbers the batch items' noise; with
        `drop_given` the output begins with the first new latent frame.

        The take goes on from `memory`, ends with the chunk that reaches latent frame `stop_after`
        (0: with the last), and leaves a memory for `on_memory`; what is made goes into `files`.
        """
        self.policy, self.chunk_frames, self.prefix, self.control = (
            policy,
            chunk_frames,
            prefix,
            control,
        )
        self.noise_index, self.drop_given, self.on_stats = noise_index, drop_given, on_stats
        self.memory, self.stop_after, self.on_memory, self.files = (
            memory,
            stop_after,
            on_memory,
            files,
        )

    def plan(self, guider, shape: tuple[int, ...], sigmas: Tensor, seed: int = 0) -> Plan:
        keeps = "stream" if self.files else "keep_memory" if self.on_memory else ""
        return plan_take(
            guider,
            shape,
            sigmas,
            seed,
            policy=self.policy,
            chunk_frames=self.chunk_frames,
            prefix=self.prefix,
            control=self.control,
            memory=self.memory,
            stop_after=self.stop_after,
            keeps=keeps,
            noise_index=self.noise_index,
        )

    def sample(
        self,
        model_wrap,
        sigmas,
        extra_args,
        callback,
        noise,
        latent_image=None,
        denoise_mask=None,
        disable_pbar=False,
    ):
        """The host's sampler call; `model_wrap` is its guider, `noise` [B, C, T, 2h, 2w]. Returns
        latents of the frames made so far, or of the new ones alone.
        """
        plan, inner = (
            self.plan(model_wrap, tuple(noise.shape), sigmas, extra_args.get("seed") or 0),
            model_wrap.inner_model,
        )
        flow = inner.model_sampling
        x = flow.noise_scaling(sigmas[0], noise, latent_image, self.max_denoise(model_wrap, sigmas))
        given = prefix = None
        if plan.prefix is not None:
            given = inner.process_latent_in(plan.prefix).to(x.device, x.dtype)
            # The host's own AR sampler feeds the prefix rounded to the model's dtype.
            prefix = given.to(plan.dtype).to(x.dtype)
        output = torch.empty_like(
            x
        ).zero_()  # written, so that its memory is taken now and not bit by bit
        trace, began, peaks = Trace(), perf_counter(), Peaks(x.device)
        progress = Progress(
            callback,
            plan.take.steps,
            len(x) * plan.policy.schedule.reports(plan.chunks, plan.take.steps, plan.piece),
        )
        if self.memory:
            output[:, :, : self.memory.frames] = self.memory.latents
        with closing(Players(model_wrap, plan, extra_args, sigmas, noise, latent_image)) as players:
            for item in range(len(x)):
                trace.item, one = item, slice(item, item + 1)
                session = Session(
                    plan.policy, plan.geometry, plan.take, plan.dtype, x.device, plan.lanes
                )
                model = players.model(
                    session, item, self.noise_index[item] if self.noise_index else item
                )
                rollout = Rollout(
                    chunks=plan.chunks,
                    sigmas=sigmas,
                    noise=x[one],
                    prefix=None if prefix is None else prefix[one],
                    model=model,
                    session=session,
                    trace=trace,
                    on_step=progress,
                    workers=workers_of_lanes(model_wrap, plan.lanes),
                    pieces=in_pieces(plan.piece, self.files.stream.save_every if self.files else 0),
                    is_kept=self.on_memory is not None or self.files is not None,
                    memory=self.memory,
                    names=plan.names,
                )
                for chunk, latents in run(rollout, partial(self._keep, plan, rollout, output)):
                    require_finite(chunk, latents)
                    progress.play(latents)
                    peaks.look()
                    output[one, :, chunk.start_frame : chunk.end_frame] = latents
                    if self.files:
                        self.files.add(inner.process_latent_out(latents.to(torch.float32)))
                    tell_page(trace, plan.take.total_frames)
        if given is not None:
            output[:, :, : given.shape[2]] = (
                given  # given frames come out as they came in, to the last bit
            )
        self.on_stats(self._stats(plan, trace, tuple(x.shape[3:]), perf_counter() - began, peaks))
        made = slice(
            plan.take.given_frames if self.drop_given else 0,
            plan.chunks[plan.piece.stop - 1].end_frame,
        )
        return flow.inverse_noise_scaling(sigmas[-1], output[:, :, made])

    def _stats(
        self, plan: Plan, trace: Trace, latent_size: tuple[int, int], seconds: float, peaks: Peaks
    ) -> KVStats:
        notes = (*plan.notes, *trace.notes, *([self.files.report()] if self.files else []))
        return KVStats(
            policy=plan.policy.describe(),
            geometry=plan.geometry,
            dtype=str(plan.dtype).removeprefix("torch."),
            steps=plan.take.steps,
            temporal_compression=plan.temporal_compression,
            streams=trace.streams,
            chunks=tuple(trace.rows),
            seconds=seconds,
            peak_cache_bytes=trace.peak_cache_bytes,
            notes=notes,
            scores=trace.scores,
            latent_size=latent_size,
            memory_maps=tuple(trace.memory_maps),
            bank_names=trace.bank_names,
            measured_peaks=peaks.told(),
            given_frames=plan.take.given_frames,
            planned_bytes=self.planned_bytes,
        )

    def _keep(self, plan: Plan, rollout: Rollout, output: Tensor):
        """After a piece: make it safe; after the last one, also leave the memory."""
        made = plan.chunks[rollout.piece.stop - 1].end_frame
        if self.files:
            self.files.save(
                rollout.memory(
                    plan.about, output[:, :, self.files.saved : made], plan.prefix, plan.names
                ),
                ended=rollout.piece.stop == len(plan.chunks),
            )
        if self.on_memory and rollout.piece.stop == plan.piece.stop:
            self.on_memory(rollout.memory(plan.about, output[:, :, :made], plan.prefix, plan.names))


class Progress:
    """Counts given chunks, and chunks x steps of new ones, for the host's callback. A preview that
    fails never ends a run.

    The host's preview is of the first frame that it gets, so it gets the newest finished chunk,
    step by step from a later frame on: the picture moves through the take. Reports before one is
    finished, and the last of all, have the prediction x0 itself.
    """

    def __init__(self, callback, steps: int, total: int):
        self.callback, self.steps, self.total, self.done = callback, steps, total, 0
        self.finished: Tensor | None = None  # the newest finished chunk, [1, C, F, 2h, 2w]
        self.since = 0  # reports done when it came

    def play(self, latents: Tensor):
        """Show a finished chunk from now on."""
        self.finished, self.since = latents, self.done

    def __call__(self, chunk: Chunk, step: int, x0: Tensor, x: Tensor):
        if self.callback is None:
            return
        try:
            self.callback(self.done, self._shown(x0), x, self.total)
        except Exception:  # an interrupt is a BaseException and passes
            logging.warning(
                "Keepsake: the preview failed and is off for the rest of this take.", exc_info=True
            )
            self.callback = None
        self.done += 1

    def _shown(self, x0: Tensor) -> Tensor:
        if self.finished is None or self.done == self.total - 1:
            return x0
        frames = self.finished.shape[2]
        return self.finished[
            :, :, min((self.done - self.since) * frames // self.steps, frames - 1) :
        ]
