"""All that the memory of a take depends on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import chain, repeat

import torch

from ..kv_policies import Chunk, Geometry, KVPolicy, Take
from .chunks import plan_chunks
from .memory_file import KVMemory
from .timeline import prompt_frames


@dataclass(frozen=True)
class Setup:
    """All that a take's memory depends on."""

    policy: KVPolicy
    geometry: Geometry
    take: Take
    chunks: list[Chunk]
    streams: int
    dtype: torch.dtype
    memory: KVMemory | None = None  # from which the take goes on
    piece: range | None = (
        None  # numbers of the chunks that are made; None: of all that are not made yet
    )
    token_bytes: int = 0  # in which the sampling call holds the latents of one token on the device
    share: float | None = (
        # of the tokens that the picture decides on, what is expected to stay, if that is known
        None
    )
    on_chunk: Callable[[], None] = field(
        default=lambda: None, repr=False, compare=False
    )  # called while it is looked into; may raise, to end that

    @property
    def made(self) -> tuple[Chunk, ...]:
        return self.memory.chunks if self.memory else ()

    @property
    def latent_bytes(self) -> int:
        """Of the whole take, from its beginning to its end."""
        return self.token_bytes * self.geometry.tokens_per_frame * self.take.total_frames

    def check(self):
        """Raise ValueError, in a sentence, when the policy cannot work with this model and take."""
        self.policy.check(self.geometry, self.take)

    def of_length(self, frames: int) -> Setup:
        """The same take in another length, made to its end, with the prompts that come in before."""
        chunk_frames = min(self.geometry.chunk_frames, frames)
        last = replace(self.chunks[-1].cue, switch=None)
        cues = chain((chunk.cue for chunk in self.chunks), repeat(last))
        chunks = [
            replace(chunk, cue=cue)
            for chunk, cue in zip(
                plan_chunks(frames, chunk_frames, self.take.given_frames, self.made), cues
            )
        ]
        return replace(
            self,
            geometry=replace(self.geometry, chunk_frames=chunk_frames),
            chunks=chunks,
            piece=None,
            take=replace(self.take, total_frames=frames, prompt_frames=prompt_frames(chunks)),
        )
