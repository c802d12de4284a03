"""Which denoising step's prediction DeCoPrune compares with the finished chunk."""

from typing import NamedTuple

from ..take import Take

PROBE_SIGMA = 0.90  # noise level of the paper's probe (arXiv 2609.39096: step 2 of 4)
PAPER_STEPS, PAPER_STEP = 4, 2
PAPER_SIGMAS = 0.80, 0.95  # in which step 2 of 4 is the paper's step
# Below, most of the picture is already there and the prediction is right whatever the history says;
# above, next to nothing of it is there and the prediction is wrong almost everywhere. Neither tells
# what the history knew. The steps nearest sigma .90 of all published schedules lie between.
USABLE_SIGMAS = 0.80, 0.97


class ScoredStep(NamedTuple):
    """What is compared with a finished chunk."""

    step: int | None  # counted from 0; None: no step, each chunk is noised again
    sigma: float  # of the step, and of chunks that are noised again

    @property
    def note(self) -> str:
        """For the report of the take."""
        if self.step is None:
            return (
                "DeCoPrune: no step of this take has a usable prediction, so each chunk was noised "
                f"again to sigma {self.sigma} and predicted once more (one forward per chunk)."
            )
        return (
            f"DeCoPrune scored the prediction of step {self.step} (counted from 0), at sigma "
            f"{self.sigma:.3f}."
        )


def scored_step(probe_step: int, take: Take) -> ScoredStep:
    """The step `probe_step`, or the one that is chosen when it is -1. None of one or two steps: the
    last is the finished chunk, the first a guess from pure noise.
    """
    step = probe_step_of(take) if probe_step < 0 or take.steps <= 2 else probe_step
    return ScoredStep(step, PROBE_SIGMA if step is None else take.sigmas[step])


def probe_step_of(take: Take) -> int | None:
    """Step 2 of 4 where its sigma is near the paper's, else the step with a usable sigma nearest
    .90, and never the last step, which is the finished chunk; None: there is no such step.
    """
    if take.steps <= 2:
        return None
    if take.steps == PAPER_STEPS and _within(take.sigmas[PAPER_STEP], PAPER_SIGMAS):
        return PAPER_STEP
    usable = [step for step in range(take.steps - 1) if _within(take.sigmas[step], USABLE_SIGMAS)]
    return min(usable, key=lambda step: abs(take.sigmas[step] - PROBE_SIGMA), default=None)


def check_probe_step(probe_step: int, take: Take):
    """Raise ValueError for a step that is the finished chunk itself, or later."""
    last = take.steps - 1
    if take.steps > 2 and probe_step >= last:
        raise ValueError(
            f"probe_step is {probe_step}, and this take has {take.steps} steps, of which the last "
            f"(step {last}) is the finished picture itself. Use a probe_step of at most "
            f"{last - 1}, or -1 to have it chosen."
        )


def _within(sigma: float, bounds: tuple[float, float]) -> bool:
    low, high = bounds
    return low <= sigma <= high
