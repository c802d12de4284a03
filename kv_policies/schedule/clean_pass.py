"""The chunk loop of the Self-Forcing family (arXiv 2506.08009): denoise a chunk, then write it into
the cache by a clean pass.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..take import SWITCHES, Chunk, Forward
from .schedule import Schedule, Stage


@dataclass(frozen=True)
class CleanPass(Schedule):
    """`context_noise` is the sigma of the clean pass (0 in every released configuration; the latent
    itself stays clean).
    """

    context_noise: float = 0.0
    switches: ClassVar = SWITCHES
    keeps_own_history: ClassVar = False
    selects: ClassVar = True

    def run(self, stage: Stage) -> Iterator[tuple[Chunk, Tensor]]:
        for chunk in stage.in_work():
            forward = Forward.of(chunk)
            stage.switch(chunk, self.context_noise)
            stage.begin(forward)
            if chunk.given:
                x = stage.given(chunk.span)
            else:
                x = stage.noise(chunk.span)
                for step in range(stage.steps):
                    at_step = self.forward_at(forward, step)
                    x0 = stage.denoise(at_step, x)
                    x = stage.renoise(at_step, x0)
            if stage.is_read_later(chunk):
                stage.clean(chunk, x, self.context_noise)
            yield chunk, x

    def forward_at(self, forward: Forward, step: int) -> Forward:
        """A chunk's forward at a step of denoising."""
        return forward.at(step)
