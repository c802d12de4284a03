"""LingBot-World (v1 fast and v2 causal-fast): Wan2.2's image-to-video model whose blocks are
steered by a camera, between self- and cross-attention.

Read from robbyant/lingbot-world-v2 @ 2648877f (`wan/modules/model_fast.py`). Both versions have the
same tensors.
"""

import torch
import torch.nn.functional as F
from comfy.conds import CONDRegular
from comfy.ldm.wan.model import WanAttentionBlock, WanModel, repeat_e
from comfy.model_base import WAN21, ModelType
from comfy.model_management import cast_to
from comfy.supported_models import WAN21_T2V
from torch import Tensor

from ..keys import CAMERA, RUN
from .camera import rays

CELL = 8  # pixels of a latent cell, each way
RAY_CHANNELS = 6  # origin and direction
CAMERA_LAYERS = ("cam_injector_layer1", "cam_injector_layer2", "cam_scale_layer", "cam_shift_layer")


class LingBotBlock(WanAttentionBlock):
    """Wan's block with the camera's scale and shift of the tokens themselves, not of a branch."""

    def __init__(self, cross_attn_type, dim, *sizes, operation_settings={}):
        super().__init__(cross_attn_type, dim, *sizes, operation_settings=operation_settings)
        for name in CAMERA_LAYERS:
            setattr(self, name, _linear(dim, dim, operation_settings))

    def forward(self, x, e, freqs, context, context_img_len=257, transformer_options={}):
        """`x` [B, L, D]; `e` [B, 6, D], or [B, frames, 6, D] with noise levels by frame."""
        # 1. Shift, scale and gate of self-attention and of the feed-forward part.
        learnt = cast_to(self.modulation, dtype=x.dtype, device=x.device)
        parts = (learnt + e).chunk(6, 1) if e.ndim < 4 else (learnt[None] + e).unbind(2)
        # Of each frame still: all six for each token would be six times the tokens' size at once.
        shift, scale, gate, ffn_shift, ffn_scale, ffn_gate = parts
        # 2. Self-attention.
        x = x.contiguous()
        seen = self.self_attn(
            torch.addcmul(repeat_e(shift, x), self.norm1(x), 1 + repeat_e(scale, x)),
            freqs,
            transformer_options=transformer_options,
        )
        x = torch.addcmul(x, seen, repeat_e(gate, x))
        del seen
        # 3. The camera.
        if CAMERA in transformer_options:
            x = self.steer(x, transformer_options[CAMERA])
        # 4. The text.
        x = x + self.cross_attn(
            self.norm3(x),
            context,
            context_img_len=context_img_len,
            transformer_options=transformer_options,
        )
        for patch in transformer_options.get("patches", {}).get("attn2_patch", []):
            x = patch({"x": x, "transformer_options": transformer_options})
        # 5. The feed-forward part.
        y = self.ffn(
            torch.addcmul(repeat_e(ffn_shift, x), self.norm2(x), 1 + repeat_e(ffn_scale, x))
        )
        return torch.addcmul(x, y, repeat_e(ffn_gate, x))

    def steer(self, x: Tensor, camera: Tensor) -> Tensor:
        """Scale and shift tokens `[B, L, D]` by the camera's, `[1, L, D]`."""
        u = camera + self.cam_injector_layer2(F.silu(self.cam_injector_layer1(camera)))
        return torch.addcmul(self.cam_shift_layer(u), x, 1 + self.cam_scale_layer(u))


class LingBotWan(WanModel):
    """The diffusion model. Without `world_camera` it runs as plain Wan does, camera unseen."""

    def __init__(self, *, dim, device=None, dtype=None, operations=None, **config):
        super().__init__(
            dim=dim,
            device=device,
            dtype=dtype,
            operations=operations,
            wan_attn_block_class=LingBotBlock,
            **config,
        )
        settings = {"operations": operations, "device": device, "dtype": dtype}
        _, height, width = self.patch_size
        features = RAY_CHANNELS * CELL**2 * height * width
        self.patch_embedding_wancamctrl = _linear(features, dim, settings)
        self.c2ws_hidden_states_layer1 = _linear(dim, dim, settings)
        self.c2ws_hidden_states_layer2 = _linear(dim, dim, settings)

    def forward_orig(
        self,
        x,
        t,
        context,
        clip_fea=None,
        freqs=None,
        transformer_options={},
        world_camera=None,
        **kwargs,
    ):
        """As the host's; `world_camera` [1, 6, F, 8h, 8w] are the rays of the frames in `x`."""
        if world_camera is not None:
            camera = self._embedded(world_camera, transformer_options)
            transformer_options = {**transformer_options, CAMERA: camera}
        return super().forward_orig(
            x,
            t,
            context,
            clip_fea=clip_fea,
            freqs=freqs,
            transformer_options=transformer_options,
            **kwargs,
        )

    @torch.compiler.disable
    def _embedded(self, rays: Tensor, transformer_options: dict) -> Tensor:
        """The camera's embedding: in a take made once for the frames that it works on, since steps
        and prompts share it.
        """
        if RUN not in transformer_options:
            return self.embed_camera(rays)
        run = transformer_options[RUN]
        return run.once_a_span("camera", lambda: self.embed_camera(rays))

    def embed_camera(self, rays: Tensor) -> Tensor:
        """Camera tokens [1, L, D] of rays [1, 6, F, 8h, 8w], `h` and `w` in cells."""
        _, patch_height, patch_width = self.patch_size
        _, channels, frames, height, width = rays.shape
        tokens = rays.reshape(
            channels,
            frames,
            height // (patch_height * CELL),
            patch_height,
            CELL,
            width // (patch_width * CELL),
            patch_width,
            CELL,
        )
        # A token's features: channel, pixel row and column in the cell, cell row and column.
        tokens = tokens.permute(1, 2, 5, 0, 4, 7, 3, 6).flatten(3).flatten(0, 2)[None]
        e = self.patch_embedding_wancamctrl(tokens)
        return e + self.c2ws_hidden_states_layer2(F.silu(self.c2ws_hidden_states_layer1(e)))


class LingBotModel(WAN21):
    """The host's MODEL of it: the conditioning value `world_camera` becomes rays by frame."""

    def __init__(self, model_config, device=None):
        # WAN21's own would make a plain Wan.
        super(WAN21, self).__init__(
            model_config, ModelType.FLOW, device=device, unet_model=LingBotWan
        )
        self.image_to_video = True

    def extra_conds(self, **kwargs):
        conds = super().extra_conds(**kwargs)
        if kwargs.get("world_camera") is not None:
            conds["world_camera"] = CONDRegular(kwargs["world_camera"])
        return conds

    def _apply_model(self, x, t, *args, world_camera=None, **kwargs):
        # Rays are as large as pictures, so they are made of the frames in work alone; in fp32,
        # before the host casts what it hands on to the model's dtype.
        if world_camera is not None:
            camera = world_camera[0, :, :, 0, 0].to(x.device, torch.float32)
            kwargs["world_camera"] = rays(camera, *(CELL * cells for cells in x.shape[3:]))
        return super()._apply_model(x, t, *args, **kwargs)


class LingBotConfig(WAN21_T2V):
    """How the host's loader makes the MODEL. It is offered for such a file alone, see `kinds`."""

    @classmethod
    def matches(cls, unet_config, *args, **kwargs):
        return True

    def get_model(self, state_dict, prefix="", device=None):
        return LingBotModel(self, device=device)


def _linear(inputs: int, outputs: int, settings: dict):
    make = settings["operations"].Linear
    return make(inputs, outputs, device=settings["device"], dtype=settings["dtype"])
