"""Keep what could not have been predicted: denoising-consistency pruning (DeCoPrune, arXiv
2609.39096).
"""

import math
from dataclasses import dataclass, replace

from torch import Tensor

from ..cache.cache import KVCache
from ..state import State, count_of, counts_of
from ..take import BankPlan, Chunk, Geometry, Take
from .prune_records import PruneRecords
from .reindex import REINDEX, Reindex
from .retention import Probe, Retention, RetentionRun
from .scores import SCORES, ScoreHistogram, best_of_each_block, highest, token_scores

MODES = ("threshold", "target_keep")
# of dry runs: the best target_keep stay, and room is made as where the picture decides
PLANNED = "planned"
PROBE_SIGMA = 0.90  # noise level of the paper's probe (step 2 of 4)
# chunks of kept tokens that the first allocation has room for; the bank grows by a quarter from
# there on
ROOM = 2
# chunks of one frame that count as one where chunks are protected: as much picture as chunk-wise
# models keep
FRAME_WISE_UNIT = 3


@dataclass(frozen=True)
class DeCoPrune(Retention):
    """Drop each history token whose clean prediction at an early, noisy step was already right.

    A token stays when its score (see `scores.token_scores`) is above `gamma`; in mode
    "target_keep", an extension of ours, the share `target_keep` of each chunk with the highest
    scores stays. The first `sink_chunks` and the latest `dense_chunks` chunks stay whole. One mask
    serves all layers and heads. `probe_step` -1: step 2 of 4; with other step counts the one whose
    sigma is nearest 0.90. Given chunks, and all chunks when there are no more than two steps, are
    noised again and predicted once instead. For `reindex` see `reindex.Reindex`.

    `most_frames`, ours: the chunks before the dense ones hold at most the tokens of so many latent
    frames, sink included; what scored lowest leaves first. 0: no bound.
    """

    mode: str = "threshold"
    gamma: float = 0.10
    target_keep: float = 0.15
    probe_step: int = -1
    score: str = "mse"
    dense_chunks: int = 2  # the released code's: one more than the paper's text says
    sink_chunks: int = 1
    min_keep_per_block: int = 0  # of each 4x4 tokens of a frame
    floor_threshold: float = 0.0
    reindex: str = "auto"
    virtual_length: int = 17  # latent frames
    reindex_recent: int = 8
    most_frames: int = 0

    def __post_init__(self):
        for name, value, known in (
            ("mode", self.mode, (*MODES, PLANNED)),
            ("score", self.score, SCORES),
            ("reindex", self.reindex, REINDEX),
        ):
            if value not in known:
                raise ValueError(f"{name} is '{value}'. Use one of: {', '.join(known)}.")
        if math.isnan(self.gamma) or math.isnan(self.target_keep):
            raise ValueError(
                f"gamma is {self.gamma} and target_keep {self.target_keep}; both must be numbers."
            )
        if self.dense_chunks < 1:
            raise ValueError(
                f"dense_chunks is {self.dense_chunks}. At least the chunk just finished must stay "
                "whole: use 1 or more."
            )
        for name in ("sink_chunks", "min_keep_per_block", "most_frames"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}. Use at least 0.")
        if not 0 <= self.reindex_recent < self.virtual_length:
            raise ValueError(
                f"reindex_recent is {self.reindex_recent} and virtual_length "
                f"{self.virtual_length}: the latest frames keep their "
                "places inside the virtual length. Use a reindex_recent below virtual_length."
            )

    def moving_frames(self, take: Take) -> int:
        return take.total_frames if self.reindex == "periodic" else 0

    @property
    def by_content(self) -> bool:
        return self.mode != "target_keep"

    @property
    def decisive(self) -> tuple[str, ...]:
        return (
            "mode",
            "gamma",
            "score",
            "probe_step",
            "min_keep_per_block",
            *["floor_threshold"] * (self.min_keep_per_block > 0),
        )

    def at_share(self, share: float) -> Retention:
        return (
            replace(self, mode=PLANNED, target_keep=share, min_keep_per_block=0)
            if self.by_content
            else self
        )

    def check(self, geometry: Geometry, take: Take):
        if 0 < self.most_frames < self.sink(geometry):
            raise ValueError(
                f"most_frames is {self.most_frames}, and the first {self.sink(geometry)} latent "
                "frames stay whole (sink_chunks "
                f"{self.sink_chunks}). Use at least {self.sink(geometry)}, fewer sink_chunks, or "
                "0 for no bound."
            )
        if take.steps > 2 and self.probe_step >= take.steps - 1:
            raise ValueError(
                f"probe_step is {self.probe_step}, and this take has {take.steps} steps, of which "
                f"the last (step {take.steps - 1}) "
                f"is the finished picture itself. Use a probe_step of at most {take.steps - 2}, "
                "or -1 to have it chosen."
            )

    def probe_step_of(self, take: Take) -> int | None:
        """The step whose prediction is scored; None when no step is early and informed enough."""
        if take.steps <= 2:  # step 0 guesses from noise alone, the last one is the result
            return None
        if self.probe_step >= 0:
            return self.probe_step
        if take.steps == 4:
            return 2
        return min(range(take.steps - 1), key=lambda step: abs(take.sigmas[step] - PROBE_SIGMA))

    def grain(self, geometry: Geometry, lengths: set[int]) -> int:
        if self.mode == "threshold":
            return 1
        tokens = geometry.tokens_per_frame
        return math.gcd(tokens, *(self.count(frames * tokens) for frames in lengths))

    def count(self, tokens: int) -> int:
        """How many of a chunk's tokens stay, where that is a share."""
        return round(self.target_keep * tokens)

    def banks(self, geometry: Geometry, take: Take) -> list[BankPlan]:
        whole = (self.sink_chunks + self.dense_chunks) * unit(geometry) + 1
        kept = (
            ROOM * geometry.chunk_frames
            if self.by_content
            else math.ceil(self.target_keep * take.total_frames)
        )
        frames = whole * geometry.chunk_frames + kept
        most = take.total_frames
        if (
            self.most_frames
        ):  # and what is dense, the chunk in work, and the one that is just old enough
            most = min(
                most,
                self.most_frames + (self.dense_chunks * unit(geometry) + 1) * geometry.chunk_frames,
            )
        return [BankPlan(min(most, frames), most)]

    def sink(self, geometry: Geometry) -> int:
        return self.sink_chunks * unit(geometry) * geometry.chunk_frames

    def start(self, geometry: Geometry, take: Take) -> RetentionRun:
        return DeCoPruneRun(self, geometry, take)


