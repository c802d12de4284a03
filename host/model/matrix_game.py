"""Matrix-Game 2 (arXiv 2508.13009): a Wan image-to-video model without text, whose first blocks are
steered by keys and a mouse through action modules.

Read from SkyworkAI/Matrix-Game @ 3ceb3114 (`Matrix-Game-2/wan/modules`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from comfy.conds import CONDRegular
from comfy.ldm.modules.attention import optimized_attention
from comfy.ldm.wan.model import MLPProj, WanAttentionBlock, WanModel
from comfy.model_base import WAN21, ModelType
from comfy.supported_models import WAN21_T2V
from torch import Tensor, nn

from ...kv_policies import ActionPlan
from ...kv_policies.cache.rope import temporal_frequencies, turn, turn_in_time
from ..keys import ACTIONS, RUN
from .game_modes import MODES_BY_WIDTH, MOUSE_WIDTH, ROWS, GameMode
from .world_control import WorldControl

HEAD_DIM = 64
TURNED_CHANNELS = 8  # of a head, by the latent frame alone
ROPE_THETA = 256.0
NORM_EPS = 1e-6
CLIP_WIDTH = 1280  # of CLIP vision's ViT-H
MOUSE, KEYBOARD = "mouse", "keyboard"  # parts of an action module
MODULE = "blocks.{}.action_model."


@dataclass(frozen=True, kw_only=True)
class ActionSizes:
    """What an action module is made of, read from a file's tensors."""

    mode: GameMode
    layers: tuple[int, ...]
    width: int  # of queries, keys and values, all heads together
    key_width: int  # of an embedded row of keys

    @property
    def heads(self) -> int:
        return self.width // HEAD_DIM

    @classmethod
    def of(cls, weights: Mapping[str, Tensor], layers: int) -> ActionSizes:
        """ValueError for a keyboard that no published mode has."""
        inside = MODULE.format(0)
        return cls(
            mode=mode_of(weights),
            layers=tuple(
                layer
                for layer in range(layers)
                if f"{MODULE.format(layer)}keyboard_embed.0.weight" in weights
            ),
            width=weights[f"{inside}mouse_attn_q.weight"].shape[0],
            key_width=weights[f"{inside}keyboard_embed.0.weight"].shape[0],
        )


def mode_of(weights: Mapping[str, Tensor]) -> GameMode:
    """The mode that a file's tensors show, by the width of its keyboard. ValueError for a keyboard
    that no published mode has.
    """
    embed = weights[MODULE.format(0) + "keyboard_embed.0.weight"]
    keys = embed.shape[-1] if embed.ndim else 0
    if keys not in MODES_BY_WIDTH:
        known = ", ".join(f"{mode.name} {width}" for width, mode in MODES_BY_WIDTH.items())
        raise ValueError(
            f"This Matrix-Game 2 model follows {keys} keys, and Keepsake knows those of its "
            f"published modes ({known}). Load one of these."
        )
    return MODES_BY_WIDTH[keys]


def profile_by_tensors(weights: Mapping[str, Tensor]) -> str:
    """Name of the AR profile of a file."""
    return mode_of(weights).profile


def check_actions(backbone: MatrixGameWan, control: WorldControl):
    """ValueError for keys of another mode than the model's."""
    mode = backbone.actions.mode
    width = control.values.shape[1] // ROWS
    if width != mode.width:
        theirs = next((m.name for m in MODES_BY_WIDTH.values() if m.width == width), "another")
        raise ValueError(
            f"World Actions made keys for the mode {theirs}, and this model is {mode.name}. Set "
            f"its mode to {mode.name}."
        )


class UnscaledNorm(nn.Module):
    """RMS norm over a head. The authors' code has a weight for it and never applies it."""

    def __init__(self, settings: dict):
        super().__init__()
        weight = torch.empty(HEAD_DIM, device=settings["device"], dtype=settings["dtype"])
        self.weight = nn.Parameter(weight, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + NORM_EPS)


