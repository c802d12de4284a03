"""Work and bytes of a take before there are weights: from the numbers of a checkpoint's profile.

Work is counted in floating-point operations of matrix products, forward by forward, over a dry run
of the loop that makes the take; that a selection reads less than is kept is left out. Hours come of
it by a speed that somebody names, and no speed of a device is claimed here.
"""

from typing import NamedTuple

import torch
from keepsake.host.model.backbone import read_geometry
from keepsake.host.model.compute_dtype import compute_dtype
from keepsake.host.model.file_names import rows_named
from keepsake.host.model.flow import ShiftedFlow
from keepsake.host.model.profiles import ARProfile
from keepsake.host.model.published import CHECKPOINTS
from keepsake.host.take.plan import EXPECTED_SHARE
from keepsake.kv_policies import MODULES, Forward, Geometry, KVPolicy, Take
from keepsake.rollout.chunk_row import ChunkRow
from keepsake.rollout.chunks import plan_chunks
from keepsake.rollout.dry_run import FORGOTTEN, KEPT, DryRun
from keepsake.rollout.take_plan import TakePlan

from .graphs import Row
from .maker import CELL, Maker

HEAD_DIM, TEXT_ROWS, PATCH = 128, 512, 2
# Operations of Wan 2.1's VAE for a latent frame of 480x832, counted over the host's class.
VAE_SIZE = 480 * 832
ENCODE, DECODE = 8.05e12, 13.55e12


class Shape(NamedTuple):
    """A transformer: what its work and its weights depend on."""

    layers: int
    width: int
    ffn: int
    camera: int = 0  # matrices [width, width] of a layer that a camera adds

    @property
    def of_token(self) -> float:
        """Operations of a token in a forward, attention's products left out: its own q, k, v, o,
        and q, o to the text; ffn; camera.
        """
        return 2 * self.layers * ((6 + self.camera) * self.width**2 + 2 * self.width * self.ffn)

    @property
    def of_text(self) -> float:
        """Operations of a forward on the text's keys and values."""
        return 2 * self.layers * 2 * self.width**2 * TEXT_ROWS

    @property
    def weights(self) -> int:
        """Parameters of the layers; the rest is below a hundredth."""
        return self.layers * ((8 + self.camera) * self.width**2 + 2 * self.width * self.ffn)


WAN = {1536: Shape(30, 1536, 8960), 3072: Shape(30, 3072, 14336), 5120: Shape(40, 5120, 13824)}
CAMERA = {"LingBot-World": 4}


class Model(NamedTuple):
    """What is known of a row's model without its weights."""

    profile: ARProfile
    shape: Shape
    geometry: Geometry  # at the takes' size
    dtype: torch.dtype


