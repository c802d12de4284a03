"""The takes of the drift bench, in pairs that share prompt and place and differ in noise."""

from functools import cache
from typing import NamedTuple

import policies
import torch
from episodes import PROMPTS
from keepsake.demo import world
from keepsake.demo.camera import camera_input
from keepsake.demo.load import load_demo_world
from keepsake.host.take.take import sample_take

MEASURES = ("drift", "growth", "seam")


class Job(NamedTuple):
    """Both takes of a pair, with a camera that stands still and with one that walks."""

    policy: str
    pair: int
    frames: int
    steps: int

    @property
    def key(self) -> str:
        """Names the job among finished ones, the policy's parameters included."""
        return f"drift {tuple(self)} {policies.known()[self.policy]}"


@cache
def parts():
    return load_demo_world()


def take(job: Job, path: str, member: int) -> tuple[torch.Tensor, list[int]]:
    """Decoded key frames `[frames, 64, 128, 3]`; the first frame of each chunk but the first."""
    model, clip, vae = parts()
    latent = {"samples": torch.zeros(1, 16, job.frames, world.ROWS, world.COLUMNS)}
    control = camera_input(world.camera_positions(latent["samples"].shape, path, 1, job.pair))
    positive = clip.encode_from_tokens_scheduled(
        clip.tokenize(world.prompt(*PROMPTS[job.pair % len(PROMPTS)]))
    )
    sampled, stats = sample_take(
        model,
        positive,
        None,
        1.0,
        latent,
        seed=1000 + 65 * job.pair + 32 * member,
        steps=job.steps,
        policy=policies.known()[job.policy],
        control=control,
    )
    frames = vae.decode(sampled["samples"][0].movedim(1, 0)[:, :, None])[:, 0]
    return frames, [row.start_frame for row in stats.chunks[1:]]


def square(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Mean squared error of each frame."""
    return (a - b).square().mean((1, 2, 3))


@torch.inference_mode()
def run_pair(job: Job) -> list[dict[str, tuple[float, float]]]:
    """Of each take, by measure, its error and that against the other one."""
    hold = [take(job, "hold", member)[0] for member in (0, 1)]
    walk = [take(job, "pan right", member) for member in (0, 1)]
    return [
        of_still(hold[member], hold[1 - member]) | of_walk(*walk[member], walk[1 - member][0])
        for member in (0, 1)
    ]


def of_still(still: torch.Tensor, stranger: torch.Tensor) -> dict[str, tuple[float, float]]:
    """How far a take's last tenth is from its first frame, and by how much farther than the
    second.
    """
    tenth = len(still) // 10
    other = square(stranger[:1], still[:1]).mean()
    error = square(still, still[:1])
    late, early = error[-tenth:].mean(), error[tenth : 2 * tenth].mean()
    return {"drift": (float(late), float(other)), "growth": (float(late - early), float(other))}


def of_walk(
    moving: torch.Tensor, starts: list[int], stranger: torch.Tensor
) -> dict[str, tuple[float, float]]:
    """How far the first frames of chunks are from the frames before, where both show the same."""
    step = world.STEP * world.CELL
    before = moving[[start - 1 for start in starts], :, step:]
    errors = [square(frames[starts, :, :-step], before).mean() for frames in (moving, stranger)]
    return {"seam": tuple(map(float, errors))}


def ratios(takes: list[dict], measure: str, pick: torch.Tensor) -> torch.Tensor:
    """A measure over the takes that `pick` numbers, `[..., takes]`: `[...]`."""
    pairs = torch.tensor([take[measure] for take in takes])
    return pairs[pick, 0].mean(-1) / pairs[pick, 1].mean(-1)
