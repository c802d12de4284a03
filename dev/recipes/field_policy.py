"""Another pack's method as a row of the field: `dev/bench field --add dev/recipes/field_policy.py`.

It keeps the first frame of every chunk whole, and of the others nothing.
"""

from dataclasses import dataclass

import torch
from keepsake.kv_policies import BankPlan, KVPolicy, Retention, RetentionRun


@dataclass(frozen=True)
class FirstFrames(Retention):
    """Of each chunk that is finished, its first latent frame stays."""

    def banks(self, geometry, take):
        return [BankPlan(take.total_frames, take.total_frames)]

    def start(self, geometry, take):
        return FirstFramesRun(geometry)


class FirstFramesRun(RetentionRun):
    def __init__(self, geometry):
        self.chunk_frames = geometry.chunk_frames

    def begin_chunk(self, cache, chunk):
        for bank in cache.banks:
            frames = bank.frame[: bank.length] - chunk.cue.shot
            bank.keep(torch.nonzero(frames % self.chunk_frames == 0)[:, 0])


POLICIES = {"first_frames": KVPolicy(FirstFrames())}
