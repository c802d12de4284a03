"""The chunk loop of the Self-Forcing family (arXiv 2506.08009): denoise a chunk, then write it into
the cache by a clean pass.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..take import SWITCHES, Chunk
from .schedule import Schedule


@dataclass(frozen=True)
class CleanPass(Schedule):
    """`context_noise` is the sigma of the clean pass (0 in every released configuration; the latent
    itself stays clean).
    """

    context_noise: float = 0.0
    switches: ClassVar = SWITCHES

    def take(self, rollout) -> Iterator[tuple[Chunk, Tensor]]:
        for chunk in rollout.in_work():
            rollout.switch(chunk, self.context_noise)
            rollout.begin(chunk)
            if chunk.given:
                x0 = rollout.given(chunk)
            else:
                x = rollout.noise(chunk)
                for step in range(rollout.steps):
                    x0 = rollout.denoise(chunk, step, x)
                    x = rollout.renoise(chunk, step, x0)
                x0 = x
            if rollout.is_read_later(chunk):
                rollout.clean(chunk, x0, self.context_noise)
            yield chunk, x0
