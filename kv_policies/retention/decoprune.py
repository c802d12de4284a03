"""Keep what could not have been predicted: denoising-consistency pruning (DeCoPrune, arXiv
2609.39096).
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..cache.cache import KVCache
from ..state import State
from ..take import Chunk, Geometry, Take
from .keep_rules import TargetKeep, Threshold
from .other_choice import Chooser
from .probe_step import check_probe_step, scored_step
from .retention import Probe, require_choice
from .scores import SCORES, ScoreHistogram, best_of_each_block, token_scores
from .token_prune import TokenPrune, TokenPruneRun, unit_of
from .valley import Valley

KEEP_RULES = {  # by mode: the rule of a run
    "threshold": lambda policy, geometry: Threshold(policy.gamma),
    "target_keep": lambda policy, geometry: TargetKeep(policy.target_keep),
    "valley": lambda policy, geometry: Valley(
        policy.target_keep, unit_of(geometry), policy.waiting_chunks(geometry)
    ),
}
# By mode: the parameter that decides how many tokens stay.
DECISIVE = {"threshold": "gamma", "target_keep": "target_keep", "valley": "target_keep"}
MODES = tuple(KEEP_RULES)


@dataclass(frozen=True, kw_only=True)
class DeCoPrune(TokenPrune):
    """Drop each history token whose clean prediction at an early, noisy step was already right.

    mode: "threshold": a token stays when its score (`scores.token_scores`) is above `gamma`.
        "target_keep", ours: the share `target_keep` of each chunk with the highest scores stays.
        "valley", ours: as "threshold", with one that is found from the take (`valley.Valley`).
    probe_step: step whose prediction is scored, counted from 0; -1: `probe_step.probe_step_of`.
        Given chunks, and all chunks where no step is usable, are noised again and predicted once.
    min_keep_per_block: of each 4x4 tokens of a frame so many stay, unless none of them scores above
        `floor_threshold`.
    dense_chunks: 2 as in the released code; the paper's text says 1.
    """

    mode: str = "threshold"
    gamma: float = 0.10
    probe_step: int = -1
    score: str = "mse"
    min_keep_per_block: int = 0
    floor_threshold: float = 0.0
    title: ClassVar = "DeCoPrune"

    def __post_init__(self):
        super().__post_init__()
        require_choice("mode", self.mode, MODES)
        require_choice("score", self.score, SCORES)
        if math.isnan(self.gamma):
            raise ValueError(f"gamma is {self.gamma}. Use a number.")
        if self.min_keep_per_block < 0:
            raise ValueError(f"min_keep_per_block is {self.min_keep_per_block}. Use at least 0.")

    def check(self, geometry: Geometry, take: Take):
        super().check(geometry, take)
        check_probe_step(self.probe_step, take)

    def seen_steps(self, take: Take) -> tuple[int, ...]:
        step = scored_step(self.probe_step, take).step
        return () if step is None else (step,)

    @property
    def by_content(self) -> bool:
        return self.mode != "target_keep"

    @property
    def decisive(self) -> tuple[str, ...]:
        floor = ("floor_threshold",) if self.min_keep_per_block else ()
        parameter = DECISIVE[self.mode]
        return ("mode", parameter, "score", "probe_step", "min_keep_per_block", *floor)

    def waiting_chunks(self, geometry: Geometry) -> int | None:
        """How many scored chunks may stay whole until their masks are known, so that with the sink
        they fit into `most_frames`; None: any number.
        """
        if not self.most_frames:
            return None
        return max(0, self.most_frames - self.sink(geometry)) // geometry.chunk_frames

    def start(
        self, geometry: Geometry, take: Take, chooser: Chooser | None = None
    ) -> "DeCoPruneRun":
        return DeCoPruneRun(self, geometry, take, chooser)


class DeCoPruneRun(TokenPruneRun):
    def __init__(
        self, policy: DeCoPrune, geometry: Geometry, take: Take, chooser: Chooser | None = None
    ):
        super().__init__(policy, geometry, take, chooser)
        self.rule = KEEP_RULES[policy.mode](policy, geometry)
        self.histogram = ScoreHistogram(policy.score, self.rule.threshold)
        self.scored = scored_step(policy.probe_step, take)
        self.predicted: Tensor | None = None  # by that step, of the chunk in work
        self.has_scores = False  # of any chunk

    @property
    def notes(self) -> tuple[str, ...]:
        return *([self.scored.note] if self.has_scores else []), *self.rule.notes

    def begin_chunk(self, cache: KVCache, chunk: Chunk):
        self.predicted = None
        super().begin_chunk(cache, chunk)

    def after_step(self, chunk: Chunk, step: int, x0: Tensor):
        if step == self.scored.step:
            self.predicted = x0

    def probe(self, chunk: Chunk, x0: Tensor) -> Probe | None:
        is_first = chunk.index == self.first_chunk  # without history nothing could predict it
        if self.predicted is not None or is_first or self.is_sink(chunk):
            return None
        return Probe.noised(x0, self.scored.sigma, self.take.seed + 104729 * (chunk.index + 1))

    def after_probe(self, chunk: Chunk, x0: Tensor):
        self.predicted = x0

    def rank(self, cache: KVCache, chunk: Chunk, x0: Tensor) -> Tensor | None:
        """The scores; one that is no number keeps its token. None: nothing could predict the
        chunk.
        """
        if self.predicted is None:
            return None
        scores = token_scores(self.policy.score, self.predicted, x0, self.geometry.grid)
        self.predicted = None
        scores = scores.cpu()
        self.has_scores = True
        self.rule.see(chunk, scores)
        self.histogram.threshold = self.rule.threshold
        return scores.nan_to_num(math.inf)

    def keep(self, ranks: Tensor) -> Tensor | None:
        policy = self.policy
        floor = best_of_each_block(
            ranks, self.geometry.grid, policy.min_keep_per_block, policy.floor_threshold
        )
        return self.rule.keep(ranks, floor)

    def state(self) -> State:
        return {**super().state(), **self.rule.state()}

    def restore(self, state: State):
        super().restore(state)
        self.rule.restore(state)
        self.has_scores = bool(self.undecided) or any(self.histogram.counts)
        self.histogram.threshold = self.rule.threshold
