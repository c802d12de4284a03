"""Outputs of a model's modules, held over the steps of a chunk and forecast by finite differences
(TaylorSeer, arXiv 2503.06923).
"""

from __future__ import annotations

from collections.abc import Hashable

import torch
from torch import Tensor

# The modules of a layer whose outputs are held, each as wide as the model.
MODULES = ("self_attn", "cross_attn", "ffn")


class Series:
    """One module's output at the computed steps: the latest, and its finite differences."""

    def __init__(self):
        self.step = 0  # of the latest
        self.factors: list[Tensor] = []  # of order 0, 1 ...

    def add(self, step: int, output: Tensor, order: int):
        """The output at a later step; differences up to `order`, as far as there are earlier
        ones.

        Equation 5 of the paper; as in its code, the distance is that of the two latest steps.
        """
        factors = [output]
        for before in self.factors[:order]:
            factors.append((factors[-1] - before) / (step - self.step))
        factors[0] = output.clone()  # apart from a batch, and from memory that a host gives again
        self.step, self.factors = step, factors

    def at(self, step: int) -> Tensor:
        """The forecast of a later step: sum of differences * distance^i / i!."""
        distance = step - self.step
        out, weight = self.factors[0], 1.0
        for i, factor in enumerate(self.factors[1:], 1):
            weight *= distance / i
            out = torch.add(out, factor, alpha=weight)
        return out

    def nbytes(self) -> int:
        return sum(factor.nbytes for factor in self.factors)


class Features:
    """What one stream's modules gave at the computed steps of the chunk in work. It never outlives
    the chunk.
    """

    def __init__(self, order: int, first_steps: int):
        """Differences up to `order` are taken from the last of the `first_steps` on."""
        self.order = order
        self.first_steps = first_steps
        self.forecast_steps: set[int] = set()  # which were forecast
        self._series: dict[Hashable, Series] = {}  # by module

    def __contains__(self, module: Hashable) -> bool:
        return module in self._series

    def hold(self, module: Hashable, step: int, output: Tensor):
        """A module's output at a computed step, `[1, N, C]`."""
        order = self.order if step >= self.first_steps - 1 else 0
        self._series.setdefault(module, Series()).add(step, output, order)

    def forecast(self, module: Hashable, step: int) -> Tensor:
        """A module's output at a later step."""
        self.forecast_steps.add(step)
        return self._series[module].at(step)

    def clear(self):
        self._series.clear()
        self.forecast_steps.clear()

    def nbytes(self) -> int:
        return sum(series.nbytes() for series in self._series.values())
