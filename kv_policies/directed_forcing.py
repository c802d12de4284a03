"""Each frame and each head reads its own history (Focused Forcing, arXiv 2605.18346)."""
from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from .bank import Bank
from .head_table import HeadTable
from .ragged import ReadGroup, choose, ragged_attention
from .read_tally import ReadTally
from .retention import Retention
from .selection import Attention, Selection, SelectionRun
from .state import State, count_of, part_of
from .take import Chunk, Geometry, Take

ANCHOR_FRAMES = 3                # first latent frames, of which one is always read
PUBLISHED_WINDOW = 21            # latent frames: where the paper begins to select
HEADS_AT_ONCE = 8                # whose keys are held in fp32 while they are summed up
EPSILON = 1e-8


@dataclass(frozen=True)
class DirectedForcing(Selection):
    """Per query frame, head, layer and step: the chunk's own frames, the best sink frame, and the best of the rest.

    A history frame's score is w z(attention) + (1 - w) z(diversity), w = `attention_weight` (lambda in the paper). A head reads
    `budget_min` to `budget_max` latent frames by its place in the head table, `uniform_budget` without one. Selection begins
    when the chunk and its history reach `active_from` latent frames; 0: once the retention's window is full.
    """

    attention_weight: float = .46
    gamma: float = 2.0
    budget_min: int = 4
    budget_max: int = 12
    uniform_budget: int = 7
    active_from: int = 0
    head_table: HeadTable | None = None
    backend: str = "auto"

    def __post_init__(self):
        if not 1 <= self.budget_min <= self.budget_max:
            raise ValueError(f"budget_min is {self.budget_min} and budget_max {self.budget_max}. Use a budget_min of at least 1 and at most budget_max.")

    def check(self, geometry: Geometry, take: Take):
        if self.head_table is not None:
            self.head_table.check(geometry)
        budget, name = (self.uniform_budget, "uniform_budget") if self.head_table is None else (self.budget_max, "budget_max")
        if budget <= geometry.chunk_frames:
            raise ValueError(f"{name} is {budget} latent frames and a chunk has {geometry.chunk_frames}, which are always read, so no history would be. "
                             f"Use a {name} of at least {geometry.chunk_frames + 1}.")

    def start(self, geometry: Geometry, take: Take, retention: Retention) -> SelectionRun:
        return DirectedForcingRun(self, geometry, self.active_from or retention.window(take) or PUBLISHED_WINDOW, take.total_frames)


class History(NamedTuple):
    """The history of a bank as frames; a frame is its surviving tokens, which lie in one row. Index tensors on the device."""

    key: tuple                       # chunk and rows that it describes
    counts: list[int]                # tokens of each frame
    sinks: int                       # how many of the frames are sink frames
    numbers: Tensor                  # [J] latent frame of each
    starts: Tensor                   # [J] first row of each frame
    lengths: Tensor                  # [J]
    frame_of_row: Tensor             # [S]
    cell_order: Tensor               # [S] rows sorted by cell
    cell_lengths: Tensor             # [T] rows of each cell
    row_lengths: Tensor              # [J * h] tokens of each token row of each frame
    cell: Tensor                     # [S]


class KeyStatistics(NamedTuple):
    """What a layer's cached keys say about each frame; once per chunk."""

    descriptor: Tensor               # [J, H, D] fp32, mean over the frame's groups
    diversity: Tensor                # [J, H] fp32, z-scored over frames


