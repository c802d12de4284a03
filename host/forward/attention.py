"""The attention patch: on a clone, by the host's object patches, inert until a session travels in
`transformer_options`.
"""

from contextlib import AbstractContextManager, ExitStack, nullcontext

import comfy.model_management
import comfy.model_prefetch
import torch
from comfy.ldm.flux.math import apply_rope1
from comfy.ldm.modules.attention import optimized_attention
from comfy.ldm.wan.ar_model import CausalWanSelfAttention
from comfy.ldm.wan.model import WanSelfAttention, WanT2VCrossAttention
from torch import Tensor

from ..keys import RUN

# The host's own functions, as they are when the pack is loaded: another pack may exchange them.
SELF_FORWARDS = (WanSelfAttention.forward, CausalWanSelfAttention.forward)
TEXT_FORWARDS = (WanT2VCrossAttention.forward,)


class SelfAttentionPatch:
    """Wan self-attention whose keys and values pass through the session; without one, the module's
    own forward.
    """

    def __init__(self, layer: int, attention, original):
        self.layer, self.attention, self.original = layer, attention, original

    def __call__(self, x, freqs, *args, transformer_options={}, **kwargs):
        if RUN not in transformer_options:
            return self.original(x, freqs, *args, transformer_options=transformer_options, **kwargs)
        rotation = _begin_layer(self, x, transformer_options)
        a, shape = self.attention, (*x.shape[:2], self.attention.num_heads, self.attention.head_dim)
        q = apply_rope1(a.norm_q(a.q(x)).view(shape), rotation)
        k = apply_rope1(a.norm_k(a.k(x)).view(shape), rotation)
        out = _attend(self, q, k, a.v(x).view(shape), transformer_options)
        for patch in transformer_options.get("patches", {}).get("attn1_patch", []):
            out = patch({"x": out, "q": q, "k": k, "transformer_options": transformer_options})
        return a.o(out)


class CrossAttentionPatch:
    """Wan text cross-attention with keys and values projected once per stream, as the host's own AR
    path does.
    """

    def __init__(self, layer: int, attention, original):
        self.layer, self.attention, self.original = layer, attention, original

    def __call__(self, x, context, transformer_options={}, **kwargs):
        text = _text(self, x, context, transformer_options) if RUN in transformer_options else None
        if text is None:
            return self.original(x, context, transformer_options=transformer_options, **kwargs)
        a, (k, v) = self.attention, text
        return a.o(
            optimized_attention(
                a.norm_q(a.q(x)),
                k,
                v,
                heads=a.num_heads,
                transformer_options=transformer_options,
                **chosen_attention(a),
            )
        )


# torch.compile would take the layer's number and what the run counts for constants: it would
# compile each layer and each chunk anew, and give up at its limit of eight. So the three functions
# below are called as they are, and what lies around them (projections, norms, RoPE) is compiled
# once for all layers.


@torch.compiler.disable
def _begin_layer(patch: SelfAttentionPatch, x: Tensor, transformer_options: dict) -> Tensor:
    """The RoPE table of the forward that a layer is called in."""
    run = transformer_options[RUN]
    comfy.model_management.throw_exception_if_processing_interrupted()
    run.require_all_rows(x, patch.layer)
    return run.rotation


@torch.compiler.disable
def _attend(
    patch: SelfAttentionPatch, q: Tensor, k: Tensor, v: Tensor, transformer_options: dict
) -> Tensor:
    """Attention over the session's cache, `[B, rows, heads * head_dim]`."""
    run = transformer_options[RUN]
    pauses = ExitStack()

    def dense(q, k, v):
        out = optimized_attention(
            q.flatten(2),
            k.flatten(2),
            v.flatten(2),
            heads=q.shape[2],
            transformer_options=transformer_options,
            **chosen_attention(patch.attention),
        )
        # Kernels of the host pause as well, and their end is an end for all.
        pauses.enter_context(outside_malloc_graph())
        return out

    with pauses:
        pauses.enter_context(outside_malloc_graph())
        return run.session.attend(
            run.forward, run.streams, patch.layer, q, k, v, dense, run.is_extra
        )


@torch.compiler.disable
def _text(
    patch: CrossAttentionPatch, x: Tensor, context: Tensor, transformer_options: dict
) -> tuple[Tensor, Tensor] | None:
    """Keys and values of the text, made once for each stream; None where it is not constant."""
    run, a = transformer_options[RUN], patch.attention
    if not run.text_is_constant:
        return None
    run.require_all_rows(x, patch.layer)
    with outside_malloc_graph():
        return run.session.text(
            run.forward, run.prompts, patch.layer, lambda: (a.norm_k(a.k(context)), a.v(context))
        )


def chosen_attention(attention) -> dict:
    """What the host's attention function gets of an attention module beside its tensors: the
    attention that a quantised checkpoint chose for it. Hosts up to 0.33 have none.
    """
    chosen = getattr(attention, "comfy_attention", None)
    return {} if chosen is None else {"preferred_attention": chosen}


def outside_malloc_graph() -> AbstractContextManager:
    """Around allocations inside a forward that outlive it, as cached keys do.

    Later hosts record what a forward allocates and give the same addresses again in the next one;
    what is allocated here is left out. Hosts up to 0.33 do not record.
    """
    pause = getattr(comfy.model_prefetch, "pause_malloc_graph", nullcontext)
    return pause()


def is_one_of(forward, functions: tuple) -> bool:
    """Whether a bound method is one of these functions. Its owner tells nothing: another pack may
    bind a function of its own to the host's module (Enhance-A-Video).
    """
    return getattr(forward, "__func__", None) in functions


def self_attentions(model) -> list:
    """What a MODEL calls as the self-attention of each layer."""
    return [
        model.get_model_object(f"diffusion_model.blocks.{layer}.self_attn.forward")
        for layer in range(len(model.get_model_object("diffusion_model").blocks))
    ]


def is_patched(model) -> bool:
    return all(isinstance(forward, SelfAttentionPatch) for forward in self_attentions(model))


def require_patched(model, name: str, advice: str):
    """Raise ValueError, in a sentence that calls the MODEL `name`, where its self-attention is not
    ours in place of its own.
    """
    if not is_patched(model):
        raise ValueError(f"{name} has not been prepared for AR sampling. {advice}")
    others = [
        forward.original
        for forward in self_attentions(model)
        if not is_one_of(forward.original, SELF_FORWARDS)
    ]
    if others:
        raise ValueError(
            f"{name} has another node's self-attention in {len(others)} of its layers, and AR "
            "sampling brings its own, so that node "
            "would do nothing. Remove it."
        )