class ActionModule(nn.Module):
    """Steers the tokens of each latent frame by the 12 latest rows of mouse and keys. Each place of
    the picture attends in time: to the mouse at that place, and to the keys, which all places
    share. Names of the parts are those of the files.
    """

    def __init__(self, layer: int, dim: int, sizes: ActionSizes, settings: dict):
        super().__init__()
        self.layer = layer
        self.sizes = sizes
        width, key_width = sizes.width, sizes.key_width

        def linear(inputs: int, outputs: int, bias: bool = False):
            return settings["operations"].Linear(
                inputs, outputs, bias=bias, device=settings["device"], dtype=settings["dtype"]
            )

        if sizes.mode.has_mouse:
            norm = settings["operations"].LayerNorm(
                width, device=settings["device"], dtype=settings["dtype"]
            )
            self.mouse_mlp = nn.Sequential(
                linear(dim + ROWS * MOUSE_WIDTH, width, bias=True),
                nn.GELU(approximate="tanh"),
                linear(width, width, bias=True),
                norm,
            )
            self.t_qkv = linear(width, 3 * width)
            self.img_attn_q_norm = UnscaledNorm(settings)
            self.img_attn_k_norm = UnscaledNorm(settings)
            self.proj_mouse = linear(width, dim)
        self.keyboard_embed = nn.Sequential(
            linear(sizes.mode.keys, key_width, bias=True),
            nn.SiLU(),
            linear(key_width, key_width, bias=True),
        )
        self.mouse_attn_q = linear(dim, width)  # of the keyboard's part, whatever its name
        self.keyboard_attn_kv = linear(ROWS * key_width, 2 * width)
        self.key_attn_q_norm = UnscaledNorm(settings)
        self.key_attn_k_norm = UnscaledNorm(settings)
        self.proj_keyboard = linear(width, dim)

    # As it is: torch.compile would make a version of each of its many sizes, and give up at its
    # limit of eight.
    @torch.compiler.disable
    def forward(self, x: Tensor, rows: Tensor, transformer_options: dict) -> Tensor:
        """`x` [B, F * S, D], frame after frame; `rows` [B, F, 12, keys and mouse]."""
        keys, mouse = rows.split([self.sizes.mode.keys, self.sizes.mode.mouse], -1)
        rotation = _rotation(rows.shape[1], x.device, transformer_options)
        if self.sizes.mode.has_mouse:
            x = x + self.proj_mouse(self._look(x, mouse, rotation, transformer_options))
        return x + self.proj_keyboard(self._press(x, keys, rotation, transformer_options))

    def _look(self, x: Tensor, mouse: Tensor, rotation, transformer_options: dict) -> Tensor:
        """What each place reads of the mouse, `[B, F * S, width]`."""
        frames = mouse.shape[1]
        places = x.unflatten(1, (frames, -1)).transpose(1, 2)  # [B, S, F, D]
        moved = mouse.flatten(2)[:, None].expand(-1, places.shape[1], -1, -1)
        u = self.mouse_mlp(torch.cat([places, moved], -1))
        q, k, v = self.t_qkv(u).unflatten(-1, (3, self.sizes.heads, -1)).unbind(3)
        q = turn(self.img_attn_q_norm(q), *rotation)
        k = turn(self.img_attn_k_norm(k), *rotation)
        out = self._attend(MOUSE, q, k, v, transformer_options)
        return out.transpose(1, 2).flatten(1, 2)

    def _press(self, x: Tensor, keys: Tensor, rotation, transformer_options: dict) -> Tensor:
        """What each place reads of the keys, `[B, F * S, width]`."""
        frames, heads = keys.shape[1], self.sizes.heads
        embedded = self.keyboard_embed(keys).flatten(2)
        k, v = self.keyboard_attn_kv(embedded).unflatten(-1, (2, heads, -1)).unbind(2)
        q = self.mouse_attn_q(x).unflatten(1, (frames, -1)).unflatten(-1, (heads, -1))
        q = turn(self.key_attn_q_norm(q.transpose(1, 2)), *rotation)  # [B, S, F, heads, 64]
        k = turn(self.key_attn_k_norm(k), *rotation)
        # One place holds the keys of all: its queries are those of every place.
        out = self._attend(
            KEYBOARD, q.flatten(1, 2)[:, None], k[:, None], v[:, None], transformer_options
        )
        return out[:, 0].unflatten(1, (-1, frames)).transpose(1, 2).flatten(1, 2)

    def _attend(self, part: str, q: Tensor, k: Tensor, v: Tensor, transformer_options: dict):
        """Attention in time, `[B, places, N, width]`, of queries `[B, places, N, heads, 64]`: in a
        take over what its streams hold of earlier frames, else over the frames of the forward.
        """
        run = transformer_options.get(RUN)
        sides = zip(k, v) if run is None else run.act(self.layer, part, k, v)
        out = [
            optimized_attention(
                queries.flatten(2),
                keys.flatten(2),
                values.flatten(2),
                heads=self.sizes.heads,
                transformer_options=transformer_options,
            )
            for queries, (keys, values) in zip(q, sides)
        ]
        return torch.stack(out)