def unit(geometry: Geometry) -> int:
    """Chunks that count as one where chunks are protected."""
    return FRAME_WISE_UNIT if geometry.chunk_frames == 1 else 1


class DeCoPruneRun(RetentionRun):
    def __init__(self, policy: DeCoPrune, geometry: Geometry, take: Take):
        self.policy, self.geometry, self.take = policy, geometry, take
        self.probe_step = policy.probe_step_of(take)
        self.probe_sigma = PROBE_SIGMA if self.probe_step is None else take.sigmas[self.probe_step]
        self.sink = policy.sink_chunks * unit(geometry)  # chunks
        self.records = PruneRecords(
            policy.dense_chunks * unit(geometry), policy.most_frames, geometry, take
        )
        self.predicted: Tensor | None = None
        self.reindex = Reindex(policy.reindex, policy.virtual_length, policy.reindex_recent, take)
        self.first_chunk = 0  # of this shot
        self.histogram = ScoreHistogram(
            policy.score, policy.gamma if policy.mode == "threshold" else None
        )
        if self.probe_step is None:
            self.notes = (
                "DeCoPrune: in no more than two steps no intermediate prediction is usable, so "
                "each chunk was noised again to sigma "
                f"{PROBE_SIGMA} and predicted once more (one forward per chunk).",
            )

    def cut(self, cache: KVCache, chunk: Chunk):
        super().cut(cache, chunk)
        self.records.clear()
        self.reindex.cut(chunk)
        self.first_chunk = chunk.index

    def begin_chunk(self, cache: KVCache, chunk: Chunk):
        self.predicted = None
        self.reindex.begin_chunk(cache, chunk)

    def after_step(self, chunk: Chunk, step: int, x0: Tensor):
        if step == self.probe_step:
            self.predicted = x0

    def probe(self, chunk: Chunk, x0: Tensor) -> Probe | None:
        if self.predicted is not None or chunk.index - self.first_chunk < max(
            self.sink, 1
        ):  # nothing could predict a shot's first chunk
            return None
        return Probe.noised(x0, self.probe_sigma, self.take.seed + 104729 * (chunk.index + 1))

    def after_probe(self, chunk: Chunk, x0: Tensor):
        self.predicted = x0

    def before_clean(self, cache: KVCache, chunk: Chunk):
        self.records.apply(cache.banks[0], chunk)

    def after_clean(self, cache: KVCache, chunk: Chunk, x0: Tensor):
        if chunk.index - self.first_chunk < self.sink:
            return
        if self.predicted is None:  # a first chunk that is no sink, and that nothing could predict
            self.records.add_whole(chunk)
            return
        scores = token_scores(self.policy.score, self.predicted, x0, self.geometry.grid).cpu()
        self.predicted = None
        ranks = self.ranks(cache, chunk, scores)
        keep = self.choose(scores, ranks)
        self.histogram.add(scores, keep)
        self.records.add(chunk, keep, ranks)

    def state(self) -> State:
        return {
            **self.records.state(),
            "reindexed_at": self.reindex.at,
            "first_chunk": self.first_chunk,
            "scores": list(self.histogram.counts),
            "kept": self.histogram.kept,
        }

    def restore(self, state: State):
        self.records.restore(state)
        self.reindex.at, self.first_chunk = (
            count_of(state, name, self.take.total_frames)
            for name in ("reindexed_at", "first_chunk")
        )
        self.histogram.counts = counts_of(state, "scores", 2**63, len(self.histogram.counts))
        self.histogram.kept = count_of(state, "kept", sum(self.histogram.counts))

    def ranks(self, cache: KVCache, chunk: Chunk, scores: Tensor) -> Tensor:
        """How much each of a chunk's tokens is worth keeping, like `scores` `[F * h * w]`."""
        return scores.nan_to_num(math.inf)  # a score that is no number keeps its token

    def choose(self, scores: Tensor, ranks: Tensor) -> Tensor:
        """Which of a chunk's tokens to keep, bool like `scores` `[F * h * w]`."""
        policy = self.policy
        some = best_of_each_block(
            scores, self.geometry.grid, policy.min_keep_per_block, policy.floor_threshold
        )
        if policy.mode == "threshold":
            return ~(scores <= policy.gamma) | some
        return highest(scores.nan_to_num(math.inf), policy.count(len(scores)), some)
