"""Measure how much each attention head matters: mask one after another and see what becomes of the
take.
"""

import hashlib
import json
import logging
import os
import time
from dataclasses import dataclass, replace
from pathlib import Path

import comfy.samplers
import comfy.utils
import folder_paths
import torch
from torch import Tensor

from ...kv_policies import HeadTable, KVPolicy
from ...kv_policies.selection.masked_head import MaskedHead
from ..files.names import plain_name
from ..model.backbone import require_wan
from ..model.profiles import ARProfile, profile_of
from ..take.take import sample_take
from .heads import TABLES, model_name, save_json

CRITIC_FRAMES = 21  # latent frames that a bidirectional score model sees at once
CRITIC_SIGMAS = (0.9, 0.7, 0.5)  # noise levels at which the two scores are compared


@dataclass
class Critics:
    """The two models of Distribution Matching Distillation (arXiv 2405.14867), as ComfyUI MODELs,
    and their prompts.
    """

    real: object
    fake: object
    positive: list
    negative: list | None
    real_cfg: float
    seed: int

    def loss(self, latents: Tensor) -> float:
        """0.5 mean(g^2), g = (x0_fake - x0_real) / mean|x - x0_real|, over windows, noise levels
        and the batch of raw latents.
        """
        losses = []
        for window in latents.split(CRITIC_FRAMES, 2):
            for number, sigma in enumerate(CRITIC_SIGMAS):
                noise = torch.randn(
                    window.shape, generator=torch.Generator().manual_seed(self.seed + number)
                )
                real = predict(
                    self.real,
                    self.positive,
                    self.negative,
                    self.real_cfg if self.negative else 1.0,
                    window,
                    noise,
                    sigma,
                )
                fake = predict(self.fake, self.positive, None, 1.0, window, noise, sigma)
                gradient = (fake - real) / (window.cpu() - real).abs().mean(
                    (1, 2, 3, 4), keepdim=True
                ).clamp(min=1e-8)
                losses.append(0.5 * gradient.square().mean())
        return float(torch.stack(losses).mean())


class OneForward(comfy.samplers.Sampler):
    """A host sampler that asks the model once."""

    def sample(
        self,
        model_wrap,
        sigmas,
        extra_args,
        callback,
        noise,
        latent_image=None,
        denoise_mask=None,
        disable_pbar=False,
    ):
        x = model_wrap.inner_model.model_sampling.noise_scaling(
            sigmas[0], noise, latent_image, False
        )
        return model_wrap(x, sigmas[0] * x.new_ones(len(x)), **extra_args)


def predict(
    model, positive, negative, cfg: float, latents: Tensor, noise: Tensor, sigma: float
) -> Tensor:
    """A MODEL's clean prediction of noised latents, raw as they came, on the CPU."""
    guider = comfy.samplers.CFGGuider(model)
    guider.inner_set_conds(
        {"positive": positive} if negative is None else {"positive": positive, "negative": negative}
    )
    guider.set_cfg(cfg)
    return (
        guider.sample(
            noise, latents, OneForward(), torch.tensor([sigma, 0.0]), disable_pbar=True, seed=0
        )
        .float()
        .cpu()
    )


def calibrate_heads(
    model,
    positive,
    latent: dict,
    *,
    seed: int,
    name: str,
    policy: KVPolicy | None = None,
    prefix: dict | None = None,
    control: Tensor | None = None,
    real=None,
    fake=None,
    negative=None,
    real_cfg: float = 3.0,
) -> tuple[HeadTable, Path]:
    """Mask each head in a take of its own and measure the damage; return the table and the path it
    was written to.

    With both score models it is the Distribution Matching loss of the masked take, the paper's
    measure; else the mean squared drift of its latents from the unmasked take's. What was measured
    is written after every head, and a call with the same inputs and name goes on where the last one
    ended.
    """
    if (real is None) != (fake is None):
        raise ValueError(
            f"Only the {'fake' if real is None else 'real'} score model is connected. The "
            "Distribution Matching loss needs both; "
            "connect the other one, or none to measure the drift."
        )
    plain_name(name)
    policy = policy or (profile_of(model.model_options) or ARProfile()).policy()
    critics = None if real is None else Critics(real, fake, positive, negative, real_cfg, seed)
    attention = require_wan(model).blocks
    layers, heads = len(attention), attention[0].self_attn.num_heads

    def take(selection=None, callback=lambda *a: None) -> Tensor:
        chosen = policy if selection is None else replace(policy, selection=selection)
        made, _ = sample_take(
            model,
            positive,
            None,
            1.0,
            latent,
            seed=seed,
            policy=chosen,
            prefix=prefix,
            control=control,
            callback=callback,
        )
        return made["samples"].float().cpu()

    began = time.perf_counter()
    plain = take()
    minutes = (time.perf_counter() - began) * layers * heads / 60
    partial = Partial(name, fingerprint(model, positive, plain, policy, critics))
    left = layers * heads - len(partial.scores)
    logging.info(
        "Keepsake: calibrating %d heads, one take each; about %.1f minutes%s",
        left,
        minutes * left / (layers * heads),
        f" ({len(partial.scores)} heads were measured before)" if partial.scores else "",
    )
    process_in, bar = model.model.process_latent_in, comfy.utils.ProgressBar(layers * heads)
    for layer in range(layers):
        for head in range(heads):
            if (layer, head) not in partial.scores:
                masked = take(MaskedHead(layer, head))
                drift = (process_in(masked) - process_in(plain)).square().mean()
                partial.add(layer, head, float(drift) if critics is None else critics.loss(masked))
            bar.update_absolute(len(partial.scores))
    table = HeadTable(
        model_name(model),
        "x0_drift" if critics is None else "dm_loss",
        tuple(
            tuple(partial.scores[layer, head] for head in range(heads)) for layer in range(layers)
        ),
    )
    path = save_json(TABLES, name, table.to_json())
    partial.remove()
    return table, path


class Partial:
    """Scores so far, in a file beside the tables; another model or take begins anew."""

    def __init__(self, name: str, key: str):
        folder, stem, *_ = folder_paths.get_save_image_path(
            os.path.join(TABLES, name), folder_paths.get_output_directory()
        )
        self.path, self.key, self.scores = os.path.join(folder, f"{stem}.partial.json"), key, {}
        try:
            with open(self.path, encoding="utf-8") as file:
                told = json.load(file)
            if told["key"] == key:
                self.scores = {
                    (int(layer), int(head)): float(score) for layer, head, score in told["scores"]
                }
        except (OSError, ValueError, KeyError, TypeError):
            pass  # none, or half a file: begin anew

    def add(self, layer: int, head: int, score: float):
        self.scores[layer, head] = score
        with open(self.path + ".new", "w", encoding="utf-8") as file:
            json.dump(
                {
                    "key": self.key,
                    "scores": [[*which, score] for which, score in self.scores.items()],
                },
                file,
            )
        os.replace(self.path + ".new", self.path)

    def remove(self):
        if os.path.exists(self.path):
            os.remove(self.path)


def fingerprint(model, positive, plain: Tensor, policy: KVPolicy, critics: Critics | None) -> str:
    """What a calibration's scores depend on. The unmasked take's latents stand for the model, the
    prompt, the noise and the control.
    """
    told = f"{model_name(model)} {tuple(plain.shape)} {policy} {critics and critics.real_cfg}"
    return hashlib.sha256(told.encode() + plain.numpy().tobytes()).hexdigest()
