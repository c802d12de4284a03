"""The clean-pass loop with steps that are forecast instead of computed (TaylorSeer, arXiv
2503.06923).
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from ..take import FORECAST, HOLD, Forward, Geometry, Take
from .clean_pass import CleanPass
from .features import Features

LEAST_STEPS = 4


@dataclass(frozen=True)
class TaylorSeer(CleanPass):
    """In a forecast step the attentions and the feed-forward of every layer do not run: their
    outputs are forecast from those at earlier steps of the same chunk, by finite differences up to
    `order`. All else of the model runs, and nothing is written into a cache.

    The first `first_steps` of each chunk are computed, from there on every `interval`-th one, and
    always whatever makes history: the clean pass, given chunks, a recache. `order` and `interval`
    are those published for Wan; so many `first_steps` are published for other models, and leave one
    of four steps to forecast.
    """

    order: int = 1
    interval: int = 5
    first_steps: int = 3
    title: ClassVar = "TaylorSeer"

    def __post_init__(self):
        for name, least in (("order", 0), ("interval", 2), ("first_steps", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}. Use at least {least}.")

    def check(self, geometry: Geometry, take: Take):
        if take.steps < LEAST_STEPS:
            raise ValueError(
                "TaylorSeer forecasts later steps of a chunk from earlier ones, and this take has "
                f"{take.steps}, too few for that. Use at least {LEAST_STEPS} steps, or remove "
                "TaylorSeer."
            )
        if self.first_steps >= take.steps:
            raise ValueError(
                f"first_steps is {self.first_steps} and this take has {take.steps} steps, so that "
                f"none would be forecast. Use first_steps of at most {take.steps - 1}."
            )

    def forecast_steps(self, steps: int) -> tuple[int, ...]:
        return tuple(step for step in range(steps) if self._is_forecast(step))

    def _is_forecast(self, step: int) -> bool:
        last_of_first = self.first_steps - 1
        return step > last_of_first and (step - last_of_first) % self.interval != 0

    def features(self) -> Features:
        return Features(self.order, self.first_steps)

    def forward_at(self, forward: Forward, step: int) -> Forward:
        features = FORECAST if self._is_forecast(step) else HOLD
        return replace(forward, step=step, features=features)
