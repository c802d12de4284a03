"""Measure how much each attention head matters: make the take once with each head silenced, and
score the damage.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import comfy.samplers
import comfy.utils
import torch
from torch import Tensor

from ...kv_policies import HeadTable, KVPolicy
from ...kv_policies.selection.masked_head import MaskedHead
from ..files.names import free_path, plain_name, writing
from ..model.backbone import require_wan
from ..model.profiles import ARProfile, profile_of
from ..take.take import sample_take
from .heads import PARTIAL, SUFFIX, TABLES, model_name, output_folder, save_json

CRITIC_FRAMES = 21  # latent frames that a bidirectional score model sees at once
CRITIC_SIGMAS = (0.9, 0.7, 0.5)  # noise levels at which the two scores are compared

Head = tuple[int, int]  # layer, and number in it


@dataclass(frozen=True, kw_only=True)
class ScoreModels:
    """The two score models of Distribution Matching Distillation (arXiv 2405.14867), as ComfyUI
    MODELs, and what they are asked with.
    """

    real: object  # the teacher
    fake: object  # the critic that was trained on the model's own output
    positive: list
    negative: list | None  # for the real one alone
    real_cfg: float
    seed: int

    def loss(self, latents: Tensor) -> float:
        """Distribution Matching loss of raw latents `[B, C, T, 2h, 2w]`.

        0.5 mean(g^2) with g = (x0_fake - x0_real) / mean|x - x0_real|, over windows of
        CRITIC_FRAMES, noise levels and the batch.
        """
        losses = [
            self._window_loss(window, level)
            for window in latents.split(CRITIC_FRAMES, 2)
            for level in range(len(CRITIC_SIGMAS))
        ]
        return float(torch.stack(losses).mean())

    def _window_loss(self, window: Tensor, level: int) -> Tensor:
        """The loss of one window at one of CRITIC_SIGMAS."""
        generator = torch.Generator().manual_seed(self.seed + level)
        noise = torch.randn(window.shape, generator=generator)
        sigma = CRITIC_SIGMAS[level]
        real_cfg = self.real_cfg if self.negative else 1.0
        real = predict(self.real, self.positive, self.negative, real_cfg, window, noise, sigma)
        fake = predict(self.fake, self.positive, None, 1.0, window, noise, sigma)
        scale = (window.cpu() - real).abs().mean((1, 2, 3, 4), keepdim=True).clamp(min=1e-8)
        return 0.5 * ((fake - real) / scale).square().mean()


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
        sampling = model_wrap.inner_model.model_sampling
        x = sampling.noise_scaling(sigmas[0], noise, latent_image, False)
        return model_wrap(x, sigmas[0] * x.new_ones(len(x)), **extra_args)


def predict(
    model, positive, negative, cfg: float, latents: Tensor, noise: Tensor, sigma: float
) -> Tensor:
    """A MODEL's prediction of the clean latents, from raw `latents` noised to `sigma`; raw too, in
    fp32 on the CPU.
    """
    conds = {"positive": positive}
    if negative is not None:
        conds["negative"] = negative
    guider = comfy.samplers.CFGGuider(model)
    guider.inner_set_conds(conds)
    guider.set_cfg(cfg)
    sigmas = torch.tensor([sigma, 0.0])
    clean = guider.sample(noise, latents, OneForward(), sigmas, disable_pbar=True, seed=0)
    return clean.float().cpu()


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
    """Make a take for each head with that head silenced, and measure the damage; return the table
    and the path that it was written to.

    With both score models the damage is the Distribution Matching loss of the silenced take, the
    paper's measure. With none it is a proxy: the mean squared drift of its latents from those of
    the untouched take. Scores are written after every head, and a call with the same inputs and
    name goes on where the last one ended.
    """
    # 1. Refuse now, and not after the takes.
    score_models = _score_models(real, fake, positive, negative, real_cfg, seed)
    plain_name(name)
    free_path(name, output_folder(TABLES), SUFFIX)
    policy = policy or (profile_of(model.model_options) or ARProfile()).policy()
    heads_by_layer = [block.self_attn.num_heads for block in require_wan(model).blocks]

    latents_of_take = partial(
        _latents_of_take,
        model=model,
        positive=positive,
        latent=latent,
        seed=seed,
        prefix=prefix,
        control=control,
    )

    # 2. The untouched take, which also says how long the others will take.
    began = time.perf_counter()
    untouched = latents_of_take(policy)
    seconds_a_take = time.perf_counter() - began

    # 3. The scores that an earlier, interrupted call left.
    key = calibration_key(model, untouched, policy, score_models)
    saved = SavedScores(name, key)
    _log_estimate(sum(heads_by_layer), len(saved.scores), seconds_a_take)

    # 4. A take for each of the other heads.
    damage = score_models.loss if score_models else _drift_from(untouched, model)

    def damage_without(head: Head) -> float:
        return damage(latents_of_take(replace(policy, selection=MaskedHead(*head))))

    _score_heads(heads_by_layer, saved, damage_without)

    # 5. The table.
    measure = "dm_loss" if score_models else "x0_drift"
    table = HeadTable(model_name(model), measure, saved.by_layer(heads_by_layer))
    path = save_json(TABLES, name, table.to_json())
    saved.remove()
    return table, path


def _score_models(real, fake, positive, negative, real_cfg: float, seed: int) -> ScoreModels | None:
    """None where neither score model is connected; ValueError where only one is."""
    if (real is None) != (fake is None):
        raise ValueError(
            f"Only the {'fake' if real is None else 'real'} score model is connected. The "
            "Distribution Matching loss needs both; connect the other one, or none to measure the "
            "drift."
        )
    if real is None:
        return None
    return ScoreModels(
        real=real, fake=fake, positive=positive, negative=negative, real_cfg=real_cfg, seed=seed
    )


def _latents_of_take(policy: KVPolicy, *, model, positive, latent: dict, **inputs) -> Tensor:
    """Raw latents of a take, in fp32 on the CPU; `inputs` of `sample_take`."""
    latents, _ = sample_take(
        model,
        positive,
        None,
        1.0,
        latent,
        policy=policy,
        callback=lambda *_: None,
        **inputs,
    )
    return latents["samples"].float().cpu()


def _drift_from(untouched: Tensor, model) -> Callable[[Tensor], float]:
    """The mean squared difference of normalised latents from those of the untouched take."""
    normalised = model.model.process_latent_in
    return lambda silenced: float((normalised(silenced) - normalised(untouched)).square().mean())


def _score_heads(
    heads_by_layer: list[int], saved: SavedScores, damage_without: Callable[[Head], float]
):
    """Measure every head that has no saved score yet, and save each score at once."""
    bar = comfy.utils.ProgressBar(sum(heads_by_layer))
    for layer, heads in enumerate(heads_by_layer):
        for head in range(heads):
            if (layer, head) not in saved.scores:
                saved.add(layer, head, damage_without((layer, head)))
            bar.update_absolute(len(saved.scores))


def _log_estimate(heads: int, measured: int, seconds_a_take: float):
    left = heads - measured
    earlier = f" ({measured} heads were measured before)" if measured else ""
    minutes = seconds_a_take * left / 60
    logging.info(
        "Keepsake: calibrating %d heads, one take each; about %.1f minutes%s",
        left,
        minutes,
        earlier,
    )


class SavedScores:
    """Scores so far, by layer and head, in a file beside the tables. Those of another model or take
    are not read.
    """

    def __init__(self, name: str, key: str):
        # Without the date that the table's name may have, so that tomorrow finds it again.
        stem = re.sub("[%:]", "", name)
        self.path = Path(output_folder(TABLES), f"{stem}{PARTIAL}")
        self.key = key  # a `calibration_key`
        self.scores: dict[Head, float] = {}
        try:
            content = json.loads(self.path.read_text(encoding="utf-8"))
            if content["key"] == key:
                self.scores = {
                    (int(layer), int(head)): float(score)
                    for layer, head, score in content["scores"]
                }
        except (OSError, ValueError, KeyError, TypeError):
            pass  # no file, or half a one: begin anew

    def add(self, layer: int, head: int, score: float):
        self.scores[layer, head] = score
        rows = [[*place, score] for place, score in self.scores.items()]
        unfinished = self.path.with_name(f"{self.path.name}.new")
        with writing(self.path):
            unfinished.write_text(json.dumps({"key": self.key, "scores": rows}), encoding="utf-8")
            os.replace(unfinished, self.path)

    def by_layer(self, heads_by_layer: list[int]) -> tuple[tuple[float, ...], ...]:
        """The scores of all heads, in their order."""
        return tuple(
            tuple(self.scores[layer, head] for head in range(heads))
            for layer, heads in enumerate(heads_by_layer)
        )

    def remove(self):
        with writing(self.path):
            self.path.unlink(missing_ok=True)


def calibration_key(
    model, untouched: Tensor, policy: KVPolicy, score_models: ScoreModels | None
) -> str:
    """A hash of what a calibration's scores depend on. The untouched take's latents stand for the
    model's weights, the prompt, the noise and the control.
    """
    real_cfg = score_models and score_models.real_cfg
    words = f"{model_name(model)} {tuple(untouched.shape)} {policy} {real_cfg}"
    return hashlib.sha256(words.encode() + untouched.numpy().tobytes()).hexdigest()
