"""Silence one attention head, to see what a take is without it (Focused Forcing, arXiv
2605.18346).
"""

from dataclasses import dataclass

from torch import Tensor

from ..cache.view import View
from ..take import Forward, Geometry, Take
from .selection import Attention, Selection, SelectionRun


@dataclass(frozen=True)
class MaskedHead(Selection):
    """Dense reads, but the output of one head is zero."""

    layer: int
    head: int

    def start(self, geometry: Geometry, take: Take, full_frames: int | None) -> SelectionRun:
        return MaskedHeadRun(self)


class MaskedHeadRun(SelectionRun):
    def __init__(self, policy: MaskedHead):
        self.policy = policy

    def read(
        self, layer: int, forward: Forward, q: Tensor, view: View, attention: Attention
    ) -> Tensor:
        out = super().read(layer, forward, q, view, attention)
        heads = view.heads(layer)
        if layer == self.policy.layer and self.policy.head in heads:
            out = out.clone()
            out.unflatten(-1, (len(heads), -1))[:, :, heads.index(self.policy.head)] = 0
        return out
