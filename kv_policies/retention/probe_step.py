"""Which denoising step's prediction DeCoPrune compares with the finished chunk."""

from ..take import Take

PROBE_SIGMA = 0.90  # noise level of the paper's probe (arXiv 2609.39096: step 2 of 4)
PAPER_STEPS, PAPER_STEP = 4, 2
PAPER_SIGMAS = 0.80, 0.95  # in which step 2 of 4 is the paper's step
# Below, most of the picture is already there and the prediction is right whatever the history says;
# above, next to nothing of it is there and the prediction is wrong almost everywhere. Neither tells
# what the history knew. The steps nearest sigma .90 of all published schedules lie between.
USABLE_SIGMAS = 0.80, 0.97


def probe_step_of(take: Take) -> int | None:
    """The step to compare, counted from 0; None: no step is early and informed enough.

    Step 2 of 4 where its sigma is near the paper's, else the step with a usable sigma nearest .90.
    The last step is the finished chunk itself, so of two steps only one from pure noise is left.
    """
    if take.steps <= 2:
        return None
    if take.steps == PAPER_STEPS and _within(take.sigmas[PAPER_STEP], PAPER_SIGMAS):
        return PAPER_STEP
    usable = [step for step in range(take.steps - 1) if _within(take.sigmas[step], USABLE_SIGMAS)]
    return min(usable, key=lambda step: abs(take.sigmas[step] - PROBE_SIGMA), default=None)


def _within(sigma: float, bounds: tuple[float, float]) -> bool:
    low, high = bounds
    return low <= sigma <= high
