"""Make the demo world's weights from a seed: `dev/python demo/train.py`. Two hours on two cores;
resumes where it stopped.

1. autoencoder   the cell encoder and a first decoder, on single pictures
2. model         the video model on the encoder's latents; every fourth batch holds long examples
3. decoder       the encoder stays, the decoder learns to glide between latent frames
4. pack          fp16 safetensors with the headers that ComfyUI's loaders read, into demo/weights
"""

import argparse
import copy
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "dev"))
from support.pack import load_pack, use_host

if not use_host("--cpu"):
    raise SystemExit(
        "Training needs a ComfyUI: run it as `dev/python demo/train.py`, or set COMFYUI_PATH."
    )
load_pack()
import comfy.model_management
import numpy as np
import torch
from comfy.latent_formats import Wan21
from keepsake.demo import autoencoder, diffusion
from keepsake.host.keys import PROFILE
from keepsake.host.model.profiles import ARProfile
from safetensors.torch import save_file

comfy.model_management.in_training = True  # the host's RoPE kernel for inference has no gradient
WEIGHTS = Path(__file__).parent / "weights"
SEED = 1
DEMO_PROFILE = ARProfile(
    name="Demo World",
    chunk_frames=diffusion.CHUNK,
    steps=8,
    shift=3.0,
    needs_control=True,
    noisy_history=True,
)
LATENT_MEAN, LATENT_STD = Wan21().latents_mean.flatten(), Wan21().latents_std.flatten()


class Stage:
    """One trained network: an optimiser loop with a decaying rate, an average of the weights, and a
    checkpoint to resume from.
    """

    def __init__(
        self,
        name: str,
        out: Path,
        model: torch.nn.Module,
        optimisers: list,
        steps: int,
        rate: float,
        average: float = 0.0,
    ):
        self.name, self.path, self.model, self.optimisers = (
            name,
            out / f"{name}.pt",
            model,
            optimisers,
        )
        self.steps, self.rate, self.decay = steps, rate, average
        self.average = copy.deepcopy(model) if average else model
        self.rng, self.generator = np.random.default_rng(SEED), torch.Generator().manual_seed(SEED)
        self.step = 0
        if self.path.exists():
            self._restore()

    def run(self, loss_of: Callable[[int], torch.Tensor], after: Callable[[], None] = lambda: None):
        began, first, smooth = time.time(), self.step, None
        while self.step < self.steps:
            for optimiser in self.optimisers:
                for group in optimiser.param_groups:
                    group["lr"] = (
                        self.rate
                        * min(1, (self.step + 1) / 100)
                        * (1 - self.step / self.steps) ** 0.5
                        + 1e-6
                    )
            loss = loss_of(self.step)
            self.model.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            for optimiser in self.optimisers:
                optimiser.step()
            after()
            self.step += 1
            if self.decay:
                with torch.no_grad():
                    for mean, p in zip(self.average.parameters(), self.model.parameters()):
                        mean.lerp_(p, 1 - min(self.decay, self.step / (self.step + 10)))
            smooth = loss.item() if smooth is None else 0.98 * smooth + 0.02 * loss.item()
            if self.step % 50 == 0 or self.step == self.steps:
                left = (time.time() - began) / (self.step - first) * (self.steps - self.step)
                print(
                    f"{self.name} {self.step}/{self.steps}  loss {smooth:.4f}  {left / 60:.0f} "
                    "min left",
                    flush=True,
                )
            if self.step % 250 == 0 or self.step == self.steps:
                self._save()
        return self.average

    def _save(self):
        state = dict(
            step=self.step,
            model=self.model.state_dict(),
            average=self.average.state_dict(),
            optimisers=[o.state_dict() for o in self.optimisers],
            rng=json.dumps(self.rng.bit_generator.state),
            generator=self.generator.get_state(),
        )
        partial = self.path.with_suffix(".partial")
        torch.save(state, partial)
        os.replace(partial, self.path)  # an interrupted write leaves the previous checkpoint

    def _restore(self):
        state = torch.load(self.path)
        self.step = state["step"]
        self.model.load_state_dict(state["model"])
        self.average.load_state_dict(state["average"])
        for optimiser, saved in zip(self.optimisers, state["optimisers"]):
            optimiser.load_state_dict(saved)
        self.rng.bit_generator.state = json.loads(state["rng"])
        self.generator.set_state(state["generator"])
        print(f"{self.name} resumes at step {self.step}", flush=True)


