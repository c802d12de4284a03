"""Conditionings as the chunk loop needs them: which ones run, one batch item's share, control, and
what cannot be cut.
"""

import math

import comfy.samplers
import torch

from ...kv_policies import Schedule
from ...kv_policies.words import title_of
from ..model.backbone import text_width
from ..model.profiles import ARProfile
from ..model.tensors import require_finite_input
from .controls import Control, check_control

UNCUTTABLE = {
    "area": "an area",
    "mask": "a mask",
    "control": "a ControlNet",
    "gligen": "GLIGEN boxes",
    "time_dim_concat": "frames beside the video",
    "context_latents": "context latents",
}


def active_conditionings(guider) -> dict[str, list[dict]]:
    """The guider's conditionings that its model calls run, by its name for them; at cfg 1 the host
    leaves the negative out.
    """
    # Guiders with a rule of their own run all that they have.
    is_plain = type(guider).predict_noise is comfy.samplers.CFGGuider.predict_noise
    runs_all = guider.model_options.get("disable_cfg1_optimization", False)
    active = dict(guider.conds)
    if is_plain and math.isclose(guider.cfg, 1.0) and not runs_all:
        active.pop("negative", None)
    return active


def prompt_name(group: str) -> str:
    """What notes call the prompts of a guider's group."""
    return "prompt" if group == "positive" else f"{group} prompt"


def has_hooks(guider) -> bool:
    """Whether any conditioning changes weights or options of the model while it is sampled."""
    return any("hooks" in cond for cond in all_of(guider.conds))


def conditioning_of_item(conds: dict, item: int, batch: int) -> dict:
    """Conditionings with the row of one batch item."""
    if batch == 1:
        return conds

    def row_of(value):
        tensor = getattr(value, "cond", None)
        if not torch.is_tensor(tensor) or tensor.ndim == 0 or len(tensor) == 1:
            return value
        row = item % len(tensor)  # fewer rows than items go round, as in the host
        return value._copy_with(tensor[row : row + 1])

    def cond_of(cond: dict) -> dict:
        rows = {key: row_of(value) for key, value in cond["model_conds"].items()}
        return {**cond, "model_conds": rows}

    return {name: [cond_of(cond) for cond in group] for name, group in conds.items()}


def all_of(conds: dict[str, list[dict]]) -> list[dict]:
    """The conditionings of all groups."""
    return [cond for group in conds.values() for cond in group]


def check_conditioning(
    guider, model, control: Control | None, shape: tuple[int, ...], profile: ARProfile | None
):
    """Refuse conditionings that cannot be cut into chunks, and a control of the wrong length."""
    needs_control = profile is not None and profile.needs_control
    active = active_conditionings(guider)
    for name, group in active.items():
        for value in [value for cond in group for value in cond.values()]:
            if torch.is_tensor(value):
                require_finite_input(prompt_name(name), value)
    width = text_width(model.get_model_object("diffusion_model"))
    for cond in all_of(active):
        text = cond.get("cross_attn")
        if width and torch.is_tensor(text) and text.shape[-1] != width:
            raise ValueError(
                f"A prompt's text is {text.shape[-1]} wide, and this model reads {width}. Encode "
                "it by the model's own text encoder (umt5-xxl for Wan, CLIPLoader's type wan)."
            )
        for key, name in UNCUTTABLE.items():
            if cond.get(key) is not None:
                raise ValueError(
                    f"A conditioning with {name} cannot be cut into chunks. Remove it; prompts "
                    "for the whole picture work."
                )
        if (
            cond.get("reference_latents") is not None
            and model.get_model_object("diffusion_model").ref_conv is not None
        ):
            raise ValueError(
                "A conditioning with reference latents adds tokens that cannot be cut into "
                "chunks. Remove it."
            )
        has_control = control is not None or cond.get("concat_latent_image") is not None
        if needs_control and not has_control:
            raise ValueError(
                f"The model '{profile.name}' follows a camera and none is connected. "
                "Connect its control node (Demo World Camera for the demo world) to the sampler's "
                "control input."
            )
    check_control(model, control, all_of(active), shape)


def check_levels(guider, schedule: Schedule, first_chunk_steps: int):
    """Refuse what depends on a forward's noise level, for forwards whose frames have many."""
    name = title_of(schedule)
    is_ranged = [
        cond.get(kind + "start_percent", 0.0) > 0 or cond.get(kind + "end_percent", 1.0) < 1
        for cond in all_of(active_conditionings(guider))
        for kind in ("", "clip_")
    ]
    if any(is_ranged):
        raise ValueError(
            f"A prompt for a range of noise levels cannot be used with {name}, whose forwards "
            "hold many levels. Use prompts for the "
            "whole range."
        )
    if first_chunk_steps:
        raise ValueError(
            f"This model makes its first chunk in {first_chunk_steps} steps, and {name} has "
            "chunks of one number of steps in flight. "
            f"Use {first_chunk_steps} steps, or another schedule."
        )
