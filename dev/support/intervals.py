"""Intervals by resampling what was measured: episodes, tasks, or answers."""

import torch

RESAMPLES = 2000


def bounds(of_pick, count: int) -> tuple[float, float]:
    """The 95 % bootstrap interval of `of_pick`, which gets numbers of what was measured,
    `[RESAMPLES, count]`, and gives a value for each row.
    """
    pick = torch.randint(count, (RESAMPLES, count), generator=torch.Generator().manual_seed(0))
    low, high = torch.quantile(
        of_pick(pick).double(), torch.tensor([0.025, 0.975], dtype=torch.float64)
    ).tolist()
    return low, high


def interval(of_pick, count: int) -> float:
    """Half the width of `bounds`."""
    low, high = bounds(of_pick, count)
    return (high - low) / 2
