"""What a take follows frame by frame: a control on the host's concat input, or what a world model
follows, as a conditioning value of its own.
"""

from torch import Tensor

from ...kv_policies import Retention
from ...kv_policies.words import title_of
from ..keys import PROMPT_START
from ..model.backbone import control_channels
from ..model.kinds import KINDS, Kind, kind_of_backbone
from ..model.tensors import require_finite_input
from ..model.world_control import CameraInput, WorldControl

Control = Tensor | CameraInput | WorldControl  # a tensor is [B, K, T, 2h, 2w]


def values_of(control: Control | None) -> Tensor | None:
    """Its numbers, with latent frames in the third dimension."""
    return control if control is None or isinstance(control, Tensor) else control.values


def poses_of(control: Control | None) -> Tensor | None:
    """Where the camera stands at each latent frame, fp32 [T, 4, 4], if the control says so."""
    return getattr(control, "poses", None)


def require_poses(retention: Retention, control: Control | None):
    """ValueError, in a sentence, where a retention asks for a camera and the take has none."""
    if retention.needs_poses and poses_of(control) is None:
        name = title_of(retention)
        came = "nothing is" if control is None else "a control without a camera is"
        raise ValueError(
            f"{name} finds what was seen by where the camera stood, and {came} connected to the "
            "sampler's control input. Connect World Camera (for LingBot-World) or Demo World "
            "Camera (for the demo world), or use a policy that needs no camera, such as DeCoPrune."
        )


def check_control(model, control: Control | None, conds: list[dict], shape: tuple[int, ...]):
    """Refuse a control that does not fit the model or the latent's `shape`, and a world model
    without what it follows or begins with. `conds` are the conditionings that run.
    """
    backbone = model.get_model_object("diffusion_model")
    kind = kind_of_backbone(backbone)
    if kind:
        _check_world(kind, control, conds, shape)
        kind.check(backbone, control)
    elif isinstance(control, WorldControl):
        theirs = next(kind.name for kind in KINDS if kind.control == control.name)
        raise ValueError(
            f"The control is that of a {theirs} model, and this MODEL is none, or was loaded "
            "without the tensors that follow it. Load the file with AR Video Model Loader, or "
            "leave the control input open."
        )
    elif control is not None:
        _check_concat(model, values_of(control), shape)
    if control is not None:
        require_finite_input("control", values_of(control))
    for cond in conds:
        _check_start_image(cond.get("concat_latent_image"), shape)


def _check_world(kind: Kind, control: Control | None, conds: list[dict], shape: tuple[int, ...]):
    if getattr(control, "name", None) != kind.control:
        came = "nothing is" if control is None else "another control is"
        raise ValueError(
            f"A {kind.name} model follows the node {kind.node}, and {came} connected to the "
            f"sampler's control input. Connect a {kind.node} node; it can also stand still."
        )
    frames = control.values.shape[2]
    if frames != shape[2]:
        raise ValueError(
            f"{kind.node} made {frames} latent frames, and the take has {shape[2]}. Connect the "
            f"same latent to {kind.node} and to the sampler."
        )
    if any(cond.get("concat_latent_image") is None for cond in conds):
        raise ValueError(
            f"A {kind.name} model goes on from a start image, and a prompt brings none. Put "
            "WanImageToVideo between the prompts and the sampler, with a start image and the "
            "take's length."
        )
    if kind.clip_vision and any(cond.get("clip_vision_output") is None for cond in conds):
        raise ValueError(
            f"A {kind.name} model looks at the start image through CLIP vision, and a prompt "
            "brings none. Connect CLIP Vision Encode (of the start image, with CLIP vision's "
            "ViT-H) to WanImageToVideo's clip_vision_output."
        )
    starts = [cond[PROMPT_START] for cond in conds if PROMPT_START in cond]
    if not kind.reads_text and any(start.start for start in starts):
        raise ValueError(
            f"A {kind.name} model reads no text, so a prompt that comes in later changes nothing. "
            f"Use one prompt, and let {kind.node} change what happens."
        )


def _check_start_image(image: Tensor | None, shape: tuple[int, ...]):
    """Refuse a start image's latents `[B, C, T, 2h, 2w]` that are not as long as the take, since
    each chunk gets those of its own frames, or of another size, which the host would stretch.
    """
    if image is not None and image.ndim == 5 and image.shape[2] != shape[2]:
        raise ValueError(
            f"A prompt brings a start image for {image.shape[2]} latent frames, and the take has "
            f"{shape[2]}. Set the length of WanImageToVideo to {4 * shape[2] - 3} pixel frames, or "
            "use its latent for the take."
        )
    if image is not None and tuple(image.shape[-2:]) != tuple(shape[-2:]):
        (theirs_high, theirs_wide), (high, wide) = image.shape[-2:], shape[-2:]
        raise ValueError(
            f"A prompt brings a start image of {theirs_wide}x{theirs_high} latent cells, and the "
            f"take has {wide}x{high}. Give WanImageToVideo the width and height of the take's "
            "latent, or use its latent for the take."
        )


def _check_concat(model, control: Tensor, shape: tuple[int, ...]):
    """Refuse a control `[B, K, T, 2h, 2w]` that does not fit the model or the latent's `shape`."""
    channels = control_channels(model)
    if channels != control.shape[1]:
        advice = "Use the control that belongs to the model."
        if not channels:
            advice = "Leave the control input open."
        raise ValueError(
            f"The control has {control.shape[1]} channels, and this model takes {channels}. "
            f"{advice}"
        )
    if channels % model.get_model_object("latent_format").latent_channels:
        raise ValueError(
            f"This model takes {channels} control channels, and ComfyUI reads them in groups as "
            "wide as its latent. "
            "Feed such a model by its own conditioning node."
        )
    if (control.shape[2], *control.shape[3:]) != tuple(shape[2:]):
        raise ValueError(
            f"The control is made for {control.shape[2]} latent frames of "
            f"{control.shape[3]}x{control.shape[4]}, the take has "
            f"{shape[2]} of {shape[3]}x{shape[4]}. Connect the same latent to the control node "
            "and the sampler."
        )


def connect_control(conds: list[dict], model, control: Control):
    """Let every conditioning of this run carry the control."""
    if isinstance(control, WorldControl):
        for cond in conds:
            cond[control.name] = control.values
        return
    # The host normalises its concat input as if it were a latent, in groups of the latent's
    # channels: undo it beforehand.
    width = model.get_model_object("latent_format").latent_channels
    out = values_of(control).clone()
    for i in range(0, out.shape[1], width):
        out[:, i : i + width] = model.model.process_latent_out(out[:, i : i + width])
    for cond in conds:
        cond["concat_latent_image"] = out
