"""What a run will keep, need and take, before there are weights."""

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from ..maker import Maker
from ..sizes import (
    DECODE,
    ENCODE,
    VAE_SIZE,
    Forecasts,
    Model,
    forecasts_of,
    hours_assume,
    model_of,
    plan_for,
)
from .context import context_frames, resampled
from .source import Source, probe
from .takes import Protocol
from .tasks import Task

# Where no data is at hand: the counts of the paper's README, and contexts of a minute.
TASKS, VIDEOS = 116, 58
MINUTE = Source(frames=961, fps=16.0, height=480, width=832)


class Length(NamedTuple):
    """Contexts of a length, in latent frames, and the tasks that go on from them."""

    given: int
    videos: int
    tasks: int


def given_frames(source: Source, chunk_frames: int) -> int:
    """Latent frames of a context."""
    return context_frames(len(resampled(source)), chunk_frames)


def lengths(tasks: Sequence[Task], chunk_frames: int) -> list[Length]:
    """Of the data's contexts; of none: as the paper says."""

    if not tasks:
        return [Length(given_frames(MINUTE, chunk_frames), VIDEOS, TASKS)]
    videos = {task.video for task in tasks}
    of_video = {video: given_frames(probe(video), chunk_frames) for video in videos}
    counts = sorted(set(of_video.values()))
    return [
        Length(
            count,
            sum(length == count for length in of_video.values()),
            sum(of_video[task.video] == count for task in tasks),
        )
        for count in counts
    ]


def dry_row(
    maker: Maker, tasks: Sequence[Task], seeds: int, protocol: Protocol, tflops: float
) -> dict:
    """A line of the table: prune ratio and bytes from the plan, hours from a speed of `tflops`."""
    # 1. The model, and a plan for each length of a context.
    model = model_of(maker.row, maker, protocol.size)
    of_lengths = lengths(tasks, model.geometry.chunk_frames)

    @cache
    def forecasts(given: int) -> Forecasts:
        return forecasts_of(plan_for(maker, model, given, protocol.frames), model.shape)

    # 2. Means over tasks, as the paper's, and the most bytes.
    count = sum(length.tasks for length in of_lengths)

    def prune_ratio(which: int) -> float:
        ratios = (
            forecasts(length.given)[which].prune_ratio * length.tasks for length in of_lengths
        )
        return sum(ratios) / count

    def cache_gib(which: int) -> float:
        return max(forecasts(each.given)[which].cache_bytes for each in of_lengths) / 2**30

    # 3. The work.
    operations = sum(work_of(length, model, forecasts, seeds, protocol) for length in of_lengths)
    return {
        "policy": maker.row.name,
        "tasks": count,
        "takes": count * seeds,
        "prune_ratio": prune_ratio(1),
        "prune_ratio_least": prune_ratio(2),
        "prune_ratio_most": prune_ratio(0),
        "cache_gib": cache_gib(1),
        "cache_gib_most": cache_gib(2),
        "weights_gib_bf16": model.shape.weights * 2 / 2**30,
        "pflop_a_take": operations / count / seeds / 1e15,
        "hours": operations / (tflops * 1e12) / 3600,
    }


def work_of(length: Length, model: Model, forecasts, seeds: int, protocol: Protocol) -> float:
    """Operations of the takes behind contexts of one length: the model's, encoding each context
    and its start image once, and decoding every take.
    """
    frames = length.given + protocol.frames
    area = protocol.size[0] * protocol.size[1] / VAE_SIZE
    takes = length.tasks * seeds
    return takes * (
        forecasts(length.given).expected.operations + area * DECODE * frames
    ) + length.videos * area * ENCODE * (length.given + frames)


def assumption(tflops: float, known: bool) -> str:
    """What the table stands on."""
    data = "" if known else f" Contexts: {VIDEOS} of a minute, {TASKS} tasks, as the paper says."
    return f"{hours_assume(tflops)}{data}"