def model_of(row: Row, maker: Maker, size: tuple[int, int]) -> Model:
    """Of a checkpoint that has a profile; the demo world is loaded, it is small. ValueError, in a
    sentence, for other models.
    """
    loader = row.graph[row.sampler["model"][0]]
    cells = [side // CELL for side in size]
    if loader["class_type"] == "KeepsakeDemoWorld":
        return loaded_model(maker, size)
    named = [each for each in CHECKPOINTS if each.profile.name == loader["inputs"].get("profile")]
    named = named or rows_named(str(loader["inputs"].get("model_name", "")))
    if loader["class_type"] != "KeepsakeARVideoModelLoader" or not named:
        raise ValueError(
            "Without weights, a model is known by its profile alone, and this one has none of a "
            "published checkpoint. Name one with --profile, or load it with AR Video Model Loader."
        )
    checkpoint = named[0]
    shape = WAN[checkpoint.width]._replace(camera=CAMERA.get(checkpoint.kind, 0))
    geometry = Geometry(
        layers=shape.layers,
        heads=shape.width // HEAD_DIM,
        head_dim=HEAD_DIM,
        grid=tuple(-(-side // PATCH) for side in cells),
        chunk_frames=row.sampler.get("chunk_frames") or checkpoint.profile.chunk_frames,
        temporal_channels=HEAD_DIM - 4 * (HEAD_DIM // 6),  # Wan's 44, 42, 42
    )
    return Model(checkpoint.profile, shape, geometry, torch.bfloat16)


def loaded_model(maker: Maker, size: tuple[int, int]) -> Model:
    """Of a row whose weights are there."""
    profile = maker.profile
    chunk_frames = maker.row.sampler.get("chunk_frames") or profile.chunk_frames
    geometry = read_geometry(maker.model, *(side // CELL for side in size), chunk_frames)
    width = geometry.heads * geometry.head_dim
    shape = Shape(geometry.layers, width, 4 * width)
    return Model(profile, shape, geometry, compute_dtype(maker.model))


def plan_of(model: Model, policy: KVPolicy, given: int, new: int, steps: int = 0) -> TakePlan:
    """The plan of a take under one prompt. ValueError, in a sentence, where the policy cannot."""
    flow = ShiftedFlow()
    flow.set_parameters(shift=model.profile.shift or 1.0, multiplier=1000)
    sigmas = model.profile.take_sigmas(flow, steps)
    take = Take(given + new, given, tuple(sigmas.tolist()), seed=0)
    policy.check(model.geometry, take)
    return TakePlan(
        policy=policy,
        geometry=model.geometry,
        take=take,
        chunks=plan_chunks(given + new, model.geometry.chunk_frames, given),
        streams=1,
        dtype=model.dtype,
    )


def plan_for(maker: Maker, model: Model, given: int, new: int) -> TakePlan:
    """The plan of a row's take, `new` latent frames behind `given` ones."""
    policy = maker.policy or model.profile.policy()
    return plan_of(model, policy, given, new, maker.row.sampler.get("steps", 0))


class Forecast(NamedTuple):
    """What a take will keep and need, as far as its plan says it."""

    prune_ratio: float
    cache_bytes: int  # most that is allocated
    operations: float  # of the model


class Forecasts(NamedTuple):
    """Where what stays depends on the picture: if as little stays as possible, if all does, and
    between them; else three times the same.
    """

    least: Forecast
    expected: Forecast
    most: Forecast


def forecasts_of(plan: TakePlan, shape: Shape) -> Forecasts:
    if not plan.policy.retention.by_content:
        return Forecasts(*[forecast_of(plan, shape, FORGOTTEN)] * 3)
    shares = FORGOTTEN, EXPECTED_SHARE, KEPT
    return Forecasts(*(forecast_of(plan, shape, share) for share in shares))


def forecast_of(plan: TakePlan, shape: Shape, share: float) -> Forecast:
    run = CountedRun(plan, share)
    chunks = run.chunks()
    new = [chunk.row for chunk in chunks if not chunk.row.given]
    full = sum(row.full_tokens for row in new)
    return Forecast(
        1 - sum(row.kept_tokens for row in new) / full if full else 0.0,
        max(chunk.row.allocated_bytes for chunk in chunks),
        sum(
            operations_of(plan.geometry, shape, chunk.row, spans)
            for chunk, spans in zip(chunks, run.by_chunk)
        ),
    )


def operations_of(geometry: Geometry, shape: Shape, row: ChunkRow, spans: list[int]) -> float:
    """Of the forwards over a chunk, which work on so many latent frames each."""
    total = 0.0
    for frames in spans:
        tokens = frames * geometry.tokens_per_frame
        read = row.kept_tokens + tokens * geometry.layers * geometry.heads
        attention = 4 * tokens * geometry.head_dim * read  # keys times queries, and the values
        text = 4 * tokens * TEXT_ROWS * shape.width * shape.layers
        total += tokens * shape.of_token + attention + text + shape.of_text
    return total


def hours_assume(tflops: float) -> str:
    """What the hours and bytes of a dry run's table stand on."""
    return (
        f"hours are computed and not measured: the counted products at {tflops:g} TFLOP/s on "
        "average (--tflops), nothing waiting for memory (dev/ARENAS.md has measured ones beside "
        "it). cache and weights: in bfloat16; a forward's activations come on top. Where what "
        f"stays depends on the picture, the figures are for a share of {EXPECTED_SHARE:.0%}, "
        "beside the least and the most."
    )


class CountedRun(DryRun):
    """A dry run that counts its forwards, but for those whose modules are forecast."""

    def __init__(self, plan: TakePlan, share: float):
        super().__init__(plan, share)
        self.by_chunk: list[list[int]] = []
        self._spans: list[int] = []

    def __iter__(self):
        for chunk in super().__iter__():
            self.by_chunk.append(self._spans)
            self._spans = []
            yield chunk

    def _forward(self, forward: Forward, x, sigma):
        streams = range(self.plan.streams)
        if not (forward.features and self.session.can_forecast(forward, streams, MODULES)):
            self._spans.append(len(forward.span))
        return super()._forward(forward, x, sigma)
