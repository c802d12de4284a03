"""The demo world's autoencoder: the host's own Wan VAE, narrow, and trained so that a latent cell
is a pure function of its pixels.

The encoder's kernels are held to the pixels of their own 8x8 cell and to the newest of the four
frames that a latent frame stands for. So latents move with the picture exactly (no padding effects
at the edge of a view), a whole world is encoded in one go, and a place that comes back is the same
latents. The decoder is free: it learns to glide between two latent frames.
"""

import math

import numpy as np
import torch
from torch import Tensor, nn

from . import world

WIDTH, LATENT_CHANNELS = 12, 16
NOISE = 0.2  # std of the noise on unit-variance latents that the decoder must see through
CROP = 8  # cells; a training picture is 64x64 pixels


def build() -> nn.Module:
    """The host's Wan VAE class at width 12, every parameter trainable."""
    from comfy.ldm.wan.vae import WanVAE

    model = WanVAE(
        dim=WIDTH,
        z_dim=LATENT_CHANNELS,
        dim_mult=[1, 2, 4, 4],
        num_res_blocks=2,
        attn_scales=[],
        temperal_downsample=[False, True, True],
    )
    for name, p in model.named_parameters():
        if p.ndim > 3:  # convolutions (norm gains are at most [C, 1, 1, 1])
            if name.endswith("weight"):
                nn.init.kaiming_uniform_(p, a=math.sqrt(5))
        if name.endswith("bias"):
            nn.init.zeros_(p)
    return model.requires_grad_(True)


class CellEncoder:
    """Holds an encoder to its own cell: `apply` zeroes every tap that looks elsewhere, after each
    optimiser step.
    """

    def __init__(self, encoder: nn.Module):
        self.masks = []
        for name, p in encoder.named_parameters():
            if not name.endswith("weight") or p.ndim < 4:
                continue
            mask = torch.zeros_like(p)
            if "time_conv" in name:
                p.data.zero_()
                p.data[:, :, -1] = torch.eye(len(p))[..., None, None]
                p.requires_grad_(False)
                continue
            if ".proj." in name:  # attention looks everywhere: off
                pass
            elif (
                "resample" in name
            ):  # stride 2, padded right and below: taps 0 and 1 are the own 2x2
                mask[..., :2, :2] = 1
            elif p.shape[-1] == 3:
                mask[:, :, -1, 1, 1] = 1
                p.data *= 9**0.5  # nine times fewer inputs than the initialisation assumed
            else:
                mask.fill_(1)
            self.masks.append((p, mask))
        self.apply()

    @torch.no_grad()
    def apply(self):
        for p, mask in self.masks:
            p.mul_(mask)


def draw_world(rng: np.random.Generator, columns: int) -> tuple[Tensor, str, str]:
    time = list(world.TIMES)[rng.integers(len(world.TIMES))]
    district = world.DISTRICTS[rng.integers(len(world.DISTRICTS))]
    return world.draw(int(rng.integers(2**40)), columns, time, district) * 2 - 1, time, district


def pictures(rng: np.random.Generator, worlds: int, crops: int) -> Tensor:
    """`[worlds * crops, 3, 1, 64, 64]` crops in -1..1, on the cell grid."""
    out = []
    for _ in range(worlds):
        picture, *_ = draw_world(rng, 64)
        for _ in range(crops):
            x = world.CELL * int(rng.integers(64 - CROP))
            out.append(picture[:, :, x : x + CROP * world.CELL])
    return torch.stack(out)[:, :, None]


def clips(
    rng: np.random.Generator, worlds: int, crops: int, latent_frames: int = 3
) -> tuple[Tensor, Tensor]:
    """Key frames `[N, 3, latent_frames, 64, 64]` and the glide between them `[N, 3, 4 *
    (latent_frames - 1) + 1, 64, 64]`.
    """
    keys, glides = [], []
    for _ in range(worlds):
        picture, *_ = draw_world(rng, 64)
        for _ in range(crops):
            moves = world.STEP * rng.choice((-1, 0, 1), p=(0.4, 0.2, 0.4), size=2)
            if rng.random() < 0.7:
                moves[1] = moves[0]
            left = [int(rng.integers(8, 44))]
            for move in np.resize(moves, latent_frames - 1):
                left.append(left[-1] + int(move))
            glide = world.views(picture, left)[..., : CROP * world.CELL]
            glides.append(glide)
            keys.append(glide[:: world.PIXEL_FRAMES])
    return torch.stack(keys).transpose(1, 2), torch.stack(glides).transpose(1, 2)


def encode(model: nn.Module, frames: Tensor) -> Tensor:
    """Latents of single pictures: `[B, 3, 1, 8h, 8w]` -> `[B, 16, 1, h, w]`."""
    mean, _ = model.conv1(model.encoder(frames)).chunk(2, dim=1)
    return mean


def difference(a: Tensor, b: Tensor) -> Tensor:
    return (a - b).abs().mean() + (a - b).square().mean()


def image_loss(model: nn.Module, rng: np.random.Generator, generator: torch.Generator) -> Tensor:
    """Stage 1: single pictures through standardised, noisy latents, whose channels are pressed to
    say different things.

    Without the pressure the encoder says the same three things sixteen times, which is its answer
    to the noise.
    """
    x = pictures(rng, 8, 2)
    z = encode(model, x)
    z = (z - z.mean((0, 2, 3, 4), keepdim=True)) / (z.std((0, 2, 3, 4), keepdim=True) + 1e-4)
    correlation = torch.corrcoef(z.movedim(1, 0).flatten(1))
    redundancy = (correlation - torch.eye(len(correlation))).square().mean()
    noise = NOISE * torch.rand((len(z), 1, 1, 1, 1), generator=generator)
    return (
        difference(model.decode(z + noise * torch.randn(z.shape, generator=generator)), x)
        + 3 * redundancy
    )


@torch.no_grad()
def standardise(model: nn.Module, rng: np.random.Generator, mean: Tensor, std: Tensor):
    """Fold the latents' mean and deviation into the 1x1 convolutions at the border.

    After it, raw latents have the host's own Wan 2.1 statistics (`mean`, `std`, each [16]), so that
    the host's latent format turns them into unit variance. The decoder was trained on unit
    variance.
    """
    z = torch.cat([encode(model, pictures(rng, 8, 8)) for _ in range(12)]).movedim(1, 0).flatten(1)
    gain = std / z.std(1)
    shift = mean - z.mean(1) * gain
    out, back = model.conv1, model.conv2
    out.weight[:LATENT_CHANNELS] *= gain[:, None, None, None, None]
    out.bias[:LATENT_CHANNELS] = out.bias[:LATENT_CHANNELS] * gain + shift
    back.bias -= (back.weight[:, :, 0, 0, 0] * (mean / std)).sum(1)
    back.weight /= std[None, :, None, None, None]


def clip_loss(
    model: nn.Module, rng: np.random.Generator, generator: torch.Generator, std: Tensor
) -> Tensor:
    """Stage 3: the decoder alone, on the glide between latent frames, through noise as a sampler
    leaves it.
    """
    keys, glide = clips(rng, 2, 2)
    with torch.no_grad():
        z = torch.cat([encode(model, keys[:, :, i : i + 1]) for i in range(keys.shape[2])], 2)
        noise = 0.5 * NOISE * torch.rand((len(z), 1, 1, 1, 1), generator=generator)
        z = z + noise * torch.randn(z.shape, generator=generator) * std.view(1, -1, 1, 1, 1)
    return difference(model.decode(z), glide)
