"""Each frame and each head reads its own history (Focused Forcing, arXiv 2605.18346)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..cache.bank import Bank
from ..cache.view import View
from ..retention.retention import Retention
from ..state import State, count_of, counts_of, part_of
from ..take import Chunk, Forward, Geometry, Take
from .frame_scores import History, KeyStatistics, frame_scores, history_of, key_statistics
from .head_table import HeadTable
from .ragged import ReadGroup, choose, ragged_attention
from .read_tally import ReadTally
from .selection import Attention, Selection, SelectionRun

PUBLISHED_WINDOW = 21  # latent frames of the paper's window, for retentions without one


@dataclass(frozen=True)
class DirectedForcing(Selection):
    """Per query frame, head, layer and step: the chunk's own frames, the best sink frame, and the
    best of the rest.

    A history frame's score is w z(attention) + (1 - w) z(diversity), w = `attention_weight` (lambda
    in the paper). A head reads `budget_min` to `budget_max` latent frames by its place in the head
    table, `uniform_budget` without one.

    Selection begins with the first chunk that has `active_from` latent frames in reach, its own
    included; 0: with the first one whose window is full, see `Retention.full_frames`. From there on
    it stays active to the end of the shot: a cut empties the memory, and the new shot's window has
    to fill anew.
    """

    attention_weight: float = 0.46
    gamma: float = 2.0
    budget_min: int = 4
    budget_max: int = 12
    uniform_budget: int = 7
    active_from: int = 0
    head_table: HeadTable | None = None
    backend: str = "auto"

    def __post_init__(self):
        if not 0 <= self.attention_weight <= 1 or not self.gamma >= 0:
            raise ValueError(
                f"lambda is {self.attention_weight} and gamma {self.gamma}. Use a lambda of 0 to "
                "1 and a gamma of at least 0."
            )
        if not 1 <= self.budget_min <= self.budget_max:
            raise ValueError(
                f"budget_min is {self.budget_min} and budget_max {self.budget_max}. Use a "
                "budget_min of at least 1 and at most "
                "budget_max."
            )

    def check(self, geometry: Geometry, take: Take):
        if self.head_table is not None:
            self.head_table.check(geometry)
        budget, name = (
            (self.uniform_budget, "uniform_budget")
            if self.head_table is None
            else (self.budget_max, "budget_max")
        )
        if budget <= geometry.chunk_frames:
            raise ValueError(
                f"{name} is {budget} latent frames and a chunk has {geometry.chunk_frames}, which "
                "are always read, so no history "
                f"would be. Use a {name} of at least {geometry.chunk_frames + 1}."
            )

    def start(self, geometry: Geometry, take: Take, retention: Retention) -> SelectionRun:
        full = retention.full_frames(geometry)
        if full is None:
            full = whole_chunks(PUBLISHED_WINDOW, geometry.chunk_frames)
        return DirectedForcingRun(self, geometry, self.active_from or full, take.total_frames)


def whole_chunks(frames: int, chunk_frames: int) -> int:
    """The most latent frames up to `frames` that are whole chunks; one chunk at least."""
    return max(1, frames // chunk_frames) * chunk_frames


class DirectedForcingRun(SelectionRun):
    def __init__(
        self, policy: DirectedForcing, geometry: Geometry, active_from: int, total_frames: int
    ):
        self.policy, self.geometry, self.active_from = policy, geometry, active_from
        self.total_frames = total_frames
        table = policy.head_table
        self.budgets = (
            [[policy.uniform_budget] * geometry.heads] * geometry.layers
            if table is None
            else table.budgets(policy.gamma, policy.budget_min, policy.budget_max)
        )
        self.backend, self.frames_read, self.frames_in_reach = "", 0, 0
        self.most_in_reach = 0
        # By bank: first latent frame of the chunk from which on frames are selected in its shot.
        self.active_since: dict[int, int] = {}
        self.heads: dict[
            tuple[Bank, int, int], dict[int, Tensor]
        ] = {}  # by bank, layer and frames of the chunk
        self.histories: dict[
            Bank, tuple[tuple[int, tuple], History]
        ] = {}  # and the chunk and rows that each is of
        self.statistics: dict[Bank, dict[int, KeyStatistics]] = {}  # by layer, of that history
        self.tally = ReadTally(total_frames)

    def read(
        self, layer: int, forward: Forward, q: Tensor, view: View, attention: Attention
    ) -> Tensor:
        chunk, bank = forward.chunk, view.bank
        history = self._history(view, chunk)
        reach, by_budget = (
            len(history.counts) + chunk.frames,
            self._by_budget(layer, chunk, q, bank),
        )
        self.tally.count(chunk, chunk.frames * q.shape[2], q.device)
        self.most_in_reach = max(self.most_in_reach, reach)
        if not self._is_active(bank, forward, reach) or min(by_budget) >= reach:
            self.tally.add(history.numbers, chunk.frames * q.shape[2])
            return super().read(layer, forward, q, view, attention)
        k, v = view.read(layer)
        if layer not in self.statistics[bank]:
            self.statistics[bank][layer] = key_statistics(
                k[0, : view.history_rows], history, self.geometry.grid[0]
            )
        scores = frame_scores(
            q[0], self.statistics[bank][layer], self.geometry.grid, self.policy.attention_weight
        )
        out, groups = torch.empty(q.shape, dtype=q.dtype, device=q.device), []
        for budget, heads in by_budget.items():
            if budget >= reach:  # everything: the host's own attention
                out[:, :, heads] = attention(
                    q[:, :, heads], k[:, :, heads], v[:, :, heads]
                ).unflatten(-1, (len(heads), -1))
                self.tally.add(history.numbers, chunk.frames * len(heads))
            else:
                chosen = choose_frames(scores[:, heads], history.sinks, budget - chunk.frames)
                self.tally.add(history.numbers[chosen])
                groups.append(
                    read_group(
                        chosen,
                        heads,
                        history,
                        view.history_rows,
                        chunk.frames,
                        self.geometry.tokens_per_frame,
                    )
                )
        self.backend = choose(q, self.policy.backend)
        self.frames_read += sum(
            min(budget, reach) * len(heads) for budget, heads in by_budget.items()
        )
        self.frames_in_reach += reach * q.shape[2]
        ragged_attention(q, k, v, groups, out, self.policy.backend)
        return out.flatten(2)

    def reads(self, chunk: Chunk) -> Tensor | None:
        return self.tally.shares(chunk)

    def state(self) -> State:
        return {
            "frames_read": self.frames_read,
            "frames_in_reach": self.frames_in_reach,
            "backend": self.backend,
            "most_in_reach": self.most_in_reach,
            "active_banks": list(self.active_since),
            "active_since": list(self.active_since.values()),
        }

    def restore(self, state: State):
        self.most_in_reach = count_of(state, "most_in_reach", self.total_frames)
        banks = counts_of(state, "active_banks", self.geometry.heads)
        since = counts_of(state, "active_since", self.total_frames, len(banks))
        self.active_since = dict(zip(banks, since))
        self.frames_in_reach, self.backend = (
            count_of(state, "frames_in_reach", 2**63),
            part_of(state, "backend", str),
        )
        self.frames_read = count_of(state, "frames_read", self.frames_in_reach)

    @property
    def notes(self) -> tuple[str, ...]:
        if not self.most_in_reach:  # nothing was read
            return ()
        if not self.active_since:
            return (
                "Directed Forcing never selected: it begins at "
                f"{self.active_from} latent frames in reach, and no chunk had more than "
                f"{self.most_in_reach}, so each read all of them. Use a longer take, a smaller "
                "window or a smaller active_from.",
            )
        if not self.frames_in_reach:
            return (
                "Directed Forcing never selected: no chunk had more than "
                f"{self.most_in_reach} latent frames in reach, and each head may read as many. "
                "Use smaller budgets.",
            )
        return (
            f"Directed Forcing: ragged attention by {self.backend}, from {self.active_from} "
            "latent frames in reach on; there, the mean head read "
            f"{self.frames_read / self.frames_in_reach:.0%} of them.",
        )

    def _is_active(self, bank: Bank, forward: Forward, reach: int) -> bool:
        """Whether frames are selected for a forward with `reach` latent frames in reach.

        Once active in a shot, later chunks stay so, though a short last one reaches fewer frames.
        Earlier chunks, which a recache runs again, read as they did before.
        """
        chunk = forward.chunk
        since = self.active_since.get(bank.number, -1)
        if since >= chunk.cue.shot:
            return chunk.start_frame >= since
        if reach < self.active_from:
            return False
        self.active_since[bank.number] = chunk.start_frame
        return True

    def _by_budget(self, layer: int, chunk: Chunk, q: Tensor, bank: Bank) -> dict[int, Tensor]:
        """Places of the bank's heads by the frames they may read; made once, so that no step waits
        for a copy to the device.
        """
        key = bank, layer, chunk.frames
        if key not in self.heads:
            wanted = [
                max(self.budgets[layer][head], chunk.frames + 1) for head in bank.heads[layer]
            ]
            self.heads[key] = {
                budget: torch.tensor(
                    [i for i, own in enumerate(wanted) if own == budget], device=q.device
                )
                for budget in sorted(set(wanted))
            }
        return self.heads[key]

    def _history(self, view: View, chunk: Chunk) -> History:
        """That of the chunk in work; it and what the keys say of it hold until rows come or go."""
        now = chunk.index, view.state
        then, history = self.histories.get(view.bank, (None, None))
        if then != now:
            history = history_of(view, self.geometry, chunk.cue.shot)
            self.histories[view.bank], self.statistics[view.bank] = (now, history), {}
        return history


def choose_frames(scores: Tensor, sinks: int, count: int) -> Tensor:
    """History frames to read, `[F, H, count]` at most: the best of the first `sinks`, and the best
    of the others. `scores` [F, H, J].
    """
    anchor, others = scores[..., :sinks], scores[..., sinks:]
    best = anchor.argsort(dim=-1, descending=True, stable=True)[..., :1]
    rest = (
        others.argsort(dim=-1, descending=True, stable=True)[..., : count - best.shape[-1]] + sinks
    )
    return torch.cat([best, rest.sort(-1).values], -1)


def read_group(
    chosen: Tensor, heads: Tensor, history: History, committed: int, chunk_frames: int, tokens: int
) -> ReadGroup:
    """Rows that the pairs of query frame and head read: the chosen frames `[F, H, C]`, then the
    chunk's own.
    """
    frames, count = chosen.shape[0], chosen.shape[2]
    ends = history.lengths[chosen].cumsum(-1).flatten(0, 1)  # [G, C]
    # The widest pair, from what the CPU knows: nobody waits for the device.
    sinks, others = (
        history.counts[: history.sinks],
        sorted(history.counts[history.sinks :], reverse=True),
    )
    width = sum(others[: count - bool(sinks)]) + (max(sinks) if sinks else 0)
    place = torch.arange(width, device=chosen.device).expand(len(ends), width).contiguous()
    segment = torch.searchsorted(ends, place, right=True).clamp_(max=count - 1)
    frame = chosen.flatten(0, 1).gather(1, segment)
    rows = (
        history.starts[frame]
        + place
        - (ends - history.lengths[chosen].flatten(0, 1)).gather(1, segment)
    )
    own = torch.arange(committed, committed + chunk_frames * tokens, device=chosen.device).expand(
        len(ends), -1
    )
    queries = (
        torch.arange(frames * tokens, device=chosen.device)
        .view(frames, 1, tokens)
        .expand(-1, len(heads), -1)
        .flatten(0, 1)
    )
    whole = len(set(history.counts)) == 1
    keys = torch.cat(
        [own, rows.clamp_(max=committed - 1)], 1
    )  # own rows first: what lies beyond a pair's length comes last
    return ReadGroup(
        queries, heads.repeat(frames), keys, None if whole else ends[:, -1] + own.shape[1]
    )
