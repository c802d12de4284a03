"""What Keepsake needs of a model, probed once and in one place."""

import torch
from comfy.ldm.wan.ar_model import CausalWanModel
from comfy.ldm.wan.model import WanModel
from torch import Tensor

from ...kv_policies import Chunk, Geometry
from .. import TESTED_HOSTS
from .temporal_rope import temporal_angles

BACKBONES = (
    WanModel,
    CausalWanModel,
)  # the Wan classes whose tokens are the video's and nothing else


def require_wan(model):
    """Return the diffusion model of a ComfyUI MODEL, or say in a ValueError what came instead of a
    Wan video model.
    """
    backbone = model.get_model_object("diffusion_model")
    name = type(backbone).__name__
    if not isinstance(backbone, WanModel):
        raise ValueError(
            f"Keepsake works on video models of the Wan family, and this MODEL is {name}. "
            "Load a Wan checkpoint, for instance with AR Video Model Loader."
        )
    if (
        type(backbone) not in BACKBONES
    ):  # VACE, S2V, HuMo, Camera ...: tokens or inputs beside the video's
        raise ValueError(
            f"This Wan model is a {name}, whose extra inputs Keepsake cannot cut into chunks. "
            "Use a plain text-to-video or image-to-video Wan model."
        )
    attention = backbone.blocks[0].self_attn
    missing = [
        part
        for part in ("q", "k", "v", "o", "norm_q", "norm_k", "num_heads", "head_dim")
        if not hasattr(attention, part)
    ]
    if missing:
        raise ValueError(
            f"The self-attention of this ComfyUI's {name} has no {', '.join(missing)}. "
            f"Keepsake is tested with ComfyUI {TESTED_HOSTS}; use one of these or a newer Keepsake."
        )
    return backbone


def read_geometry(model, latent_height: int, latent_width: int, chunk_frames: int) -> Geometry:
    """What the caches must know of a MODEL, its patches by other nodes included."""
    backbone = require_wan(model)
    attention, (_, ph, pw) = backbone.blocks[0].self_attn, backbone.patch_size
    channels, theta = backbone.rope_embedder.axes_dim[0], float(backbone.rope_embedder.theta)
    return Geometry(
        layers=len(backbone.blocks),
        heads=attention.num_heads,
        head_dim=attention.head_dim,
        grid=(-(-latent_height // ph), -(-latent_width // pw)),
        chunk_frames=chunk_frames,
        temporal_channels=channels,
        rope_theta=theta,
        temporal_angles=_temporal_angles(model, backbone, channels, theta),
    )


def _temporal_angles(model, backbone, channels: int, theta: float) -> tuple[float, ...] | None:
    encode = model.get_model_object("diffusion_model.rope_encode")
    if getattr(encode, "__func__", None) is not type(backbone).rope_encode:
        return ()  # another node's, which may do anything
    embedder = model.get_model_object("diffusion_model.rope_embedder")
    return temporal_angles(embedder, channels, theta)


def rotation(
    backbone,
    chunk: Chunk,
    latent_height: int,
    latent_width: int,
    device: torch.device,
    transformer_options: dict,
) -> Tensor:
    """The host's RoPE table for a chunk. Positions in fp32: in bf16, frames merge from the 257th
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

    first, last = chunk.positions[0], chunk.positions[-1]
    if last - first + 1 == chunk.frames:
        return table(first, chunk.frames)
    return torch.cat([table(frame, 1) for frame in chunk.positions], 1)


def control_channels(model) -> int:
    """Input channels beyond the latent's own, which a conditioning has to fill."""
    backbone = model.get_model_object("diffusion_model")
    return (
        backbone.patch_embedding.weight.shape[1]
        - model.get_model_object("latent_format").latent_channels
    )