def _rotation(frames: int, device: torch.device, transformer_options: dict):
    """Cosine and sine of the places in time of a forward's latent frames."""
    run = transformer_options.get(RUN)
    positions = range(frames) if run is None else run.forward.span.positions
    return turn_in_time(
        torch.tensor(positions, dtype=torch.float64),
        temporal_frequencies(TURNED_CHANNELS, ROPE_THETA),
        device,
    )


class MatrixGameBlock(WanAttentionBlock):
    """Wan's block with an action module between cross-attention and the feed-forward part, where
    the host calls patches of cross-attention.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.action_model: ActionModule | None = None  # the first blocks get one

    def forward(self, *args, transformer_options={}, **kwargs):
        rows = transformer_options.get(ACTIONS)
        if rows is not None and self.action_model is not None:

            def act(call: dict) -> Tensor:
                return self.action_model(call["x"], rows, call["transformer_options"])

            patches = transformer_options.get("patches", {})
            patches = {**patches, "attn2_patch": [*patches.get("attn2_patch", []), act]}
            transformer_options = {**transformer_options, "patches": patches}
        return super().forward(*args, transformer_options=transformer_options, **kwargs)


class NoText(nn.Module):
    """In the place of Wan's text embedding: no tokens, so cross-attention reads the image alone."""

    def __init__(self, dim: int):
        super().__init__()
        self.dim = dim

    def forward(self, context: Tensor) -> Tensor:
        return context.new_empty(len(context), 0, self.dim)


class MatrixGameWan(WanModel):
    """The diffusion model. Without `world_actions` its action modules are left out."""

    def __init__(
        self,
        *,
        actions: ActionSizes,
        dim: int,
        model_type: str = "i2v",
        device=None,
        dtype=None,
        operations=None,
        **config,
    ):
        # Cross-attention over the image has the tensors of Wan's text-to-video model.
        super().__init__(
            model_type="t2v",
            dim=dim,
            wan_attn_block_class=MatrixGameBlock,
            device=device,
            dtype=dtype,
            operations=operations,
            **config,
        )
        settings = {"operations": operations, "device": device, "dtype": dtype}
        self.text_embedding = NoText(dim)
        self.img_emb = MLPProj(CLIP_WIDTH, dim, operation_settings=settings)
        self.actions = actions
        for layer in actions.layers:
            self.blocks[layer].action_model = ActionModule(layer, dim, actions, settings)

    def action_plan(self, places: int) -> ActionPlan:
        """What a stream holds for the action modules, of latent frames of so many tokens."""
        parts = {KEYBOARD: 1}
        if self.actions.mode.has_mouse:
            parts = {MOUSE: places, **parts}
        return ActionPlan(
            window_frames=self.actions.mode.window_frames,
            layers=self.actions.layers,
            places=parts,
            heads=self.actions.heads,
            head_dim=HEAD_DIM,
        )

    def forward_orig(self, *args, transformer_options={}, world_actions=None, **kwargs):
        """As the host's; `world_actions` [B, 12 * (keys and mouse), F, 1, 1], as `action_control`
        makes them, of the frames in work.
        """
        if world_actions is not None:
            rows = world_actions[..., 0, 0].transpose(1, 2).unflatten(2, (ROWS, -1))
            transformer_options = {**transformer_options, ACTIONS: rows}
        return super().forward_orig(*args, transformer_options=transformer_options, **kwargs)


class MatrixGameModel(WAN21):
    """The host's MODEL of it: the conditioning value `world_actions` reaches the blocks."""

    def __init__(self, model_config, device=None):
        # WAN21's own would make a plain Wan.
        super(WAN21, self).__init__(
            model_config, ModelType.FLOW, device=device, unet_model=MatrixGameWan
        )
        self.image_to_video = True

    def extra_conds(self, **kwargs):
        conds = super().extra_conds(**kwargs)
        if kwargs.get("world_actions") is not None:
            conds["world_actions"] = CONDRegular(kwargs["world_actions"])
        return conds


class MatrixGameConfig(WAN21_T2V):
    """How the host's loader makes the MODEL. It is offered for such a file alone, see `kinds`."""

    @classmethod
    def matches(cls, unet_config, *args, **kwargs):
        return True

    def get_model(self, state_dict, prefix="", device=None):
        sizes = ActionSizes.of(state_dict, self.unet_config["num_layers"])
        self.unet_config = {**self.unet_config, "actions": sizes}
        return MatrixGameModel(self, device=device)
