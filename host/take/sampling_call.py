"""What ComfyUI's sampling call brings to a take."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

from torch import Tensor


class SamplingCall(NamedTuple):
    """What a plan depends on beside the request and the MODEL. Two calls of the same take are
    equal.
    """

    shape: tuple[int, ...]  # of the latent, [B, C, T, 2h, 2w]
    sigmas: tuple[float, ...]
    seed: int
    prompts: tuple[tuple[str, tuple[Hashable, ...]], ...]  # ids of the conditionings, by group

    @classmethod
    def of(cls, guider, shape: tuple[int, ...], sigmas: Tensor, seed: int | None) -> SamplingCall:
        prompts = tuple(
            (name, tuple(cond["uuid"] for cond in group)) for name, group in guider.conds.items()
        )
        return cls(tuple(shape), tuple(sigmas.tolist()), seed or 0, prompts)

    @property
    def steps(self) -> int:
        return len(self.sigmas) - 1

    def agrees(self, shape: tuple[int, ...], sigmas: Tensor, seed: int | None) -> bool:
        """Whether another part of the same call has the same latent, noise levels and seed."""
        return self[:3] == (tuple(shape), tuple(sigmas.tolist()), seed or 0)
