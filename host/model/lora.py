"""A LoRA on a MODEL, through the host's own code, at the strength that it was trained with."""

from __future__ import annotations

import json
import math
import os
import re
from dataclasses import dataclass, field

import comfy.sd
import comfy.weight_adapter
from torch import Tensor

from .layouts import read_checkpoint, wan_name

PEFT_DOWN = ".lora_A.weight"
PEFT_CONFIG = "adapter_config.json"  # that PEFT writes beside its file
DIFFUSERS_HEADER = "lora_adapter_metadata"  # PEFT's configuration, in Diffusers' safetensors header
ALPHA_HEADERS = ("lora_alpha", "ss_network_alpha", "alpha")  # of other trainers
# What the host reads of a LoRA's layer. PEFT also writes the magnitudes of DoRA, and biases.
READ = ("_A.weight", "_B.weight", "_up.weight", "_down.weight", "_mid.weight")


@dataclass(frozen=True, kw_only=True)
class PeftConfig:
    """What PEFT's configuration says of a LoRA's strength. In PEFT a layer's update counts
    alpha / rank, or alpha / sqrt(rank) with `use_rslora`; a LoRA's own file has no alpha.
    """

    lora_alpha: float
    r: int | None = None  # the rank; None where it is not said
    use_rslora: bool = False
    alpha_pattern: dict[str, float] = field(default_factory=dict)  # layers with another alpha
    rank_pattern: dict[str, int] = field(default_factory=dict)  # and with another rank

    @classmethod
    def from_dict(cls, values: dict) -> PeftConfig | None:
        if not isinstance(values.get("lora_alpha"), (int, float)):
            return None
        return cls(
            lora_alpha=values["lora_alpha"],
            r=values.get("r"),
            use_rslora=bool(values.get("use_rslora")),
            alpha_pattern=values.get("alpha_pattern") or {},
            rank_pattern=values.get("rank_pattern") or {},
        )

    def fits(self, ranks: dict[str, int]) -> bool:
        """Whether it can be that of a LoRA with layers of these ranks."""
        return self.r is None or all(
            rank == _of_layer(layer, self.rank_pattern, self.r) for layer, rank in ranks.items()
        )

    def host_alpha(self, layer: str, rank: int) -> float:
        """The alpha that makes the host's alpha / rank PEFT's factor."""
        alpha = _of_layer(layer, self.alpha_pattern, self.lora_alpha)
        return alpha * math.sqrt(rank) if self.use_rslora else alpha


def _of_layer(layer: str, patterns: dict, default):
    for pattern, value in patterns.items():
        plain = wan_name(f"{pattern}.weight").removesuffix(".weight")
        if re.fullmatch(rf"(.*\.)?({plain})", layer):
            return value
    return default


@dataclass(frozen=True, kw_only=True)
class Lora:
    """A LoRA's tensors under Wan's names, and how it is called in words."""

    tensors: dict[str, Tensor]
    source: str
    config: PeftConfig | None = None  # that its files or the user give

    def ranks(self) -> dict[str, int]:
        """Rank of each layer whose alpha is not in the file."""
        return {
            key.removesuffix(PEFT_DOWN): tensor.shape[0]
            for key, tensor in self.tensors.items()
            if key.endswith(PEFT_DOWN)
            and f"{key.removesuffix(PEFT_DOWN)}.alpha" not in self.tensors
        }


def read_lora(path: str) -> Lora:
    contents = read_checkpoint(path)
    lora = Lora(tensors={**contents.weights, **contents.lora}, source=f"'{os.path.basename(path)}'")
    for config in (_config_in(contents.metadata), _config_beside(path)):
        if config and config.fits(lora.ranks()):
            return Lora(tensors=lora.tensors, source=lora.source, config=config)
    return lora


def _config_in(metadata: dict[str, str]) -> PeftConfig | None:
    """The configuration in a safetensors header."""
    try:
        if DIFFUSERS_HEADER in metadata:
            values = json.loads(metadata[DIFFUSERS_HEADER])
            return PeftConfig.from_dict(
                {key.removeprefix("transformer."): value for key, value in values.items()}
            )
        for key in ALPHA_HEADERS:
            if key in metadata:
                return PeftConfig(lora_alpha=float(metadata[key]))
    except (ValueError, AttributeError, RecursionError):
        pass  # a header of another meaning
    return None


