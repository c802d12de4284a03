"""A deep sink, the latest frames, and of the rest the tokens that the latest queries point at, in
each layer its own (Deep Forcing, arXiv 2512.05081).

What the paper leaves open is done as in the released code: a choice is made when the window is
full, not before each chunk; a token's score is not a softmax; and no token is chosen without end.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..cache.bank import Bank
from ..cache.cache import KVCache
from ..state import State, list_of, tensor_of
from ..take import BankPlan, Chunk, Forward, Geometry, Take
from .deep_sink import turn_sink
from .retention import Retention, RetentionRun


@dataclass(frozen=True)
class DeepForcing(Retention):
    """When a chunk would make more than `window_frames` latent frames of the cache, it is trimmed
    to the tokens of `budget_frames`: a shot's first `sink_frames`, the last `recent_frames`, the
    chunk's own included, and of the tokens between those that score highest.

    A token's score in a layer is the sum of q . k over all heads and over the queries of
    `recent_frames` latent frames, the last ones of the forwards so far: those of the forward that
    chooses, which is the chunk's first, and the last ones before. Tokens that were chosen
    `reuse_limit` times already come after all others; 0: there is no limit.

    Each time the sink is turned as by `DeepSink`, to begin `budget_frames` before the chunk. The
    chosen tokens keep their places in time.
    """

    sink_frames: int = 10
    budget_frames: int = 16
    recent_frames: int = 4
    window_frames: int = 21
    reuse_limit: int = 7

    def __post_init__(self):
        for name in ("sink_frames", "recent_frames"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}. Use at least 1.")
        if self.reuse_limit < 0:
            raise ValueError(f"reuse_limit is {self.reuse_limit}. Use at least 0.")
        whole = self.sink_frames + self.recent_frames
        if not whole <= self.budget_frames <= self.window_frames:
            raise ValueError(
                f"budget_frames is {self.budget_frames}. It holds the sink ({self.sink_frames}) "
                f"and the recent frames ({self.recent_frames}), and the window "
                f"({self.window_frames}) is trimmed to it: use budget_frames of at least {whole}, "
                "and at most window_frames."
            )

    def check(self, geometry: Geometry, take: Take):
        if self.recent_frames < geometry.chunk_frames:
            raise ValueError(
                f"recent_frames is {self.recent_frames}, and the chunk in work, which is among "
                f"them, has {geometry.chunk_frames} latent frames. Use recent_frames of at least "
                f"{geometry.chunk_frames}, and so many more budget_frames."
            )

    @property
    def chosen_frames(self) -> int:
        """The tokens of so many latent frames are chosen."""
        return self.budget_frames - self.sink_frames - self.recent_frames

    def banks(self, geometry: Geometry, take: Take) -> list[BankPlan]:
        frames = min(take.total_frames, self.window_frames)
        return [BankPlan(frames, frames, held_frames=self.sink_frames, by_layer=True)]

    def start(self, geometry: Geometry, take: Take) -> RetentionRun:
        return DeepForcingRun(self, geometry)

    def full_frames(self, geometry: Geometry) -> int | None:
        return self.budget_frames

    def sink(self, geometry: Geometry) -> int:
        return self.sink_frames

    def moving_frames(self, take: Take) -> int:
        return self.sink_frames

    def grain(self, geometry: Geometry, lengths: set[int]) -> int:
        return geometry.tokens_per_frame


class DeepForcingRun(RetentionRun):
    chooses = True

    def __init__(self, policy: DeepForcing, geometry: Geometry):
        self.policy = policy
        self.geometry = geometry
        tokens = geometry.tokens_per_frame
        self.sink_rows = policy.sink_frames * tokens
        self.chosen_rows = policy.chosen_frames * tokens
        self._begin()

    def _begin(self):
        # By layer, of the last frames of queries the sum of each, fp32 [F, H, D], where the layer's
        # forwards run.
        geometry = self.geometry
        none = torch.empty(0, geometry.heads, geometry.head_dim)
        self.queries = [none] * geometry.layers
        # How often each of the rows behind the sink was chosen, as many as are chosen at a time.
        self.choices = torch.zeros(geometry.layers, self.chosen_rows, dtype=torch.long)
        self.candidates = slice(0, 0)  # rows that the chunk in work chooses from

    def begin_shot(self, cache: KVCache, chunk: Chunk):
        super().begin_shot(cache, chunk)
        self._begin()

    def begin_chunk(self, cache: KVCache, chunk: Chunk):
        (bank,) = cache.banks
        policy, tokens = self.policy, self.geometry.tokens_per_frame
        if bank.committed + chunk.frames * tokens <= policy.window_frames * tokens:
            return
        recent_rows = (policy.recent_frames - chunk.frames) * tokens  # of the history
        self.candidates = slice(self.sink_rows, bank.committed - recent_rows)
        bank.open(self.sink_rows + self.chosen_rows + recent_rows, self.sink_rows)
        turn_sink(bank, policy.sink_frames, chunk, policy.budget_frames)

    def choose(self, layer: int, forward: Forward, q: Tensor, bank: Bank):
        self._remember(layer, q)
        if not bank.is_open(layer):
            return
        # 1. What each candidate is worth, and how often it was chosen before.
        candidates = self.candidates
        scores = self._scores(layer, bank).cpu()
        counts = torch.zeros(len(scores), dtype=torch.long)
        counts[: self.chosen_rows] = self.choices[layer]

        # 2. The best of them, and the recent rows behind.
        chosen = best(scores, counts, self.chosen_rows, self.policy.reuse_limit)
        recent_rows = bank.committed - self.sink_rows - self.chosen_rows
        recent = torch.arange(candidates.stop, candidates.stop + recent_rows)
        self.choices[layer] = counts[chosen] + 1
        bank.choose(layer, torch.cat([candidates.start + chosen, recent]))

    def _remember(self, layer: int, q: Tensor):
        """Take down the queries `[1, N, H, D]` of a forward. Scores need no more of them than each
        frame's sum.
        """
        frames = q[0].unflatten(0, (-1, self.geometry.tokens_per_frame)).sum(1, dtype=torch.float32)
        frames = torch.cat([self.queries[layer].to(q.device), frames])
        self.queries[layer] = frames[-self.policy.recent_frames :]

    def _scores(self, layer: int, bank: Bank) -> Tensor:
        """Of each candidate the sum of q . k, fp32. Frame by frame: history in main memory comes to
        the device in small parts.
        """
        query = self.queries[layer].sum(0).flatten()
        keys = bank.open_keys(layer, self.candidates)[0]
        parts = keys.split(self.geometry.tokens_per_frame)
        return torch.cat([part.to(query.device).float().flatten(1) @ query for part in parts])

    def state(self) -> State:
        return {
            "queries": [frames.to("cpu", copy=True) for frames in self.queries],
            "choices": self.choices.clone(),
        }

    def restore(self, state: State):
        geometry = self.geometry
        self.choices = tensor_of(state, "choices", torch.long, *self.choices.shape).clone()
        shape = None, geometry.heads, geometry.head_dim
        self.queries = [
            tensor_of({"queries": frames}, "queries", torch.float32, *shape).clone()
            for frames in list_of(state, "queries", geometry.layers)
        ]


def best(scores: Tensor, counts: Tensor, number: int, limit: int) -> Tensor:
    """The `number` highest of the scores, as their places, ascending. Those that were chosen
    `limit` times, by `counts`, come after all others; 0: there is no limit.
    """
    order = scores.argsort(descending=True, stable=True)
    if limit:
        is_free = counts[order] < limit
        order = torch.cat([order[is_free], order[~is_free]])
    return order[:number].sort().values
