"""A threshold that nobody has to tune: the valley between the two humps of a take's scores.

Ours; the paper's threshold is a parameter (DeCoPrune, arXiv 2609.39096).
"""

import math
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from ..state import State, count_of, counts_of, part_of
from ..take import Chunk
from ..words import counted
from .keep_rules import KeepRule

# Scores are counted in bins of equal width on a log10 axis, from 10 ** LOWEST on. The first bin
# also holds all scores below it (0: predicted exactly), the last one all above.
LOWEST = -10
BINS_PER_DECADE = 16
BINS = 14 * BINS_PER_DECADE

# A split of the scores is clear when both classes hold enough tokens, when two normal classes
# explain the scores better than one by at least CLEAR_GAIN nats a token, and when Ashman's D is at
# least CLEAR_DISTANCE. One hump of a usual shape (normal, uniform, exponential, Laplace, Gumbel,
# Pareto, Student's t) fails one of the two.
LEAST_TOKENS = 16
CLEAR_GAIN = 0.1
CLEAR_DISTANCE = 4.0

# A clear split comes into force when the latest STEADY_CHUNKS scored chunks each left one, all
# within STEADY_WIDTH (half bins: half a decade), or when chunks have waited for it long enough.
STEADY_CHUNKS = 3
STEADY_WIDTH = BINS_PER_DECADE

# At most so many scored chunks wait for a threshold. With a sink of one chunk and two dense chunks
# that makes 21 latent frames of chunks of 3, the window that 1.3B models were trained with.
WAITING_CHUNKS = 4

# The share of all scored tokens above the threshold stays within these multiples of target_keep.
LEAST_SHARE = 1 / 30
MOST_SHARE = 4


class Split(NamedTuple):
    """Two classes of scores, below and above a cut."""

    # In half bins from 10 ** LOWEST: the edge between two bins, or the middle of the empty bins
    # between the classes.
    cut: int
    distance: float  # Ashman's D: distance of the means over the RMS of the standard deviations
    gain: float  # nats a token by which two normal classes are likelier than one

    @property
    def is_clear(self) -> bool:
        return self.distance >= CLEAR_DISTANCE and self.gain >= CLEAR_GAIN


class Moments(NamedTuple):
    """Sums over a class of tokens, whose values are the numbers of their bins. Whole numbers, so
    that the same scores give the same sums in any order.
    """

    tokens: int = 0
    values: int = 0
    squares: int = 0

    def plus(self, place: int, count: int) -> "Moments":
        return Moments(
            self.tokens + count,
            self.values + count * place,
            self.squares + count * place * place,
        )

    def minus(self, part: "Moments") -> "Moments":
        return Moments(*(a - b for a, b in zip(self, part)))

    @property
    def mean(self) -> float:
        return self.values / self.tokens

    @property
    def variance(self) -> float:
        """With the variance inside a bin, 1/12, so that a class of one bin has a width."""
        squared = self.tokens * self.squares - self.values * self.values
        return squared / self.tokens**2 + 1 / 12


def best_split(counts: list[int]) -> Split | None:
    """The split of a histogram into two normal classes that explains it best; None: no split leaves
    both classes `LEAST_TOKENS`.

    Minimum error thresholding (Kittler and Illingworth, Pattern Recognition 19, 1986). Unlike
    Otsu's method it finds a class of a few tokens in a thousand, and one that is much wider than
    the other.
    """
    filled = [(place, count) for place, count in enumerate(counts) if count]
    total = Moments()
    for place, count in filled:
        total = total.plus(place, count)

    best, below = None, Moments()
    for (place, count), (following, _) in pairwise(filled):
        below = below.plus(place, count)
        above = total.minus(below)
        if min(below.tokens, above.tokens) < LEAST_TOKENS:
            continue
        gain = _gain(total, below, above)
        if best is None or gain > best.gain:
            deviation = math.sqrt((below.variance + above.variance) / 2)
            distance = (above.mean - below.mean) / deviation
            best = Split(place + 1 + following, distance, gain)
    return best


def _gain(total: Moments, below: Moments, above: Moments) -> float:
    gain = math.log(total.variance) / 2
    for part in (below, above):
        share = part.tokens / total.tokens
        gain += share * (math.log(share) - math.log(part.variance) / 2)
    return gain


