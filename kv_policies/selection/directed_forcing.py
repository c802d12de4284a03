"""Each frame and each head reads its own part of what is in reach (Focused Forcing, arXiv
2605.18346).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from ..cache.view import View
from ..state import State, count_of, part_of
from ..take import Chunk, Forward, Geometry, Take
from .activation import Activation
from .frame_choice import choose_frames, choose_jointly, read_group
from .frame_scores import (
    Frames,
    KeyStatistics,
    frame_scores,
    frames_of,
    joint_scores,
    key_statistics,
)
from .head_table import HeadTable
from .ragged import ReadGroup, choose, ragged_attention
from .read_tally import ReadTally
from .selection import Attention, Selection, SelectionRun

PUBLISHED_WINDOW = 21  # latent frames of the paper's window, where there is none


@dataclass(frozen=True)
class DirectedForcing(Selection):
    """Per query frame, head, layer and step: the chunk's own frames, the best sink frame, and the
    best of the rest.

    A frame's score is w z(attention) + (1 - w) z(diversity), w = `attention_weight` (lambda in the
    paper). A head reads `budget_min` to `budget_max` latent frames by its place in the head table,
    `uniform_budget` without one.

    A forward of several chunks (Rolling Forcing) has frames of its own that compete, too: see
    `frame_choice.choose_jointly`.

    Selection begins with the first chunk that has `active_from` latent frames in reach, its own
    included; 0: with the first one whose window is full, see `Schedule.full_frames`. See
    `Activation` for how long it lasts.
    """

    attention_weight: float = 0.46
    gamma: float = 2.0
    budget_min: int = 4
    budget_max: int = 12
    uniform_budget: int = 7
    active_from: int = 0
    head_table: HeadTable | None = None
    backend: str = "auto"
    reads_frames: ClassVar = True

    def __post_init__(self):
        if not 0 <= self.attention_weight <= 1 or not self.gamma >= 0:
            raise ValueError(
                f"lambda is {self.attention_weight} and gamma {self.gamma}. Use a lambda of 0 to "
                "1 and a gamma of at least 0."
            )
        if not 1 <= self.budget_min <= self.budget_max:
            raise ValueError(
                f"budget_min is {self.budget_min} and budget_max {self.budget_max}. Use a "
                "budget_min of at least 1 and at most budget_max."
            )

    def check(self, geometry: Geometry, take: Take):
        name, budget = "uniform_budget", self.uniform_budget
        if self.head_table is not None:
            self.head_table.check(geometry)
            name, budget = "budget_max", self.budget_max
        if budget <= geometry.chunk_frames:
            raise ValueError(
                f"{name} is {budget} latent frames and a chunk has {geometry.chunk_frames}, which "
                f"are always read, so no history would be. Use a {name} of at least "
                f"{geometry.chunk_frames + 1}."
            )

    def start(self, geometry: Geometry, take: Take, full_frames: int | None) -> SelectionRun:
        if full_frames is None:
            full_frames = whole_chunks(PUBLISHED_WINDOW, geometry.chunk_frames)
        activation = Activation(self.active_from or full_frames, take.total_frames)
        return DirectedForcingRun(self, geometry, activation)

    def budgets(self, geometry: Geometry) -> list[list[int]]:
        """Latent frames that each head may read, by layer."""
        if self.head_table is None:
            return [[self.uniform_budget] * geometry.heads] * geometry.layers
        return self.head_table.budgets(self.gamma, self.budget_min, self.budget_max)


def whole_chunks(frames: int, chunk_frames: int) -> int:
    """The most latent frames up to `frames` that are whole chunks; one chunk at least."""
    return max(1, frames // chunk_frames) * chunk_frames


class Reach(NamedTuple):
    """What a forward can choose from."""

    frames: Frames  # of the history; of a joint forward, of its own span too
    own_rows: range  # of the chunk that every query reads; none of a joint forward
    own_frames: int  # in these rows
    is_joint: bool
    least: int  # latent frames that each head reads at least: the own ones and an anchor
    statistics: dict[int, KeyStatistics]  # by layer, of `frames`

    @property
    def count(self) -> int:
        """Latent frames in reach."""
        return len(self.frames.counts) + self.own_frames


class DirectedForcingRun(SelectionRun):
    def __init__(self, policy: DirectedForcing, geometry: Geometry, activation: Activation):
        self.policy = policy
        self.geometry = geometry
        self.activation = activation
        self.budgets = policy.budgets(geometry)
        self.tally = ReadTally(activation.total_frames)
        self.backend = ""
        self.frames_read = 0  # by all pairs of a head and a forward in which frames were selected
        self.frames_in_reach = 0  # of the same pairs
        # By bank, layer and least budget: the places of its heads in the bank, by budget.
        self._heads: dict[tuple, dict[int, Tensor]] = {}
        # By bank: what its latest forward could choose from, and the key under which that holds.
        self._reaches: dict[object, tuple[tuple, Reach]] = {}

    def read(
        self, layer: int, forward: Forward, q: Tensor, view: View, attention: Attention
    ) -> Tensor:
        # 1. What is in reach, and whether any head reads less than that.
        reach = self._reach(view, forward)
        by_budget = self._by_budget(layer, q.device, view, reach.least)
        bank = f"{forward.cache} {view.bank.number}"
        is_active = self.activation.is_active(bank, forward.chunk, reach.count)
        self.tally.count(forward.chunk, forward.chunk.frames * q.shape[2], q.device)
        if not is_active or min(by_budget) >= reach.count:
            self.tally.add(reach.frames.numbers, forward.chunk.frames * q.shape[2])
            return super().read(layer, forward, q, view, attention)

        # 2. Heads that may read all of it: the host's own attention. For the others, the rows.
        k, v = view.read(layer)
        scores = self._scores(layer, q, k, reach)
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        groups = []
        for budget, heads in by_budget.items():
            if budget >= reach.count:
                dense = attention(q[:, :, heads], k[:, :, heads], v[:, :, heads])
                out[:, :, heads] = dense.unflatten(-1, (len(heads), -1))
                self.tally.add(reach.frames.numbers, forward.chunk.frames * len(heads))
            else:
                groups.append(self._group(scores[:, heads], heads, budget, reach, forward))
        ragged_attention(q, k, v, groups, out, self.policy.backend)

        # 3. For the notes.
        self.backend = choose(q, self.policy.backend)
        for budget, heads in by_budget.items():
            self.frames_read += min(budget, reach.count) * len(heads)
            self.frames_in_reach += reach.count * len(heads)
        return out.flatten(2)

    def reads(self, chunk: Chunk) -> Tensor | None:
        return self.tally.shares(chunk)

    def state(self) -> State:
        return {
            "frames_read": self.frames_read,
            "frames_in_reach": self.frames_in_reach,
            "backend": self.backend,
            **self.activation.state(),
        }

    def restore(self, state: State):
        self.activation.restore(state)
        self.frames_in_reach = count_of(state, "frames_in_reach", 2**63)
        self.frames_read = count_of(state, "frames_read", self.frames_in_reach)
        self.backend = part_of(state, "backend", str)

    @property
    def notes(self) -> tuple[str, ...]:
        active_from, most = self.activation.active_from, self.activation.most_in_reach
        if not most:  # nothing was read
            return ()
        if not self.activation.since:
            return (
                f"Directed Forcing never selected: it begins at {active_from} latent frames in "
                f"reach, and no chunk had more than {most}, so each read all of them. Use a longer "
                "take, a smaller window or a smaller active_from.",
            )
        if not self.frames_in_reach:
            return (
                f"Directed Forcing never selected: no chunk had more than {most} latent frames in "
                "reach, and each head may read as many. Use smaller budgets.",
            )
        return (
            f"Directed Forcing: ragged attention by {self.backend}, from "
            f"{self.activation.began_with} latent frames in reach on; there, the mean head read "
            f"{self.frames_read / self.frames_in_reach:.0%} of them.",
        )

    def _reach(self, view: View, forward: Forward) -> Reach:
        """What a forward can choose from. It holds for all layers and steps of a chunk until rows
        come or go.
        """
        is_joint = len(forward.span) > forward.chunk.frames
        key = forward.chunk.index, view.own_rows, view.state
        known, reach = self._reaches.get(view.bank, (None, None))
        if known == key:
            return reach
        rows = view.history_rows + view.own_rows if is_joint else view.history_rows
        own = range(rows, rows if is_joint else rows + view.own_rows)
        own_frames = 0 if is_joint else len(forward.span)
        reach = Reach(
            frames=frames_of(view, rows, self.geometry, forward.cue.shot),
            own_rows=own,
            own_frames=own_frames,
            is_joint=is_joint,
            least=2 if is_joint else own_frames + 1,
            statistics={},
        )
        self._reaches[view.bank] = key, reach
        return reach

    def _by_budget(
        self, layer: int, device: torch.device, view: View, least: int
    ) -> dict[int, Tensor]:
        """Places of the bank's heads by the frames they may read; made once, so that no step waits
        for a copy to the device.
        """
        key = view.bank, layer, least
        if key not in self._heads:
            budgets = [max(self.budgets[layer][head], least) for head in view.heads(layer)]
            places: dict[int, list[int]] = {budget: [] for budget in sorted(set(budgets))}
            for place, budget in enumerate(budgets):
                places[budget].append(place)
            self._heads[key] = {
                budget: torch.tensor(heads, device=device) for budget, heads in places.items()
            }
        return self._heads[key]

    def _scores(self, layer: int, q: Tensor, k: Tensor, reach: Reach) -> Tensor:
        """The score of each frame for each query frame and head, `[F, H, J]`.

        What the keys of a history say holds as long as `reach` does. The keys of a joint forward's
        own frames are new in each forward.
        """
        grid = self.geometry.grid
        if reach.is_joint or layer not in reach.statistics:
            rows = k[0, : len(reach.frames.cell)]
            reach.statistics[layer] = key_statistics(rows, reach.frames, grid[0])
        score = joint_scores if reach.is_joint else frame_scores
        return score(q[0], reach.statistics[layer], grid, self.policy.attention_weight)

    def _group(
        self, scores: Tensor, heads: Tensor, budget: int, reach: Reach, forward: Forward
    ) -> ReadGroup:
        """What heads with the same budget read."""
        frames = reach.frames
        if reach.is_joint:
            chosen = choose_jointly(scores, frames.sinks, budget)
        else:
            chosen = choose_frames(scores, frames.sinks, budget - reach.own_frames)
        # A joint forward is made for its first chunk.
        self.tally.add(frames.numbers[chosen[: forward.chunk.frames]])
        tokens = self.geometry.tokens_per_frame
        return read_group(chosen, heads, frames, reach.own_rows, tokens)
