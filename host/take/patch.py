"""The one patch: on a clone, by the host's object patches, on every self-attention of Wan."""

import comfy.utils
from comfy.patcher_extension import CallbacksMP, WrappersMP

from ..forward.attention import (
    TEXT_FORWARDS,
    CrossAttentionPatch,
    SelfAttentionPatch,
    is_one_of,
    is_patched,
)
from ..keys import OUTER_CALL
from ..model.backbone import require_wan
from .outer_call import prepare_take


def patch(model):
    """A clone of a ComfyUI MODEL that can run AR takes; in other samplers it works as before."""
    backbone = require_wan(model)
    patched = model.clone()
    if is_patched(model):
        return patched
    for layer, block in enumerate(backbone.blocks):
        for part, kind in (("self_attn", SelfAttentionPatch), ("cross_attn", CrossAttentionPatch)):
            key = f"diffusion_model.blocks.{layer}.{part}.forward"
            attention = getattr(block, part)
            original = patched.get_model_object(key)
            if isinstance(original, kind):
                continue
            # Text keys can be kept only where nobody else computes them: image-to-video classes and
            # other packs' patches stay.
            if kind is SelfAttentionPatch or is_one_of(original, TEXT_FORWARDS):
                patched.add_object_patch(key, kind(layer, attention, original))
    patched.add_wrapper_with_key(WrappersMP.OUTER_SAMPLE, OUTER_CALL, prepare_take)
    # Up to 0.27 the host gives a clone for another device its own modules after ON_CLONE.
    for event in (CallbacksMP.ON_CLONE, CallbacksMP.ON_MATCH_MULTIGPU_CLONES):
        patched.add_callback_with_key(event, OUTER_CALL, rebind)
    return patched


def rebind(old, new):
    """When the host clones a MODEL onto other modules (for hooks, or for another device), our
    patches follow.
    """
    if new.model is old.model:
        return
    for key, entry in new.object_patches.items():
        if isinstance(entry, (SelfAttentionPatch, CrossAttentionPatch)):
            attention = comfy.utils.get_attr(new.model, key.removesuffix(".forward"))
            original = entry.original
            if getattr(original, "__self__", None) is entry.attention:
                original = original.__func__.__get__(attention)
            new.object_patches[key] = type(entry)(entry.layer, attention, original)
