"""Which latent frames each pair of a query frame and a head reads, and the rows that these are."""

import torch
from torch import Tensor

from .frame_scores import Frames
from .ragged import ReadGroup


def choose_frames(scores: Tensor, sinks: int, count: int) -> Tensor:
    """Of the history frames, the best of the first `sinks` (the anchor) and the best of the others:
    `[F, H, C]`, C at most `count`. `scores` [F, H, J].
    """
    anchor = best(scores[..., :sinks], 1)
    others = best(scores[..., sinks:], count - anchor.shape[-1]) + sinks
    return torch.cat([anchor, others], -1)


def choose_jointly(scores: Tensor, sinks: int, budget: int) -> Tensor:
    """Of history and joint window, where the F query frames are the last ones of the J: the query
    frame itself, the best of the first `sinks` (the anchor), and the best others. `[F, H, C]`, C at
    most `budget`. `scores` [F, H, J].

    What the budget leaves for others is split between the history and the window in proportion to
    how many frames of each compete (arXiv 2605.18346, for Rolling Forcing).
    """
    queries, heads, frames = scores.shape
    own = torch.arange(frames - queries, frames, device=scores.device)
    own = own[:, None, None].expand(-1, heads, 1)
    history = scores[..., sinks : frames - queries]
    window = scores[..., frames - queries :].scatter(-1, own - (frames - queries), -torch.inf)
    anchor = best(scores[..., :sinks], 1)
    from_history, from_window = split_budget(
        budget - 1 - anchor.shape[-1], history.shape[-1], queries - 1
    )
    chosen = (
        anchor,
        best(history, from_history) + sinks,
        best(window, from_window) + (frames - queries),
        own,
    )
    return torch.cat(chosen, -1).sort(-1).values


def split_budget(budget: int, history: int, window: int) -> tuple[int, int]:
    """So many frames in proportion to how many of each kind there are, half a frame to the history:
    (of the history, of the window).
    """
    if budget >= history + window:
        return history, window
    share = 2 * budget * history + history + window
    from_history = min(history, share // (2 * (history + window)))
    return from_history, budget - from_history


def best(scores: Tensor, count: int) -> Tensor:
    """The `count` frames of the highest scores, or all there are, in ascending order; of equal ones
    the earlier. `scores` [..., J].
    """
    order = scores.argsort(dim=-1, descending=True, stable=True)
    return order[..., :count].sort(-1).values


def read_group(
    chosen: Tensor, heads: Tensor, frames: Frames, own_rows: range, tokens: int
) -> ReadGroup:
    """What the pairs of a query frame and a head read: `own_rows`, which all of them read, and the
    rows of the chosen frames `[F, H, C]`. `tokens`: of a query frame.
    """
    queries, _, count = chosen.shape
    device = chosen.device
    chosen = chosen.flatten(0, 1)  # [G, C]
    lengths = frames.lengths[chosen]
    ends = lengths.cumsum(-1)
    # Place p of a pair is in its chosen frame number `segment`.
    place = torch.arange(widest(frames, count), device=device).expand(len(chosen), -1).contiguous()
    segment = torch.searchsorted(ends, place, right=True).clamp_(max=count - 1)
    frame = chosen.gather(1, segment)
    rows = frames.starts[frame] + place - (ends - lengths).gather(1, segment)
    rows = rows.clamp_(max=len(frames.cell) - 1)
    # Own rows first: what lies beyond a pair's length then comes last.
    own = torch.arange(own_rows.start, own_rows.stop, device=device).expand(len(chosen), -1)
    query_rows = torch.arange(queries * tokens, device=device).view(queries, 1, tokens)
    equally_many = len(set(frames.counts)) == 1
    return ReadGroup(
        queries=query_rows.expand(-1, len(heads), -1).flatten(0, 1),
        heads=heads.repeat(queries),
        keys=torch.cat([own, rows], 1),
        lengths=None if equally_many else ends[:, -1] + len(own_rows),
    )


def widest(frames: Frames, count: int) -> int:
    """Most rows that `count` chosen frames can have, one of them a sink frame where there are some;
    from what the CPU knows, so that nobody waits for the device.
    """
    if len(set(frames.counts)) == 1:
        return count * frames.counts[0]
    sinks = frames.counts[: frames.sinks]
    others = sorted(frames.counts[frames.sinks :], reverse=True)
    return sum(others[: count - bool(sinks)]) + max(sinks, default=0)
