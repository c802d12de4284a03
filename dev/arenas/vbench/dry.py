"""What the videos of a suite will keep and take, before there are weights."""

from ..maker import Maker
from ..sizes import DECODE, VAE_SIZE, forecasts_of, model_of, plan_for
from .takes import Protocol, seconds_of


def dry_row(maker: Maker, videos: int, protocol: Protocol, tflops: float) -> dict:
    """A line of the table: hours from a speed of `tflops`, bytes from the plan."""
    model = model_of(maker.row, maker, protocol.size)
    forecasts = forecasts_of(plan_for(maker, model, 0, protocol.frames), model.shape)
    area = protocol.size[0] * protocol.size[1] / VAE_SIZE
    operations = forecasts.expected.operations + DECODE * area * protocol.frames
    return {
        "policy": maker.row.name,
        "frames": protocol.frames,
        "seconds": seconds_of(protocol.frames),
        "videos": videos,
        "cache_gib": forecasts.expected.cache_bytes / 2**30,
        "cache_gib_most": forecasts.most.cache_bytes / 2**30,
        "weights_gib_bf16": model.shape.weights * 2 / 2**30,
        "hours": videos * operations / (tflops * 1e12) / 3600,
    }