class Valley(KeepRule):
    """A token stays when its score is above the valley between the two humps of all scores of the
    take so far: the tokens that the history predicted, and those that it could not predict.

    The threshold is that of the latest clear split (`Split.is_clear`), once such splits were
    steady or chunks have waited long enough. Before that, and for a take with one hump only (a
    still camera, or nothing that could be predicted), it is the score above which the share
    `target_keep` of all scored tokens lies. In both cases the share above it is held within
    `LEAST_SHARE` and `MOST_SHARE` times `target_keep`.

    `keep` gives no mask until a split was steady or `waiting_chunks` chunks were scored. When all
    scores are multiplied by a factor, so is the threshold, and the same tokens stay.
    """

    def __init__(self, target_keep: float, unit: int = 1, waiting_chunks: int | None = None):
        """unit: chunks that count as one (`token_prune.unit_of`)."""
        self.target_keep = target_keep
        self.steady_chunks = STEADY_CHUNKS * unit
        most = WAITING_CHUNKS * unit
        self.waiting_chunks = most if waiting_chunks is None else min(most, waiting_chunks)
        self.counts = [0] * BINS
        self.chunks = 0  # that were scored
        self.latest: list[int] = []  # cuts after each of the latest chunks; 0: no clear split
        self.cut = 0  # the cut in force; 0: there was no steady split yet
        self.since = 0  # index of the chunk from which on the threshold in force decides

    @property
    def is_ready(self) -> bool:
        return self.cut > 0 or self.chunks >= max(1, self.waiting_chunks)

    def see(self, chunk: Chunk, scores: Tensor):
        was_ready, had_valley = self.is_ready, self.cut > 0

        # 1. The split of all scores so far.
        self._count(scores)
        self.chunks += 1
        split = best_split(self.counts)
        cut = split.cut if split and split.is_clear else 0
        self.latest = [*self.latest, cut][-self.steady_chunks :]

        # 2. Does it come into force? When the chunks may wait no longer, a clear one need not be
        #    steady: without it the share target_keep would decide, whatever the scores say.
        waited_long = not had_valley and self.chunks == max(1, self.waiting_chunks)
        if cut and (self._is_steady() or waited_long):
            self.cut = cut

        # 3. From which chunk on is it a valley, or else the share, that decides?
        if self.is_ready and not was_ready or self.cut and not had_valley:
            self.since = chunk.index

    def _is_steady(self) -> bool:
        is_clear = len(self.latest) == self.steady_chunks and min(self.latest) > 0
        return is_clear and max(self.latest) - min(self.latest) <= STEADY_WIDTH

    def _count(self, scores: Tensor):
        """Add scores to the histogram, without those that are no numbers."""
        scores = scores[scores.isfinite()].double()
        bins = ((scores.log10() - LOWEST) * BINS_PER_DECADE).floor().clamp(0, BINS - 1).long()
        added = torch.bincount(bins, minlength=BINS).tolist()
        self.counts = [before + now for before, now in zip(self.counts, added)]

    def keep(self, scores: Tensor, floor: Tensor) -> Tensor | None:
        threshold = self.threshold
        return None if threshold is None else (scores > threshold) | floor

    @property
    def threshold(self) -> float | None:
        if not self.is_ready:
            return None
        lowest, highest = self._bounds()
        place = min(max(self._place(), lowest), highest)
        return 10 ** (LOWEST + place / BINS_PER_DECADE)

    def _place(self) -> float:
        """Where on the bins' axis the threshold would be without bounds."""
        return self.cut / 2 if self.cut else self._place_above(self.target_keep)

    def _bounds(self) -> tuple[float, float]:
        """The lowest and the highest place that the threshold may have."""
        return (
            self._place_above(MOST_SHARE * self.target_keep),
            self._place_above(LEAST_SHARE * self.target_keep),
        )

    def _place_above(self, share: float) -> float:
        """Where on the bins' axis this share of all counted scores lies above."""
        if share >= 1:
            return 0.0
        left = share * sum(self.counts)
        for place in reversed(range(BINS)):
            count = self.counts[place]
            if count and count >= left:
                return place + 1 - left / count
            left -= count
        return 0.0

    @property
    def notes(self) -> tuple[str, ...]:
        if not self.is_ready:
            return (self._waiting_note(),)
        return (
            f"DeCoPrune's threshold: {self.threshold:.3g} at the end, {self._found()}; found so "
            f"from chunk {self.since} (counted from 0) on.",
        )

    def _waiting_note(self) -> str:
        if not self.chunks:
            return (
                "DeCoPrune found no threshold: no chunk was scored. All of this take stayed whole; "
                "a longer take is pruned."
            )
        were = "was" if self.chunks == 1 else "were"
        most = max(1, self.waiting_chunks)
        least = min(self.steady_chunks, most)
        needed = f"{most}" if least == most else f"{least} to {most}"
        return (
            f"DeCoPrune found no threshold: {counted(self.chunks, 'chunk')} {were} scored, and it "
            f"needs {needed}. All of this take stayed whole."
        )

    def _found(self) -> str:
        """What decides the threshold, in words."""
        if not self.cut:
            return (
                f"above which {self.target_keep:.0%} of this take's scores lie, because they do "
                "not fall into two humps"
            )
        place = self._place()
        lowest, highest = self._bounds()
        valley = "the valley between the two humps"
        if place < lowest:
            return (
                f"above which {MOST_SHARE * self.target_keep:.3g} of this take's scores lie: "
                f"{MOST_SHARE} times target_keep, the most that may stay. Above {valley} lie more"
            )
        if place > highest:
            return (
                f"above which {LEAST_SHARE * self.target_keep:.3g} of this take's scores lie: a "
                f"{round(1 / LEAST_SHARE)}th of target_keep, the least that must stay. Above "
                f"{valley} lie fewer"
            )
        return f"{valley} of this take's scores"

    def state(self) -> State:
        return {
            "valley": {
                "counts": list(self.counts),
                "chunks": self.chunks,
                "latest": list(self.latest),
                "cut": self.cut,
                "since": self.since,
            }
        }

    def restore(self, state: State):
        saved = part_of(state, "valley", dict)
        self.counts = counts_of(saved, "counts", 2**63, BINS)
        self.chunks = count_of(saved, "chunks", 2**31)
        length = min(self.chunks, self.steady_chunks)
        self.latest = counts_of(saved, "latest", 2 * BINS, length)
        self.cut = count_of(saved, "cut", 2 * BINS)
        self.since = count_of(saved, "since", 2**31)