class DirectedForcingRun(SelectionRun):
    def __init__(self, policy: DirectedForcing, geometry: Geometry, active_from: int, total_frames: int):
        self.policy, self.geometry, self.active_from = policy, geometry, active_from
        table = policy.head_table
        self.budgets = ([[policy.uniform_budget] * geometry.heads] * geometry.layers if table is None
                        else table.budgets(policy.gamma, policy.budget_min, policy.budget_max))
        self.backend, self.frames_read, self.frames_in_reach = "", 0, 0
        self.heads: dict[tuple[int, int, int], dict[int, Tensor]] = {}      # by bank, layer and frames of the chunk
        self.histories: dict[int, History] = {}              # by bank
        self.statistics: dict[tuple[int, int], KeyStatistics] = {}       # by bank and layer
        self.tally = ReadTally(total_frames)

    def read(self, layer: int, chunk: Chunk, q: Tensor, bank: Bank, attention: Attention) -> Tensor:
        history = self._history(bank, chunk)
        frames, by_budget = len(history.counts), self._by_budget(layer, chunk, q, bank)
        self.tally.count(chunk, chunk.frames * q.shape[2], q.device)
        if frames + chunk.frames < self.active_from or min(by_budget) >= frames + chunk.frames:
            self.tally.add(history.numbers, chunk.frames * q.shape[2])
            return super().read(layer, chunk, q, bank, attention)
        k, v = bank.read(layer)
        scores = self._scores(layer, chunk, q, k[0, :bank.committed], bank, history)
        out, groups = torch.empty(q.shape, dtype=q.dtype, device=q.device), []
        for budget, heads in by_budget.items():
            if budget >= frames + chunk.frames:      # everything: the host's own attention
                out[:, :, heads] = attention(q[:, :, heads], k[:, :, heads], v[:, :, heads]).unflatten(-1, (len(heads), -1))
                self.tally.add(history.numbers, chunk.frames * len(heads))
            else:
                chosen = choose_frames(scores[:, heads], history.sinks, budget - chunk.frames)
                self.tally.add(history.numbers[chosen])
                groups.append(read_group(chosen, heads, history, bank.committed, chunk.frames, self.geometry.tokens_per_frame))
        self.backend = choose(q, self.policy.backend)
        self.frames_read += sum(min(budget, frames + chunk.frames) * len(heads) for budget, heads in by_budget.items())
        self.frames_in_reach += (frames + chunk.frames) * q.shape[2]
        ragged_attention(q, k, v, groups, out, self.policy.backend)
        return out.flatten(2)

    def reads(self, chunk: Chunk) -> Tensor | None:
        return self.tally.shares(chunk)

    def state(self) -> State:
        return {"frames_read": self.frames_read, "frames_in_reach": self.frames_in_reach, "backend": self.backend}

    def restore(self, state: State):
        self.frames_in_reach, self.backend = count_of(state, "frames_in_reach", 2 ** 63), part_of(state, "backend", str)
        self.frames_read = count_of(state, "frames_read", self.frames_in_reach)

    @property
    def notes(self) -> tuple[str, ...]:
        if not self.frames_in_reach:
            return ()
        return (f"Directed Forcing: ragged attention by {self.backend}, from {self.active_from} latent frames in reach on; there, the mean head read "
                f"{self.frames_read / self.frames_in_reach:.0%} of them.",)

    def _by_budget(self, layer: int, chunk: Chunk, q: Tensor, bank: Bank) -> dict[int, Tensor]:
        """Places of the bank's heads by the frames they may read; made once, so that no step waits for a copy to the device."""
        key = id(bank), layer, chunk.frames
        if key not in self.heads:
            wanted = [max(self.budgets[layer][head], chunk.frames + 1) for head in bank.heads[layer]]
            self.heads[key] = {budget: torch.tensor([i for i, own in enumerate(wanted) if own == budget], device=q.device)
                               for budget in sorted(set(wanted))}
        return self.heads[key]

    def _history(self, bank: Bank, chunk: Chunk) -> History:
        key, known = (chunk.index, bank.committed), self.histories.get(id(bank))
        if known is None or known.key != key:
            known = self.histories[id(bank)] = history_of(key, bank, self.geometry, chunk.shot)
            self.statistics = {which: held for which, held in self.statistics.items() if which[0] != id(bank)}
        return known

    def _scores(self, layer: int, chunk: Chunk, q: Tensor, k: Tensor, bank: Bank, history: History) -> Tensor:
        """Score of each history frame for each query frame and head, `[F, H, J]`."""
        held = self.statistics.get((id(bank), layer))
        if held is None:
            held = self.statistics[id(bank), layer] = key_statistics(k, history, self.geometry.grid[0])
        h, w = self.geometry.grid
        rows = q[0].unflatten(0, (chunk.frames, h, w))
        descriptor = (.5 * rows.mean(2, dtype=torch.float32) + .5 * rows.amax(2).float()).mean(1)        # [F, H, D]
        affinity = torch.einsum("fhd,jhd->fhj", descriptor, held.descriptor) * q.shape[-1] ** -.5
        weight = self.policy.attention_weight
        return weight * z_score(affinity, -1) + (1 - weight) * held.diversity.T


def z_score(values: Tensor, dim: int) -> Tensor:
    """Deviations from the mean in population standard deviations."""
    return (values - values.mean(dim, keepdim=True)) / (values.std(dim, correction=0, keepdim=True) + EPSILON)


