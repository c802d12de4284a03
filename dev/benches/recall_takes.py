"""The takes of the recall bench, in pairs: what each shows on its return, what it held and read.

mode prefix   the context is a drawn world, observed; truth is that world, through encoder and
              decoder
mode t2v      the model makes the context too, under the policy; truth is the take's own first visit
              of the same place
"""

from functools import cache
from typing import NamedTuple

import episodes as cmbench
import policies
import torch
from keepsake.demo import world
from keepsake.demo.camera import camera_input
from keepsake.demo.load import load_demo_world
from keepsake.host.take.take import sample_take
from keepsake.rollout.stats import KVStats

STEPS = {"prefix": 8, "t2v": 4}


class Job(NamedTuple):
    """Both takes of a pair of episodes."""

    mode: str
    policy: str
    pair: int
    seed: int
    context: int  # latent frames, as `new`
    new: int
    steps: int

    @property
    def key(self) -> str:
        """Names the job in takes.jsonl, the policy's parameters included."""
        return f"{tuple(self)} {policies.known()[self.policy]}"


@cache
def parts():
    return load_demo_world()


@cache
def truth_of(number: int, member: int, context: int, new: int) -> torch.Tensor:
    """What the returns of a drawn world should show, `[N, 64, 128, 3]`."""
    pair = cmbench.plan_pair(number, context, new)
    return cmbench.decode(parts()[2], cmbench.drawn_latents(parts()[2], pair, member, pair.places))


def take_of(job: Job, pair: cmbench.Pair, member: int):
    """One take: its returns and their truth, both `[N, 64, 128, 3]`, and its stats."""
    (model, clip, vae), drawn = parts(), job.mode == "prefix"
    prefix = (
        {"samples": cmbench.drawn_latents(vae, pair, member, pair.walk[: job.context])[None]}
        if drawn
        else None
    )
    control = camera_input(torch.tensor(pair.walk) + pair.origin)
    positive = clip.encode_from_tokens_scheduled(
        clip.tokenize(world.prompt(pair.time, pair.district))
    )
    latent = {"samples": torch.zeros(1, 16, job.context + job.new, world.ROWS, world.COLUMNS)}
    out, stats = sample_take(
        model,
        positive,
        None,
        1.0,
        latent,
        seed=10000 * job.seed + 2 * job.pair + member,
        steps=job.steps,
        policy=policies.known()[job.policy],
        prefix=prefix,
        control=control,
    )
    latents = out["samples"][0]
    truth = (
        truth_of(job.pair, member, job.context, job.new)
        if drawn
        else cmbench.decode(vae, latents[:, [pair.walk.index(x) for x in pair.places]])
    )
    return cmbench.decode(vae, latents[:, pair.returns]), truth, stats


@torch.inference_mode()
def run_pair(job: Job) -> list[dict]:
    """What is known of each of the two takes: errors by task, and the continuation's tokens, bytes
    and seconds.
    """
    pair = cmbench.plan_pair(job.pair, job.context, job.new)
    takes, measured = [take_of(job, pair, member) for member in (0, 1)], []
    for member, (again, truth, stats) in enumerate(takes):
        stranger = takes[1 - member][1]
        landmarks = (
            pair.landmarks[member]
            if job.mode == "prefix"
            else [cmbench.most_unusual(truth, stranger, pair.places)]
        )
        measured.append(
            {
                **cmbench.errors(again, truth, stranger, pair.places, landmarks),
                "motion": [cmbench.motion(again), cmbench.motion(truth)],
                **cost(stats, job.context),
            }
        )
    return measured


def cost(stats: KVStats, context: int) -> dict[str, float]:
    """What the chunks from latent frame `context` on took and held, summed over them.

    Seconds; tokens of the history that were `kept`, of `all`; tokens that a query `read`, the own
    chunk's included, of `all_read`; `bytes` of the kept tokens, of `all_bytes` in the model's
    dtype.
    """
    rows = [row for row in stats.chunks if row.start_frame >= context]
    geometry = stats.geometry
    frame = geometry.tokens_per_frame * geometry.layers * geometry.heads * stats.streams
    own = sum(row.frames for row in rows) * frame
    read = sum(sum(row.reads) * frame if row.reads else row.kept_tokens for row in rows)
    every = sum(row.full_tokens for row in rows)
    return {
        "seconds": sum(row.seconds for row in rows),
        "kept": sum(row.kept_tokens for row in rows),
        "all": every,
        "read": read + own,
        "all_read": every + own,
        "bytes": sum(sum(row.bank_bytes) for row in rows),
        "all_bytes": every * 2 * geometry.head_dim * getattr(torch, stats.dtype).itemsize,
    }


def by_episode(results: dict[Job, list[dict]]) -> list[list[dict]]:
    """Of each episode, what is known of its takes, one for each seed."""
    pairs = sorted({job.pair for job in results})
    return [
        [measured[member] for job, measured in results.items() if job.pair == pair]
        for pair in pairs
        for member in (0, 1)
    ]


def sums(takes: list[list[dict]], task: str) -> torch.Tensor:
    """Of each episode, over its seeds: errors against truth and stranger, `[episodes, 2]`."""
    return torch.tensor(
        [[take[task] for take in episode] for episode in takes], dtype=torch.float64
    ).sum(1)


def total(takes: list[list[dict]], what: str) -> float:
    return sum(take[what] for episode in takes for take in episode)
