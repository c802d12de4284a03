"""Directed Forcing in loops: a plain, slow reading of the paper, in float64, for whole takes of
whole frames.
"""

import math
from dataclasses import dataclass

import torch
from keepsake.kv_policies import DirectedForcing, Selection, SelectionRun


def z_scores(values):
    mean = sum(values) / len(values)
    std = math.sqrt(sum((value - mean) ** 2 for value in values) / len(values))
    return [(value - mean) / (std + 1e-8) for value in values]


def descriptors(tokens, grid):
    """Of a whole frame `[T, D]`: one for each token row, half the mean and half the largest."""
    return [0.5 * row.mean(0) + 0.5 * row.amax(0) for row in tokens.unflatten(0, grid)]


def best(frames, score, count):
    return sorted(frames, key=lambda frame: (-score[frame], frame))[:count]


def by_the_book(policy, budget, q, keys, history, span, is_joint, grid):
    """Latent frames that each query frame of one head reads. `keys`: `[T, D]` by latent frame."""
    tokens = grid[0] * grid[1]
    frames = history + span if is_joint else history
    mean_key = sum(keys[frame] for frame in frames) / len(frames)
    diversity = {
        frame: -sum(
            float(torch.cosine_similarity(keys[frame][cell], mean_key[cell], dim=0))
            for cell in range(tokens)
        )
        / tokens
        for frame in frames
    }
    read = []
    for place, own in enumerate(span):
        mine = descriptors(q[place * tokens : (place + 1) * tokens], grid)
        competing = [frame for frame in frames if not is_joint or frame != own]
        affinity = []
        for frame in competing:
            pairs = [float(a @ b) for a in mine for b in descriptors(keys[frame], grid)]
            affinity.append(sum(pairs) / len(pairs) / math.sqrt(q.shape[-1]))
        weight = policy.attention_weight
        attended = z_scores(affinity)
        differs = z_scores([diversity[frame] for frame in competing])
        score = {
            frame: weight * a + (1 - weight) * d
            for frame, a, d in zip(competing, attended, differs)
        }
        anchor = best([frame for frame in history if frame < 3], score, 1)
        past = [frame for frame in history if frame >= 3]
        if not is_joint:
            rest = best(past, score, budget - len(span) - len(anchor))
            read.append(sorted(span + anchor + rest))
            continue
        beside = [frame for frame in span if frame != own]
        left = budget - 1 - len(anchor)
        share = math.floor(left * len(past) / (len(past) + len(beside)) + 0.5)
        if left >= len(past) + len(beside):
            share = len(past)
        rest = best(past, score, share) + best(beside, score, left - share)
        read.append(sorted([own] + anchor + rest))
    return read


@dataclass(frozen=True)
class Slow(Selection):
    """The same as `policy`, in loops. `seen` takes what was read: (latent frames of the span,
    frames in reach, frames read by each query frame of head 0 in layer 0).
    """

    policy: DirectedForcing
    seen: list

    def start(self, geometry, take, full_frames):
        return SlowRun(self, geometry, self.policy.active_from or full_frames)


class SlowRun(SelectionRun):
    def __init__(self, slow, geometry, active_from):
        self.slow, self.active_from, self.active = slow, active_from, set()
        self.grid = geometry.grid
        self.budgets = slow.policy.budgets(geometry)

    def read(self, layer, forward, q, view, attention):
        span = list(forward.span.numbers)
        frame = view.frame.tolist()
        history = sorted(set(frame) - set(span))
        reach = history + span
        if len(reach) >= self.active_from:
            self.active.add(forward.cache)
        if forward.cache not in self.active:
            return super().read(layer, forward, q, view, attention)
        k, v = (side.double() for side in view.read(layer))
        tokens = self.grid[0] * self.grid[1]
        out = torch.empty_like(q)
        is_joint = len(span) > forward.chunk.frames
        for head in range(q.shape[2]):
            keys = {f: k[0, [i for i, g in enumerate(frame) if g == f], head] for f in reach}
            values = {f: v[0, [i for i, g in enumerate(frame) if g == f], head] for f in reach}
            budget = max(self.budgets[layer][head], 2 if is_joint else len(span) + 1)
            read = [reach] * len(span)
            if budget < len(reach):
                policy = self.slow.policy
                own = q[0, :, head].double()
                read = by_the_book(policy, budget, own, keys, history, span, is_joint, self.grid)
            if layer == 0 and head == 0:
                self.slow.seen.append((span, reach, read))
            for place, frames in enumerate(read):
                rows = slice(place * tokens, (place + 1) * tokens)
                key = torch.cat([keys[f] for f in frames])
                own = q[0, rows, head].double()
                weight = (own @ key.T / math.sqrt(q.shape[-1])).softmax(-1)
                out[0, rows, head] = (weight @ torch.cat([values[f] for f in frames])).to(out)
        return out.flatten(2)