def _config_beside(path: str) -> PeftConfig | None:
    try:
        with open(os.path.join(os.path.dirname(path), PEFT_CONFIG), encoding="utf-8") as file:
            return PeftConfig.from_dict(json.load(file))
    except (OSError, ValueError, AttributeError, RecursionError):
        return None


def with_lora(model, lora: Lora, alpha: float, alpha_is_rank: bool) -> tuple[object, str]:
    """Put the host's own LoRA on a clone, at strength 1; return the clone and, in words, the number
    of layers that it is on. ValueError when it belongs to another model or does not say its alpha.

    `alpha` is the user's, 0 for what the files say; `alpha_is_rank` where it is known to be so.
    """
    parts = [
        key
        for key in lora.tensors
        if ".lora_" in key and not key.endswith(READ) and not key.startswith("lora_")
    ]
    if parts:
        raise ValueError(
            f"The LoRA {lora.source} has {len(parts)} tensor(s) that ComfyUI does not apply, "
            f"'{parts[0]}' first, and would be another one without them. Merge it into its model "
            "where it was trained, or choose another."
        )
    alphas, words = _alphas(lora, alpha, alpha_is_rank)
    named = {
        key if key.startswith("lora_") else f"diffusion_model.{key}": value
        for key, value in {**lora.tensors, **alphas}.items()
    }
    patched, _ = comfy.sd.load_lora_for_models(model, None, named, 1.0, 0.0)
    before = {key: len(patches) for key, patches in model.patches.items()}
    new = {
        key: patches[-1][1]
        for key, patches in patched.patches.items()
        if len(patches) > before.get(key, 0)
    }
    if not new:
        raise ValueError(
            f"The LoRA {lora.source} fits nothing in this model; it begins with "
            f"'{next(iter(lora.tensors))}'. Choose the LoRA that was made for it, or none."
        )
    _require_shapes(new, model.model.state_dict(), lora.source)
    layers = sum(key.endswith((PEFT_DOWN, ".lora_down.weight")) for key in named)
    unused = f" ({layers - len(new)} more fit nothing)" if layers > len(new) else ""
    return patched, f"{len(new)} layer(s){unused}{words}"


def _alphas(lora: Lora, alpha: float, alpha_is_rank: bool) -> tuple[dict[str, Tensor], str]:
    """The alpha of each layer whose own the file does not hold, and words for the user."""
    ranks = lora.ranks()
    config = PeftConfig(lora_alpha=alpha) if alpha else lora.config
    if not ranks or not config and alpha_is_rank:
        return {}, ""  # the host takes the rank
    if config is None:
        rank = max(ranks.values())
        raise ValueError(
            f"The LoRA {lora.source} does not say its alpha, and a wrong one makes it too strong "
            f"or too weak. Its rank is {rank}: set lora_alpha to that if it was trained with alpha "
            f"equal to rank, else to its own; or put its {PEFT_CONFIG} beside it."
        )
    alphas = {layer: config.host_alpha(layer, rank) for layer, rank in ranks.items()}
    factors = sorted({alphas[layer] / rank for layer, rank in ranks.items()})
    several = " and ".join(f"{factor:g}" for factor in factors)
    words = "" if factors == [1.0] else f" with alpha {several} times its rank"
    tensors = {f"{layer}.alpha": Tensor([value]).squeeze() for layer, value in alphas.items()}
    return tensors, words


def _require_shapes(adapters: dict, weights: dict[str, Tensor], source: str):
    """ValueError where a LoRA is of another size than the weight that it is for. The host finds out
    when it samples, and goes on without it.
    """
    for key, adapter in adapters.items():
        if not isinstance(adapter, comfy.weight_adapter.LoRAAdapter):
            continue
        up, down = adapter.weights[:2]
        shape = (up.shape[0], *down.shape[1:])
        if shape != tuple(weights[key].shape):
            raise ValueError(
                f"The LoRA {source} was made for another size of model: for '{key}' it is "
                f"{list(shape)}, the model's weight {list(weights[key].shape)}. Choose the LoRA "
                "that was made for it, or none."
            )
