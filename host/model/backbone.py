"""What Keepsake needs of a model, probed once and in one place."""

import math

import torch
from comfy.ldm.wan.ar_model import CausalWanModel
from comfy.ldm.wan.model import WanModel
from torch import Tensor, nn

from ...kv_policies import Geometry, Span
from .. import TESTED_HOSTS
from .kinds import KINDS
from .temporal_rope import spatial_angles, temporal_angles

# The Wan classes whose tokens are the video's and nothing else.
BACKBONES = (WanModel, CausalWanModel, *(kind.backbone for kind in KINDS))
ATTENTION_PARTS = ("q", "k", "v", "o", "norm_q", "norm_k", "num_heads", "head_dim")


def require_wan(model):
    """Return the diffusion model of a ComfyUI MODEL; ValueError where it is no plain Wan video
    model.
    """
    backbone = model.get_model_object("diffusion_model")
    name = type(backbone).__name__
    if not isinstance(backbone, WanModel):
        raise ValueError(
            f"Keepsake works on video models of the Wan family, and this MODEL is {name}. "
            "Load a Wan checkpoint, for instance with AR Video Model Loader."
        )
    # Subclasses (VACE, S2V, HuMo, Camera, Animate 2 ...) have tokens or inputs beside the video's.
    if type(backbone) not in BACKBONES:
        raise ValueError(
            f"This Wan model is a {name}, whose extra inputs Keepsake cannot cut into chunks. "
            "Use a plain text-to-video or image-to-video Wan model."
        )
    attention = backbone.blocks[0].self_attn
    missing = [part for part in ATTENTION_PARTS if not hasattr(attention, part)]
    if missing:
        raise ValueError(
            f"The self-attention of this ComfyUI's {name} has no {', '.join(missing)}. "
            f"Keepsake is tested with ComfyUI {TESTED_HOSTS}; use one of these or a newer Keepsake."
        )
    return backbone


def read_geometry(model, latent_height: int, latent_width: int, chunk_frames: int) -> Geometry:
    """What the caches must know of a MODEL, its patches by other nodes included.

    The latent's size is in cells; a token covers a patch of them, and an odd size is filled up.
    """
    backbone = require_wan(model)
    attention = backbone.blocks[0].self_attn
    _, patch_height, patch_width = backbone.patch_size
    channels = backbone.rope_embedder.axes_dim[0]
    theta = float(backbone.rope_embedder.theta)
    grid = (-(-latent_height // patch_height), -(-latent_width // patch_width))
    action_plan = getattr(backbone, "action_plan", None)
    return Geometry(
        layers=len(backbone.blocks),
        heads=attention.num_heads,
        head_dim=attention.head_dim,
        grid=grid,
        chunk_frames=chunk_frames,
        temporal_channels=channels,
        rope_theta=theta,
        **_angles(model, backbone, theta),
        actions=action_plan(math.prod(grid)) if action_plan else None,
    )


def _angles(model, backbone, theta: float) -> dict:
    """Angles of a model's RoPE in time and space, see Geometry."""
    encode = model.get_model_object("diffusion_model.rope_encode")
    if getattr(encode, "__func__", None) is not type(backbone).rope_encode:
        return dict(temporal_angles=(), spatial_angles=())  # another node's: it may do anything
    embedder = model.get_model_object("diffusion_model.rope_embedder")
    channels = backbone.rope_embedder.axes_dim
    rope = model.model_options.get("transformer_options", {}).get("rope_options", {})
    scales = rope.get("scale_y", 1.0), rope.get("scale_x", 1.0)
    return dict(
        temporal_angles=temporal_angles(embedder, channels[0], theta),
        spatial_angles=spatial_angles(embedder, channels, theta, scales),
    )


def rotation(
    backbone,
    span: Span,
    latent_height: int,
    latent_width: int,
    device: torch.device,
    transformer_options: dict,
) -> Tensor:
    """The host's RoPE table for a span. Positions in fp32: in bf16, frames merge from the 257th
    on.
    """

    def table(start: int, frames: int) -> Tensor:
        return backbone.rope_encode(
            frames,
            latent_height,
            latent_width,
            t_start=start,
            device=device,
            dtype=torch.float32,
            transformer_options=transformer_options,
        )

    first, last = span.positions[0], span.positions[-1]
    if last - first + 1 == len(span):
        return table(first, len(span))
    return torch.cat([table(position, 1) for position in span.positions], 1)


def text_width(backbone) -> int:
    """How wide a prompt's text must be; 0 for a model that reads none."""
    layers = getattr(backbone, "text_embedding", None)
    return getattr(layers[0], "in_features", 0) if isinstance(layers, nn.Sequential) else 0


def control_channels(model) -> int:
    """Input channels beyond the latent's own, which a conditioning has to fill."""
    backbone = model.get_model_object("diffusion_model")
    inputs = backbone.patch_embedding.weight.shape[1]
    return inputs - model.get_model_object("latent_format").latent_channels