def history_of(key: tuple, bank: Bank, geometry: Geometry, shot: int) -> History:
    device, (h, w) = bank.device, geometry.grid
    frame, cell = bank.frame[:bank.committed], bank.cell[:bank.committed]
    names, index, counts = torch.unique_consecutive(frame, return_inverse=True, return_counts=True)
    row_lengths = torch.bincount(index * h + cell // w, minlength=len(names) * h)
    parts = (names, counts.cumsum(0) - counts, counts, index, cell.argsort(stable=True), torch.bincount(cell, minlength=h * w), row_lengths, cell)
    return History(key, counts.tolist(), int((names < shot + ANCHOR_FRAMES).sum()), *(part.to(device) for part in parts))


def key_statistics(k: Tensor, history: History, grid_rows: int) -> KeyStatistics:
    """Descriptors and diversity of the history frames from cached keys `[S, H, D]`.

    A frame's groups are its token rows; a group is described by half its mean and half its largest values, and the mean over
    groups stands for the frame, since the mean over all pairs of groups of q . k is the product of the means. Diversity is minus
    the mean cosine between a frame's keys and the mean key at the same cell.
    """
    descriptors, diversities = [], []
    for part in k.split(HEADS_AT_ONCE, 1):
        part = part.float()
        mean, largest = (torch.segment_reduce(part, how, lengths=history.row_lengths, unsafe=True) for how in ("mean", "max"))
        filled = (history.row_lengths > 0)[:, None, None]
        groups = torch.where(filled, .5 * mean + .5 * largest, 0.).unflatten(0, (-1, grid_rows))
        descriptors.append(groups.sum(1) / filled.view(-1, grid_rows, 1).sum(1, keepdim=True))
        at_cell = torch.segment_reduce(part[history.cell_order], "mean", lengths=history.cell_lengths, unsafe=True)
        cosine = torch.cosine_similarity(part, at_cell[history.cell], dim=-1)
        diversities.append(-torch.segment_reduce(cosine, "mean", lengths=history.lengths, unsafe=True))
    return KeyStatistics(torch.cat(descriptors, 1), z_score(torch.cat(diversities, 1), 0))


def choose_frames(scores: Tensor, sinks: int, count: int) -> Tensor:
    """History frames to read, `[F, H, count]` at most: the best of the first `sinks`, and the best of the others. `scores` [F, H, J]."""
    anchor, others = scores[..., :sinks], scores[..., sinks:]
    best = anchor.argsort(dim=-1, descending=True, stable=True)[..., :1]
    rest = others.argsort(dim=-1, descending=True, stable=True)[..., :count - best.shape[-1]] + sinks
    return torch.cat([best, rest.sort(-1).values], -1)


def read_group(chosen: Tensor, heads: Tensor, history: History, committed: int, chunk_frames: int, tokens: int) -> ReadGroup:
    """Rows that the pairs of query frame and head read: the chosen frames `[F, H, C]`, then the chunk's own."""
    frames, count = chosen.shape[0], chosen.shape[2]
    ends = history.lengths[chosen].cumsum(-1).flatten(0, 1)          # [G, C]
    # The widest pair, from what the CPU knows: nobody waits for the device.
    sinks, others = history.counts[:history.sinks], sorted(history.counts[history.sinks:], reverse=True)
    width = sum(others[:count - bool(sinks)]) + (max(sinks) if sinks else 0)
    place = torch.arange(width, device=chosen.device).expand(len(ends), width).contiguous()
    segment = torch.searchsorted(ends, place, right=True).clamp_(max=count - 1)
    frame = chosen.flatten(0, 1).gather(1, segment)
    rows = history.starts[frame] + place - (ends - history.lengths[chosen].flatten(0, 1)).gather(1, segment)
    own = torch.arange(committed, committed + chunk_frames * tokens, device=chosen.device).expand(len(ends), -1)
    queries = torch.arange(frames * tokens, device=chosen.device).view(frames, 1, tokens).expand(-1, len(heads), -1).flatten(0, 1)
    whole = len(set(history.counts)) == 1
    keys = torch.cat([own, rows.clamp_(max=committed - 1)], 1)       # own rows first: what lies beyond a pair's length comes last
    return ReadGroup(queries, heads.repeat(frames), keys, None if whole else ends[:, -1] + own.shape[1])
