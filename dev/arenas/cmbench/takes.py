"""One task's take: its context, its continuation, and what is known of it."""

from pathlib import Path
from time import perf_counter
from typing import NamedTuple

from keepsake.rollout.stats import KVStats
from torch import Tensor

from ..camera import control_of
from ..maker import Maker
from ..records import record_of
from .context import FPS, context_pictures, pixel_frames
from .tasks import Task


class Protocol(NamedTuple):
    """What is the same for all takes of a comparison."""

    frames: int = 16  # new latent frames
    size: tuple[int, int] = (480, 832)  # height, width in pixels
    camera: str = "stand still"


class Context(NamedTuple):
    """What a take goes on from."""

    latents: Tensor  # [1, C, F, h, w]
    start_image: dict[str, Tensor]  # conditioning values; empty for a model that takes none


class Contexts:
    """The context used last, since tasks of a video follow each other in all seeds and rows."""

    def __init__(self):
        self._key, self._context = None, None

    def of(self, maker: Maker, video: Path, protocol: Protocol) -> Context:
        chunk_frames = chunk_frames_of(maker)
        # Rows that share their nodes share the VAE.
        key = video, protocol, chunk_frames, id(maker.vae), maker.takes_start_image
        if key != self._key:
            self._key, self._context = None, None  # two would not fit beside each other
            self._context = encoded(maker, video, protocol, chunk_frames)
            self._key = key
        return self._context


def chunk_frames_of(maker: Maker) -> int:
    return maker.row.sampler.get("chunk_frames") or maker.profile.chunk_frames


def encoded(maker: Maker, video: Path, protocol: Protocol, chunk_frames: int) -> Context:
    """Of a context video: all of it in one go, as its VAE looks back."""
    pictures = context_pictures(video, protocol.size, chunk_frames)
    latents = maker.encode(pictures)
    first = pictures[0]
    del pictures
    frames = latents.shape[2] + protocol.frames
    start = maker.start_image(first, frames) if maker.takes_start_image else {}
    return Context(latents, start)


def take_of(
    maker: Maker, task: Task, seed: int, protocol: Protocol, contexts: Contexts
) -> tuple[Tensor, float, dict]:
    """The continuation's pictures [N, H, W, 3], their rate, and the take's record."""
    began = perf_counter()
    context = contexts.of(maker, task.video, protocol)
    given = context.latents.shape[2]
    latents, stats = maker.take(
        task.prompt,
        given + protocol.frames,
        protocol.size,
        seed,
        prefix=context.latents,
        control=control_of(maker, protocol.camera, given, protocol.frames, protocol.size),
        start_image=context.start_image,
    )
    pictures = maker.decode(latents, first=pixel_frames(given))
    return pictures, FPS, about(task, seed, stats) | record_of(stats, len(pictures), began)


def about(task: Task, seed: int, stats: KVStats) -> dict:
    """What a record of this arena has beside those of all."""
    new = [row for row in stats.chunks if not row.given]
    return {
        "task_id": task.name,
        "type": task.type,
        "task_type": task.task_type,
        "seed": seed,
        "context_latent_frames": stats.given_frames,
        "output_latent_frames": sum(row.frames for row in new),
        "kept_tokens": sum(row.kept_tokens for row in new),
        "full_tokens": sum(row.full_tokens for row in new),
    }
