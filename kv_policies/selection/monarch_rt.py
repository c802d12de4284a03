"""Every query reads every row, by attention of Monarch structure: fewer products, no training
(MonarchRT, arXiv 2602.12271).
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..cache.view import View
from ..take import Forward, Geometry, Take
from .monarch_attention import by_kernel, monarch_attention, published_kernel, suits_kernel
from .selection import Attention, Selection, SelectionRun

TORCH, KERNEL = "plain torch", "the authors' kernel"


@dataclass(frozen=True)
class MonarchRT(Selection):
    """The published settings that need no training: one iteration, tiles of a whole row's width in
    one latent frame, `h_reduce` (1 or 2 as published) of them above each other.

    With more tiles the result is closer to dense attention and costs more; tiles of a single row
    give dense attention itself. Tiles are cut out of
    whole frames, so whatever is read must be whole frames.
    """

    h_reduce: int = 1
    title: ClassVar = "MonarchRT"
    needs_whole_frames: ClassVar = True

    def __post_init__(self):
        if self.h_reduce < 1:
            raise ValueError(f"h_reduce is {self.h_reduce}. Use at least 1, a whole frame.")

    def check(self, geometry: Geometry, take: Take):
        rows = geometry.grid[0]
        if rows % self.h_reduce:
            fitting = [count for count in range(1, rows + 1) if rows % count == 0]
            raise ValueError(
                f"h_reduce is {self.h_reduce}, and a latent frame has {rows} rows of tokens, which "
                "cannot be cut into as many equal parts. "
                f"Use one of {', '.join(map(str, fitting))}, or another height."
            )

    def start(self, geometry: Geometry, take: Take, full_frames: int | None) -> SelectionRun:
        return MonarchRTRun(self, geometry)


class MonarchRTRun(SelectionRun):
    def __init__(self, policy: MonarchRT, geometry: Geometry):
        self.policy = policy
        self.geometry = geometry
        self.used: list[str] = []  # what attention was made by
        self.failed = ""  # why the kernel is not asked again

    def read(
        self, layer: int, forward: Forward, q: Tensor, view: View, attention: Attention
    ) -> Tensor:
        k, v = view.read(layer)
        grid, h_reduce = self.geometry.grid, self.policy.h_reduce
        kernel = None if self.failed else published_kernel()
        out = None
        if kernel and suits_kernel(q):
            out = self._by_kernel(kernel, q, k, v)
        by = TORCH if out is None else KERNEL
        if by not in self.used:
            self.used.append(by)
        if out is None:
            out = monarch_attention(q, k, v, grid, h_reduce)
        return out.flatten(2)

    def _by_kernel(self, kernel, q: Tensor, k: Tensor, v: Tensor) -> Tensor | None:
        """None where it fails, which is the last time that it is asked."""
        try:
            return by_kernel(kernel, q, k, v, self.geometry.grid, self.policy.h_reduce)
        except torch.OutOfMemoryError:
            raise  # the host knows what to do
        except Exception as error:  # Triton, the driver, another version of the package
            self.failed = f"{type(error).__name__}: {error}".splitlines()[0]
            return None

    @property
    def notes(self) -> tuple[str, ...]:
        if not self.used:  # nothing was read
            return ()
        why = f" The kernel was given up after {self.failed}." if self.failed else ""
        return (f"MonarchRT: attention by {' and '.join(self.used)}.{why}",)
