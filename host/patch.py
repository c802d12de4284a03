"""The one patch: on a clone, by the host's object patches, on every self-attention of a Wan model."""
from comfy.ldm.wan.model import WanT2VCrossAttention
from comfy.patcher_extension import WrappersMP

from .attention import CrossAttentionPatch, SelfAttentionPatch
from .backbone import require_wan
from .outer_sample import KEY, prepare_take


def patch(model):
    """Return a clone of a ComfyUI MODEL that can run AR takes. It works as before in every other sampler."""
    backbone = require_wan(model)
    patched = model.clone()
    for layer, block in enumerate(backbone.blocks):
        kinds = [("self_attn", SelfAttentionPatch)]
        if isinstance(block.cross_attn, WanT2VCrossAttention):
            kinds.append(("cross_attn", CrossAttentionPatch))
        for part, kind in kinds:
            key = f"diffusion_model.blocks.{layer}.{part}.forward"
            original = patched.get_model_object(key)
            if not isinstance(original, kind):
                patched.add_object_patch(key, kind(layer, getattr(block, part), original))
    if not patched.get_wrappers(WrappersMP.OUTER_SAMPLE, KEY):
        patched.add_wrapper_with_key(WrappersMP.OUTER_SAMPLE, KEY, prepare_take)
    return patched
