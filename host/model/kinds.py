"""Kinds of Wan models that ComfyUI does not know: how a file of each is told by its tensors, which
class runs it, and what a take with it needs.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import comfy.supported_models
from comfy.ldm.wan.model import WanModel
from torch import Tensor

from .lingbot import LingBotConfig, LingBotWan
from .matrix_game import MatrixGameConfig, MatrixGameWan, check_actions, profile_by_tensors
from .world_control import WorldControl


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of world model: a Wan model that follows a camera or keys by tensors of its own."""

    name: str
    key: str  # a tensor that files of this kind have, and no others
    config: type  # by which the host's loader makes the MODEL, see `comfy.supported_models`
    backbone: type[WanModel]  # the class that runs it
    control: str  # name of the conditioning value that it follows
    node: str  # title of the node that makes that value
    needs: str  # what a take needs, in a sentence for the user
    reads_text: bool = True
    clip_vision: bool = False  # whether it looks at the start image through CLIP vision
    # The name of the profile that a file's tensors show; None: they do not.
    profile: Callable[[Mapping[str, Tensor]], str | None] = lambda weights: None
    # ValueError, in a sentence, for a control that is for another model of this kind.
    check: Callable[[WanModel, WorldControl], None] = lambda backbone, control: None


KINDS = (
    Kind(
        name="LingBot-World",
        key="patch_embedding_wancamctrl.weight",
        config=LingBotConfig,
        backbone=LingBotWan,
        control="world_camera",
        node="World Camera",
        needs="It needs a camera (World Camera, at the sampler's control input) and a start image "
        "(WanImageToVideo, of the take's own length).",
    ),
    Kind(
        name="Matrix-Game 2",
        key="blocks.0.action_model.keyboard_embed.0.weight",
        config=MatrixGameConfig,
        backbone=MatrixGameWan,
        control="world_actions",
        node="World Actions",
        needs="It needs keys and mouse (World Actions, at the sampler's control input), a start "
        "image (WanImageToVideo, of the take's own length) and CLIP vision of that image (CLIP "
        "Vision Encode, at WanImageToVideo). It reads no text.",
        reads_text=False,
        clip_vision=True,
        profile=profile_by_tensors,
        check=check_actions,
    ),
)
BY_NAME = {kind.name: kind for kind in KINDS}


def kind_of(weights: Mapping[str, Tensor]) -> Kind | None:
    """The kind that a file's tensors show; None for a Wan model that the host knows."""
    return next((kind for kind in KINDS if kind.key in weights), None)


def kind_of_backbone(backbone) -> Kind | None:
    """The kind of a diffusion model; None for the host's own classes."""
    return next((kind for kind in KINDS if type(backbone) is kind.backbone), None)


@contextmanager
def offered_to_host(kind: Kind | None) -> Iterator[None]:
    """While a file of this kind is loaded, the host's loader makes our class of it. Afterwards its
    list of models is as it was: files that other nodes load are not ours.
    """
    if kind is None:
        yield
        return
    comfy.supported_models.models.insert(0, kind.config)
    try:
        yield
    finally:
        comfy.supported_models.models.remove(kind.config)
