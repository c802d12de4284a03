"""All that the memory of a take depends on, without the host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import chain, repeat

import torch

from ..kv_policies import Chunk, Geometry, KVPolicy, Take
from .chunks import plan_chunks
from .memory_file import KVMemory
from .recache import frames_together
from .timeline import prompt_frames


@dataclass(frozen=True, kw_only=True)
class TakePlan:
    """What the bytes of a take depend on, known before its first forward."""

    policy: KVPolicy
    geometry: Geometry
    take: Take
    chunks: list[Chunk]
    streams: int  # conditioning branches, each with caches of its own
    dtype: torch.dtype  # of keys and values
    memory: KVMemory | None = None  # the take goes on from it
    piece: range | None = None  # numbers of the chunks to make; None: all that are not finished
    token_bytes: int = 0  # bytes of latents on the device for one token, see `latent_bytes`
    # Expected share, from 0 to 1, of the tokens whose keeping depends on the picture that stay;
    # None: unknown.
    share: float | None = None
    # Called after every simulated chunk; may raise to end a dry run.
    on_chunk: Callable[[], None] = field(default=lambda: None, repr=False, compare=False)

    @property
    def finished_chunks(self) -> tuple[Chunk, ...]:
        """The chunks that an earlier run made."""
        return self.memory.chunks if self.memory else ()

    @property
    def frames_at_once(self) -> int:
        """Latent frames of the largest forward: of the schedule's, or of a recache's."""
        sink = self.policy.retention.sink(self.geometry)
        usual = self.policy.schedule.frames_at_once(self.geometry, self.take)
        return max(usual, frames_together(self.chunks, sink))

    @property
    def latent_bytes(self) -> int:
        """Bytes of the latents of the whole take on the device."""
        return self.token_bytes * self.geometry.tokens_per_frame * self.take.total_frames

    def check(self):
        """Raise ValueError, in a sentence, when the policy cannot work with this model and take."""
        self.policy.check(self.geometry, self.take)

    def of_length(self, frames: int) -> TakePlan:
        """The same take in another length, made to its end, under the prompts that begin before."""
        chunk_frames = min(self.geometry.chunk_frames, frames)
        chunks = plan_chunks(frames, chunk_frames, self.take.given_frames, self.finished_chunks)
        # The last chunk's prompt stays in force for chunks that are added behind it.
        last = replace(self.chunks[-1].cue, switch=None)
        cues = chain((chunk.cue for chunk in self.chunks), repeat(last))
        chunks = [replace(chunk, cue=cue) for chunk, cue in zip(chunks, cues)]
        return replace(
            self,
            geometry=replace(self.geometry, chunk_frames=chunk_frames),
            chunks=chunks,
            piece=None,
            take=replace(self.take, total_frames=frames, prompt_frames=prompt_frames(chunks)),
        )
