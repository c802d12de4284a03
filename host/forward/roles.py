"""Roles of a schedule on MODELs of their own: what must fit, a guider for each, and the host's
loading at each change.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import asdict

import comfy.model_patcher
import comfy.sampler_helpers
import comfy.samplers
from torch import Tensor

from ..model.backbone import control_channels, read_geometry, require_wan
from ..model.compute_dtype import compute_dtype
from .attention import require_patched
from .conditioning import has_hooks


def _traits(model, shape: tuple[int, ...]) -> dict:
    """What two models must have in common to read each other's keys and values, the latent's
    `shape` being [B, C, T, 2h, 2w].
    """
    rope = model.model_options.get("transformer_options", {}).get("rope_options", {})
    return {
        **asdict(read_geometry(model, shape[3], shape[4], 1)),
        "control_channels": control_channels(model),
        "latent_format": type(model.get_model_object("latent_format")).__name__,
        "dtype": str(compute_dtype(model)),
        "device": str(model.load_device),
        "rope_scale_t": rope.get("scale_t", 1.0),
    }


def check_roles(models: Mapping[str, object], guider, shape: tuple[int, ...]):
    """Raise ValueError, in a sentence, where a role's MODEL cannot take turns with the sampler's.

    `models` by role; the messages call each by the node input that it came in by.
    """
    if models and has_hooks(guider):
        raise ValueError(
            "A conditioning with hooks changes the weights of the sampler's model alone, and this "
            "take has a model for a role. "
            "Remove the hooks, and put a LoRA node before the role's model."
        )
    for role, model in models.items():
        name = f"The {role}_model"
        require_wan(model)
        require_patched(model, name, "Connect it to the policy node, which prepares it.")
        if model.get_additional_models_with_key("multigpu"):
            raise ValueError(
                f"{name} is spread over several devices, and a role runs on one. Bypass its "
                "multi-GPU node."
            )
        expected = _traits(guider.model_patcher, shape)
        for trait, value in _traits(model, shape).items():
            if value != expected[trait]:
                raise ValueError(
                    f"{name} has {trait} {value}, the sampler's model {expected[trait]}. The "
                    "roles read each other's keys and values: "
                    "use the same checkpoint for both, with a LoRA for the role."
                )


def guider_of_role(
    model, guider, sigmas: Tensor, noise: Tensor, latent_image: Tensor | None, seed: int | None
):
    """The take's guider over another MODEL: the same rule and strength, prompts encoded by that
    model, under their ids.
    """
    # 1. A copy over a clone of the MODEL: what this take registers on the clone goes with the take.
    role = copy.copy(guider)
    role.model_patcher = model.clone()
    role.inner_model = model.model
    role.model_options = comfy.model_patcher.create_model_options_clone(
        role.model_patcher.model_options
    )
    role.conds = {name: [cond.copy() for cond in group] for name, group in guider.conds.items()}
    comfy.sampler_helpers.prepare_model_patcher(role.model_patcher, role.conds, role.model_options)

    # 2. Options on its device, as the host's outer sampling call sets them.
    device = model.load_device
    role.model_options["transformer_options"]["sample_sigmas"] = sigmas.to(device)
    comfy.samplers.cast_to_load_options(
        role.model_options, device=device, dtype=model.model_dtype()
    )

    # 3. Prompts encoded by this model.
    latent_image = None if latent_image is None else latent_image.to(device)
    role.conds = comfy.samplers.process_conds(
        role.inner_model,
        noise.to(device),
        role.conds,
        device,
        latent_image,
        seed=seed,
        latent_shapes=[tuple(noise.shape)],
    )
    return role


class Turns:
    """Which guider's model is loaded. Roles with LoRAs on one checkpoint share its weights, so only
    one of them can be loaded at a time.
    """

    def __init__(self, guider, shape_to_load: Callable):
        """`shape_to_load(model, cache)`: the latent shape by which the host estimates a forward's
        memory, with the cache's or without.
        """
        self._now = guider
        self._shape_to_load = shape_to_load
        self._loaded = []

    def claim(self, guider, cache: bool):
        """Load a guider's model, unless it is the one that is loaded."""
        if guider is self._now:
            return
        # No options: their wrapper would announce the cache once more, also where it is allocated
        # already.
        no_options = {}
        shape = self._shape_to_load(guider.model_patcher, cache)
        _, _, more = comfy.sampler_helpers.prepare_sampling(
            guider.model_patcher, shape, guider.conds, no_options
        )
        guider.model_patcher.pre_run()
        self._now = guider
        self._loaded += [guider.model_patcher, *more]

    def close(self):
        comfy.sampler_helpers.cleanup_additional_models(dict.fromkeys(self._loaded))
