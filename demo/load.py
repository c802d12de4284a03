"""The shipped world as ComfyUI's own MODEL, CLIP and VAE."""

from itertools import product
from pathlib import Path

import comfy.sd
import comfy.supported_models_base
import comfy.utils
import torch

from ..host.model.checkpoint import load_ar_model
from ..host.take.patch import patch
from . import text, world

WEIGHTS = Path(__file__).parent / "weights"
ON_THE_CPU = {
    "load_device": torch.device("cpu"),
    "offload_device": torch.device("cpu"),
}  # the text encoder has no weights to move


class Tokenizer:
    """The host's tokenizer call: a prompt as the concepts that the world knows. Weights in
    parentheses have no effect.
    """

    def __init__(self, embedding_directory=None, tokenizer_data={}):
        pass

    def tokenize_with_weights(self, prompt: str, return_word_ids=False, **kwargs):
        return {"demo_world": text.words(prompt)}


class TextEncoder(torch.nn.Module):
    """The host's text encoder call, without weights."""

    dtypes = {torch.float32}

    def __init__(self, dtype=None, device=None, model_options={}):
        super().__init__()

    def encode_token_weights(self, tokens):
        return text.embed(tokens["demo_world"]), torch.zeros(1, text.WIDTH)

    def set_clip_options(self, options):
        pass

    def reset_clip_options(self):
        pass

    def load_sd(self, weights):
        return [], []


def load_demo_world():
    """Return MODEL (with its AR profile), CLIP and VAE."""
    model = patch(load_ar_model(str(WEIGHTS / "demo_world.safetensors"), profile=None))
    clip = comfy.sd.CLIP(
        comfy.supported_models_base.ClipTarget(Tokenizer, TextEncoder), model_options=ON_THE_CPU
    )
    vae = comfy.sd.VAE(sd=comfy.utils.load_torch_file(str(WEIGHTS / "demo_world_vae.safetensors")))
    fit_preview_colours(model.model.latent_format, vae)
    return model, clip, vae


def fit_preview_colours(latent_format, vae):
    """Give the host's latent previews this VAE's colours, and not Wan's: least squares of the
    world's cells on their latents.
    """
    pictures = torch.stack(
        [
            world.draw(seed, world.COLUMNS, time, district)
            for seed, (time, district) in enumerate(product(world.TIMES, world.DISTRICTS))
        ]
    )
    latents = torch.cat([vae.encode(picture.movedim(0, -1)[None]) for picture in pictures])
    cells = (
        torch.nn.functional.avg_pool2d(pictures, world.CELL).movedim(1, -1).flatten(0, 2) * 2 - 1
    )
    known = latent_format.process_in(latents)[:, :, 0].movedim(1, -1).flatten(0, 2).float()
    *factors, bias = torch.linalg.lstsq(
        torch.cat([known, torch.ones(len(known), 1)], 1), cells
    ).solution.tolist()
    latent_format.latent_rgb_factors, latent_format.latent_rgb_factors_bias = factors, bias