def adam(parameters, rate: float, decay: float = 0.0):
    return torch.optim.AdamW(parameters, lr=rate, betas=(0.9, 0.98), weight_decay=decay)


def train_autoencoder(out: Path, steps: int):
    model = autoencoder.build()
    cells = autoencoder.CellEncoder(model.encoder)
    stage = Stage(
        "autoencoder",
        out,
        model,
        [adam([p for p in model.parameters() if p.requires_grad], 4e-3)],
        steps,
        4e-3,
    )
    stage.run(lambda step: autoencoder.image_loss(model, stage.rng, stage.generator), cells.apply)
    autoencoder.standardise(model, np.random.default_rng(SEED), LATENT_MEAN, LATENT_STD)
    return model


def train_model(out: Path, encoder, steps: int, rate: float = 2e-3):
    model = diffusion.build()
    matrices = [
        p for key, p in model.named_parameters() if key.startswith("blocks") and p.ndim == 2
    ]
    rest = [p for p in model.parameters() if all(p is not matrix for matrix in matrices)]
    muon = torch.optim.Muon(matrices, lr=rate, weight_decay=0.02, adjust_lr_fn="match_rms_adamw")
    stage = Stage("model", out, model, [muon, adam(rest, rate, 0.01)], steps, rate, average=0.998)
    if stage.step == steps:
        return stage.average
    pool = diffusion.WorldPool(encoder, LATENT_MEAN, LATENT_STD, stage.rng, 384)

    def loss(step):
        pool.refresh(1)
        size, chunks = (4, 10) if step % 4 else (2, 24)
        return diffusion.forcing_loss(model, pool, stage.generator, size, chunks)

    return stage.run(loss)


def train_decoder(out: Path, model, steps: int):
    model.encoder.requires_grad_(False)
    model.conv1.requires_grad_(False)
    trained = [p for p in (*model.decoder.parameters(), *model.conv2.parameters())]
    stage = Stage("decoder", out, model, [adam(trained, 2e-3)], steps, 2e-3, average=0.995)
    return stage.run(
        lambda step: autoencoder.clip_loss(model, stage.rng, stage.generator, LATENT_STD)
    )


def pack(video_model, vae):
    """Write both files; fp16 halves them and costs the picture nothing that can be seen."""
    WEIGHTS.mkdir(exist_ok=True)
    about = {"licence": "Apache-2.0", "made_by": "demo/train.py"}
    half = {name: p.half().contiguous() for name, p in video_model.state_dict().items()}
    config = json.dumps({"transformer": {**diffusion.CONFIG, "causal_ar": True}})
    save_file(
        half,
        WEIGHTS / "demo_world.safetensors",
        {**about, "config": config, PROFILE: DEMO_PROFILE.to_json()},
    )
    save_file(
        {name: p.half().contiguous() for name, p in vae.state_dict().items()},
        WEIGHTS / "demo_world_vae.safetensors",
        about,
    )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path(__file__).parents[1] / ".dev" / "training",
        help="checkpoints",
    )
    parser.add_argument(
        "--steps-scale",
        type=float,
        default=1.0,
        help="a fraction of every stage's steps, to try the script out",
    )
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(SEED)

    def steps(count: int) -> int:
        return max(1, round(count * args.steps_scale))

    vae = train_autoencoder(args.out, steps(1200))
    video_model = train_model(args.out, vae, steps(3600))
    pack(video_model, train_decoder(args.out, vae, steps(2000)))


if __name__ == "__main__":
    main()
