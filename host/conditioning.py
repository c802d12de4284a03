"""Conditionings as the chunk loop needs them: which ones run, one batch item's share, control, and what cannot be cut."""
import math

import torch
from torch import Tensor

from .backbone import control_channels
from .profiles import ARProfile


def active_conditionings(guider) -> list[list[dict]]:
    """The guider's conditionings that its model calls run; at cfg 1 the host leaves the negative out."""
    conds = getattr(guider, "conds", None) or guider.original_conds
    skip_negative = math.isclose(getattr(guider, "cfg", 0.0), 1.0) and not guider.model_options.get("disable_cfg1_optimization", False)
    return [group for name, group in conds.items() if not (name == "negative" and skip_negative)]


def conditioning_of_item(conds: dict, item: int, batch: int) -> dict:
    """Conditionings with the rows of one batch item, where they have a row for each."""
    if batch == 1:
        return conds

    def pick(value):
        tensor = getattr(value, "cond", None)
        rows = torch.is_tensor(tensor) and tensor.ndim > 0 and tensor.shape[0] == batch
        return value._copy_with(tensor[item:item + 1]) if rows else value

    return {name: [{**cond, "model_conds": {key: pick(value) for key, value in cond["model_conds"].items()}} for cond in group]
            for name, group in conds.items()}


def check_conditioning(guider, model, control: Tensor | None, shape: tuple[int, ...], profile: ARProfile):
    """Refuse conditionings that cannot be cut into chunks, and a control of the wrong length."""
    for cond in (cond for group in active_conditionings(guider) for cond in group):
        for key, name in (("area", "an area"), ("mask", "a mask"), ("control", "a ControlNet")):
            if cond.get(key) is not None:
                raise ValueError(f"A conditioning with {name} cannot be cut into chunks. Remove it; prompts for the whole picture work.")
        if control is None and cond.get("concat_latent_image") is None and profile.needs_control:
            raise ValueError(f"The model '{profile.name}' follows a camera and none is connected. "
                             "Connect a Demo World Camera node to the sampler's control input.")
    if control is None:
        return
    channels = control_channels(model)
    if channels != control.shape[1]:
        raise ValueError(f"The control has {control.shape[1]} channels, and this model takes {channels}. "
                         + ("Use the control that belongs to the model." if channels else "Leave the control input open."))
    if (control.shape[2], *control.shape[3:]) != tuple(shape[2:]):
        raise ValueError(f"The control is made for {control.shape[2]} latent frames of {control.shape[3]}x{control.shape[4]}, the take has "
                         f"{shape[2]} of {shape[3]}x{shape[4]}. Connect the same latent to the control node and the sampler.")


def connect_control(guider, model, control: Tensor):
    """Let every conditioning of this run carry the control, `[B, K, T, 2h, 2w]`, on the host's own concat input."""
    # The host normalises that input as if it were a latent, in groups of the latent's channels: undo it beforehand.
    width, out = model.get_model_object("latent_format").latent_channels, control.clone()
    if control.shape[1] % width == 0:
        for i in range(0, control.shape[1], width):
            out[:, i:i + width] = model.model.process_latent_out(out[:, i:i + width])
    for group in guider.conds.values():
        for cond in group:
            cond["concat_latent_image"] = out
