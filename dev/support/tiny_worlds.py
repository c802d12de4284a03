"""Tiny random world models, under the names and in the shapes of the published files."""

import json
import math

import torch

MODES = {"universal": (4, 2), "gta_drive": (2, 2), "templerun": (7, 0)}  # widths: keys, mouse


def matrix_game_shapes(
    mode: str, dim: int, layers: int, action_layers: int, heads: int, key_width: int
) -> dict[str, tuple[int, ...]]:
    """Shapes of a Matrix-Game 2 checkpoint's tensors; `heads` are those of its action modules."""
    keys, mouse = MODES[mode]
    width, ffn = heads * 64, 2 * dim
    shapes = {
        "patch_embedding.weight": (dim, 36, 1, 2, 2),
        "patch_embedding.bias": (dim,),
        "head.head.weight": (64, dim),
        "head.head.bias": (64,),
        "head.modulation": (1, 2, dim),
    }

    def layer(name, outputs, inputs, bias=True):
        shapes[f"{name}.weight"] = (outputs, inputs)
        if bias:
            shapes[f"{name}.bias"] = (outputs,)

    def norm(name, size, bias=True):
        shapes[f"{name}.weight"] = (size,)
        if bias:
            shapes[f"{name}.bias"] = (size,)

    layer("time_embedding.0", dim, 256)
    layer("time_embedding.2", dim, dim)
    layer("time_projection.1", 6 * dim, dim)
    norm("img_emb.proj.0", 1280)
    layer("img_emb.proj.1", 1280, 1280)
    layer("img_emb.proj.3", dim, 1280)
    norm("img_emb.proj.4", dim)
    for number in range(layers):
        block = f"blocks.{number}."
        shapes[f"{block}modulation"] = (1, 6, dim)
        for attention in ("self_attn", "cross_attn"):
            for part in "qkvo":
                layer(f"{block}{attention}.{part}", dim, dim)
            norm(f"{block}{attention}.norm_q", dim, bias=False)
            norm(f"{block}{attention}.norm_k", dim, bias=False)
        norm(f"{block}norm3", dim)
        layer(f"{block}ffn.0", ffn, dim)
        layer(f"{block}ffn.2", dim, ffn)
        if number >= action_layers:
            continue
        inside = f"{block}action_model."
        layer(f"{inside}keyboard_embed.0", key_width, keys)
        layer(f"{inside}keyboard_embed.2", key_width, key_width)
        layer(f"{inside}mouse_attn_q", width, dim, bias=False)
        layer(f"{inside}keyboard_attn_kv", 2 * width, 12 * key_width, bias=False)
        norm(f"{inside}key_attn_q_norm", 64, bias=False)
        norm(f"{inside}key_attn_k_norm", 64, bias=False)
        layer(f"{inside}proj_keyboard", dim, width, bias=False)
        if mouse:
            layer(f"{inside}mouse_mlp.0", width, dim + 12 * mouse)
            layer(f"{inside}mouse_mlp.2", width, width)
            norm(f"{inside}mouse_mlp.3", width)
            layer(f"{inside}t_qkv", 3 * width, width, bias=False)
            norm(f"{inside}img_attn_q_norm", 64, bias=False)
            norm(f"{inside}img_attn_k_norm", 64, bias=False)
            layer(f"{inside}proj_mouse", dim, width, bias=False)
    return shapes


def matrix_game_state(
    mode="universal", seed=1, dim=256, layers=3, action_layers=2, heads=2, key_width=16
) -> dict[str, torch.Tensor]:
    """Its tensors, random: norms about 1, and everything else about as large as what it gets."""
    random = torch.Generator().manual_seed(seed)
    state = {}
    for name, shape in matrix_game_shapes(
        mode, dim, layers, action_layers, heads, key_width
    ).items():
        values = torch.randn(shape, generator=random)
        if len(shape) == 1 and name.endswith("weight"):
            state[name] = 1 + 0.2 * values
        elif "modulation" in name:
            state[name] = 0.3 * values
        elif len(shape) == 1:
            state[name] = 0.1 * values
        else:
            state[name] = values / math.sqrt(values[0].numel())
    return state


def matrix_game_file(path, mode="universal", attention_heads=0, **sizes) -> str:
    """A tiny Matrix-Game 2 as a file, its tensors under `model.` as in the published ones. With
    `attention_heads` its header says of how many heads the attentions are; else of 128 channels.
    """
    from safetensors.torch import save_file

    state = matrix_game_state(mode, **sizes)
    config = {"transformer": {"num_heads": attention_heads}}
    header = {"config": json.dumps(config)} if attention_heads else None
    save_file({f"model.{name}": value for name, value in state.items()}, path, header)
    return str(path)
