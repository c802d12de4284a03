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
    conditionings: tuple[tuple[Hashable, ...], ...]  # of each: group, id, names of its options

    @classmethod
    def of(cls, guider, shape: tuple[int, ...], sigmas: Tensor, seed: int | None) -> SamplingCall:
        conditionings = tuple(
            (name, cond["uuid"], *sorted(cond))
            for name, group in guider.conds.items()
            for cond in group
        )
        return cls(tuple(shape), tuple(sigmas.tolist()), seed or 0, conditionings)

    @property
    def steps(self) -> int:
        return len(self.sigmas) - 1

    def agrees(self, shape: tuple[int, ...], sigmas: Tensor, seed: int | None) -> bool:
        """Whether another part of the same call has the same latent, noise levels and seed."""
        return self[:3] == (tuple(shape), tuple(sigmas.tolist()), seed or 0)
