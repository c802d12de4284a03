"""Measure which heads look at the latest frames only, for a head map (DeCoPrune, arXiv 2609.39096,
appendix B).
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..cache.bank import Bank
from ..take import Chunk, Geometry, Take
from .full import FullKV
from .head_map import HeadMap
from .retention import RetentionRun

STATIC_SHARE = 0.8
SINK_FRAMES = 4
RECENT_FRAMES = 4
QUERIES_AT_ONCE = 256


@dataclass(frozen=True)
class HeadProfile(FullKV):
    """Keep everything, and measure in the last chunk's first step what share of its attention each
    head gives to the latest frames.

    `on_share(layer, share)` is called with fp32 `[H]`: attention mass on the last 4 context frames
    over the mass on all context frames but the first 4, over all queries.
    """

    on_share: Callable[[int, Tensor], None]

    def check(self, geometry: Geometry, take: Take):
        context = take.total_frames - geometry.chunk_frames
        least = SINK_FRAMES + RECENT_FRAMES + 1
        if context < least:
            raise ValueError(
                f"To tell heads apart a take needs more than {least - 1} latent frames before its "
                f"last chunk, and this one has {context}. Use a latent of at least "
                f"{least + geometry.chunk_frames} latent frames."
            )

    def start(self, geometry: Geometry, take: Take) -> RetentionRun:
        return HeadProfileRun(self, take)


class HeadProfileRun(RetentionRun):
    needs_queries = True

    def __init__(self, policy: HeadProfile, take: Take):
        self.policy = policy
        self.take = take

    def observe(self, layer: int, chunk: Chunk, step: int, q: Tensor, bank: Bank):
        is_last_chunk = chunk.end_frame >= self.take.total_frames
        if step > 0 or not is_last_chunk:
            return
        frame = bank.frame[: bank.length]
        context = (frame < chunk.start_frame) & (frame >= SINK_FRAMES)
        recent = context & (frame >= chunk.start_frame - RECENT_FRAMES)
        k, _ = bank.read(layer)
        share = recent_share(q, k, recent.to(q.device), context.to(q.device))
        self.policy.on_share(layer, share)


def recent_share(q: Tensor, k: Tensor, recent: Tensor, context: Tensor) -> Tensor:
    """Attention mass on the `recent` over that on all `context` rows (bool `[S]`), by head, fp32
    `[H]`.

    q `[1, N, H, D]`, k `[1, S, H, D]`; masses are summed over the queries.
    """
    mass = torch.zeros(2, q.shape[2], device=q.device)
    scale = q.shape[-1] ** -0.5
    for part in q.split(QUERIES_AT_ONCE, 1):
        for head in range(q.shape[2]):  # one head at a time: N x S weights of all heads may not fit
            logits = part[0, :, head].float() @ k[0, :, head].float().T * scale
            weight = logits.softmax(-1).sum(0)
            mass[:, head] += torch.stack([weight[recent].sum(), weight[context].sum()])
    return mass[0] / mass[1]


def head_map_of(model: str, shares: Tensor, static_share: float = STATIC_SHARE) -> HeadMap:
    """The map of shares `[L, H]`: static from `static_share` on; layer 0 is all dynamic."""
    static = [tuple((layer >= static_share).nonzero()[:, 0].tolist()) for layer in shares]
    return HeadMap(model, shares.shape[1], ((), *static[1:]))
