"""The demo world's video model: the host's own Wan class, small, trained to continue a street and
to remember it.

Diffusion forcing (arXiv 2407.01392): each chunk of three latent frames draws its own noise level
and half of the chunks are clean, attention is causal by chunk, so history at any noise level is in
distribution. A part of the examples picks its chunks from up to 300 frames of camera walk, most of
them adjacent with a few long jumps, at their true positions: without those recall decays beyond the
trained length.
"""

import numpy as np
import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from . import text, world
from .autoencoder import draw_world, encode

CHUNK = 3  # latent frames denoised together
CONFIG = dict(
    in_dim=16 + world.CONTROL_CHANNELS,
    dim=192,
    ffn_dim=576,
    freq_dim=256,
    text_dim=text.WIDTH,
    out_dim=16,
    num_heads=6,
    num_layers=6,
)
TOKENS = world.ROWS // 2 * world.COLUMNS // 2  # of one latent frame
POOL_COLUMNS = 112
LONGEST_CHUNKS = 100  # a picked walk spans at most this many chunks
SHIFT = 3.0  # of the noise levels in training


def build() -> nn.Module:
    """The host's Wan class, freshly initialised, trainable."""
    import comfy.ops
    from comfy.ldm.wan.model import WanModel

    model = WanModel(
        model_type="t2v",
        operations=comfy.ops.disable_weight_init,
        device="cpu",
        dtype=torch.float32,
        **CONFIG,
    )
    for name, p in model.named_parameters():
        if "modulation" in name:
            nn.init.normal_(p, std=CONFIG["dim"] ** -0.5)
        elif "norm" in name and name.endswith("weight"):
            nn.init.ones_(p)
        elif name.endswith("bias") or name == "head.head.weight":
            nn.init.zeros_(p)
        else:
            nn.init.xavier_uniform_(p.flatten(1))
    return model.requires_grad_(True)


class WorldPool:
    """Encoded worlds `[16, 8, POOL_COLUMNS]`, unit variance; a few are drawn anew at every step."""

    def __init__(
        self, autoencoder: nn.Module, mean: Tensor, std: Tensor, rng: np.random.Generator, size: int
    ):
        self.autoencoder, self.mean, self.std, self.rng = (
            autoencoder,
            mean.view(-1, 1, 1),
            std.view(-1, 1, 1),
            rng,
        )
        self.worlds = [self._draw() for _ in range(size)]
        self.next = 0

    @torch.no_grad()
    def _draw(self):
        picture, time, district = draw_world(self.rng, POOL_COLUMNS)
        latent = encode(self.autoencoder, picture[None, :, None])[0, :, 0]
        return (latent - self.mean) / self.std, time, district

    def refresh(self, count: int):
        for _ in range(count):
            self.worlds[self.next % len(self.worlds)] = self._draw()
            self.next += 1

    def walk(self, frames: int, limit: int):
        """One world and a camera in it: latent picture, position per frame, prompt with parts left
        out at times.
        """
        latent, time, district = self.worlds[self.rng.integers(len(self.worlds))]
        start = (
            int(self.rng.integers((POOL_COLUMNS - world.COLUMNS - limit) // world.STEP + 1))
            * world.STEP
        )
        positions = start + np.array(world.wander(self.rng, frames, limit))
        dice = self.rng.random()
        said = (
            ""
            if dice < 0.1
            else time
            if dice < 0.15
            else district
            if dice < 0.2
            else world.prompt(time, district)
        )
        return latent, positions, said


def pick_chunks(rng: np.random.Generator, chunks: int) -> np.ndarray:
    """Which chunks of a long walk an example shows: all of a short one, or most adjacent with a few
    long jumps.
    """
    if rng.random() < 0.3:
        return np.arange(chunks)
    span = int(rng.integers(chunks, LONGEST_CHUNKS + 1))
    weight = rng.random(chunks) ** 6 + 1e-3
    jump = np.floor(weight / weight.sum() * (span - chunks)).astype(int)
    jump[0] = 0
    return np.cumsum(1 + jump) - 1


def batch(pool: WorldPool, size: int, chunks: int):
    """Latents `[B, 16, F, 8, 16]`, control `[B, 16, F, 8, 16]`, text `[B, 8, 32]` and true frame
    numbers `[F]`.
    """
    rng = pool.rng
    frames = (pick_chunks(rng, chunks)[:, None] * CHUNK + np.arange(CHUNK)).ravel()
    latents, positions, said = [], [], []
    for _ in range(size):
        limit = int(rng.choice((16, 32, 64, 96)))
        picture, walk, prompt = pool.walk(int(frames[-1]) + 1, limit)
        latents.append(torch.stack([picture[:, :, x : x + world.COLUMNS] for x in walk[frames]], 1))
        positions.append(torch.from_numpy(walk[frames]) + int(rng.integers(world.PERIODS[-1])))
        said.append(text.embed(text.words(prompt)))
    control = world.control(torch.stack(positions)).transpose(1, 2)
    return torch.stack(latents), control, torch.cat(said), torch.from_numpy(frames)


def rope(model: nn.Module, frames: Tensor) -> Tensor:
    """The host's rotation table for latent frames at the given positions."""
    grid = torch.cartesian_prod(
        frames.float(), torch.arange(world.ROWS // 2.0), torch.arange(world.COLUMNS // 2.0)
    )
    return model.rope_embedder(grid[None]).movedim(1, 2)


def forcing_loss(
    model: nn.Module, pool: WorldPool, generator: torch.Generator, size: int, chunks: int
) -> Tensor:
    """Mean squared error of the velocity over the noisy chunks."""
    x, control, said, frames = batch(pool, size, chunks)
    u = torch.rand((size, chunks), generator=generator)
    sigma = SHIFT * u / (1 + (SHIFT - 1) * u)
    sigma = torch.where(
        torch.rand(sigma.shape, generator=generator) < 0.5, 0.0, sigma
    ).repeat_interleave(CHUNK, 1)
    noise, s = torch.randn(x.shape, generator=generator), sigma[:, None, :, None, None]
    of = torch.arange(chunks).repeat_interleave(CHUNK * TOKENS)
    mask = torch.zeros(len(of), len(of)).masked_fill(of[:, None] < of[None], float("-inf"))

    def attention(function, q, k, v, heads, **options):
        rows = q.shape[1]
        q, k, v = (u.unflatten(-1, (heads, -1)).transpose(1, 2) for u in (q, k, v))
        out = functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask if k.shape[2] == rows else None
        )
        return out.transpose(1, 2).flatten(2)

    velocity = model.forward_orig(
        torch.cat([(1 - s) * x + s * noise, control], 1),
        sigma * 1000,
        said,
        freqs=rope(model, frames),
        transformer_options={"optimized_attention_override": attention},
    )
    weight = (s > 0).float()
    return ((velocity - (noise - x)).square() * weight).sum() / (
        weight.sum() * x[0, :, 0].numel()
    ).clamp(min=1)
