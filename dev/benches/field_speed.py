"""Seconds of a chunk at real token counts, after a context that the model has read.

Two layers of two heads of 64 channels with random weights in bf16, so that head groups and choices
by layer are real; 1560 tokens a frame (832x480), chunks of 3, 4 steps. The feed-forward is so wide
that linear work is to attention as in a layer of Wan 1.3B, at any length.
"""

from typing import NamedTuple

import policies
import torch
from keepsake.kv_policies import KVPolicy
from support import tiny

HEAD_DIM = 64
# 6 dim + 2 ffn, by which a token's linear work over its attention goes, as of 1536 and 8960
LINEAR = 6 * 1536 + 2 * 8960
STEPS, CHUNK = 4, 3


class Job(NamedTuple):
    """One take's continuation under a policy."""

    policy: str
    round: int
    context: int  # latent frames, as `new`
    new: int
    height: int  # of the latents, as `width`
    width: int

    @property
    def timed(self) -> KVPolicy:
        return policies.TIMED.get(self.policy) or policies.known()[self.policy]

    @property
    def key(self) -> str:
        """Names the job among finished ones, the policy's parameters included."""
        return f"speed {tuple(self)} {self.timed}"


def model():
    dim = policies.SPEED_HEADS * HEAD_DIM
    made = tiny.tiny_model(
        weights=torch.bfloat16,
        dim=dim,
        heads=policies.SPEED_HEADS,
        layers=policies.SPEED_LAYERS,
        ffn_dim=(LINEAR - 6 * dim) // 2,
    )
    # On a CPU the host would compute in fp32, where linear layers are half as fast.
    made.set_model_compute_dtype(torch.bfloat16)
    return made


def seconds(made, job: Job) -> float:
    """Of all work on the chunks that follow the context, a clean pass of each included."""
    stats = []
    tiny.ours(
        made,
        tiny.noise_of(job.context + job.new, job.height, job.width),
        CHUNK,
        job.timed,
        prefix=tiny.noise_of(job.context, job.height, job.width, seed=4),
        steps=STEPS,
        on_stats=stats.append,
    )
    return sum(row.seconds for row in stats[0].chunks if not row.given)
