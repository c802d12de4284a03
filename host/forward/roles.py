"""FlashForward's planner and renderer on MODELs of their own: what must fit, a guider for each, and
the host's loading at each change.
"""

import copy
from collections.abc import Callable
from dataclasses import asdict, replace

import comfy.model_patcher
import comfy.sampler_helpers
import comfy.samplers
from torch import Tensor

from ...kv_policies import FlashForward, KVPolicy
from ..model.backbone import control_channels, read_geometry, require_wan
from ..model.compute_dtype import compute_dtype
from ..model.profiles import ARProfile
from .attention import require_patched

ROLES = ("planner_model", "renderer_model")
NOISY_HISTORY = (
    "FlashForward: the sampler's model plays both roles, and its profile does not say that it was "
    "trained to read noisy history, "
    "so expect the take to drift. Connect planner_model and renderer_model with the roles' LoRAs."
)


def split_roles(policy: KVPolicy) -> tuple[KVPolicy, dict[str, object]]:
    """The policy with words in its MODELs' places, which stats can tell, and those MODELs by role."""
    if not isinstance(policy.schedule, FlashForward):
        return policy, {}
    models = {
        role: getattr(policy.schedule, role)
        for role in ROLES
        if getattr(policy.schedule, role) is not None
    }
    words = {role: "its own" if role in models else "the sampler's" for role in ROLES}
    return replace(policy, schedule=replace(policy.schedule, **words)), models


def role_notes(policy: KVPolicy, models: dict[str, object], profile: ARProfile) -> tuple[str, ...]:
    """The warning, where FlashForward has one model for both roles that was not trained for it."""
    return (NOISY_HISTORY,) * (
        isinstance(policy.schedule, FlashForward) and not models and not profile.noisy_history
    )


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


def check_roles(models: dict[str, object], guider, shape: tuple[int, ...]):
    """Raise ValueError, in a sentence, where a role's MODEL cannot take turns with the sampler's."""
    if models and any("hooks" in cond for group in guider.conds.values() for cond in group):
        raise ValueError(
            "A conditioning with hooks changes the weights of the sampler's model alone, and this "
            "take has a model for a role. "
            "Remove the hooks, and put a LoRA node before the role's model."
        )
    for role, model in models.items():
        require_wan(model)
        require_patched(model, f"The {role}", "Connect it by KV Policy: FlashForward Anchors.")
        if model.get_additional_models_with_key("multigpu"):
            raise ValueError(
                f"The {role} is spread over several devices, and a role runs on one. Bypass its "
                "multi-GPU node."
            )
        expected = _traits(guider.model_patcher, shape)
        for name, value in _traits(model, shape).items():
            if value != expected[name]:
                raise ValueError(
                    f"The {role} has {name} {value}, the sampler's model {expected[name]}. The "
                    "roles read each other's keys and values: "
                    "use the same checkpoint for both, with a LoRA for the role."
                )


def guider_of_role(
    model, guider, sigmas: Tensor, noise: Tensor, latent_image: Tensor | None, seed: int | None
):
    """The take's guider over another MODEL: the same rule and strength, prompts encoded by that
    model, under their ids.
    """
    role = copy.copy(guider)
    role.model_patcher, role.inner_model = (
        model.clone(),
        model.model,
    )  # a clone: what this take registers on it goes with the take
    role.model_options = comfy.model_patcher.create_model_options_clone(
        role.model_patcher.model_options
    )
    role.conds = {name: [cond.copy() for cond in group] for name, group in guider.conds.items()}
    comfy.sampler_helpers.prepare_model_patcher(role.model_patcher, role.conds, role.model_options)
    device = model.load_device
    role.model_options["transformer_options"]["sample_sigmas"] = sigmas.to(device)
    comfy.samplers.cast_to_load_options(
        role.model_options, device=device, dtype=model.model_dtype()
    )
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
    one of them can be.
    """

    def __init__(self, guider, shape_to_load: Callable):
        """`shape_to_load(model, cache)`: the latent shape by which the host estimates a forward's
        memory, with the cache's or without.
        """
        self._now, self._shape_to_load, self._loaded = guider, shape_to_load, []

    def take(self, guider, cache: bool):
        if guider is self._now:
            return
        # No options: their wrapper would announce the cache once more, also where it is allocated
        # already.
        _, _, more = comfy.sampler_helpers.prepare_sampling(
            guider.model_patcher, self._shape_to_load(guider.model_patcher, cache), guider.conds, {}
        )
        guider.model_patcher.pre_run()
        self._now, self._loaded = guider, [*self._loaded, guider.model_patcher, *more]

    def close(self):
        comfy.sampler_helpers.cleanup_additional_models(dict.fromkeys(self._loaded))
