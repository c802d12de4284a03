"""From a file to a MODEL with a profile, through the host's own loader."""
import logging
import os

import comfy.sd
import comfy.utils
import torch

from .patch import patch
from .profiles import PROFILE, ARProfile, with_profile

WEIGHT_DTYPES = {"default": {}, "fp8_e4m3fn": {"dtype": torch.float8_e4m3fn},
                 "fp8_e4m3fn_fast": {"dtype": torch.float8_e4m3fn, "fp8_optimizations": True}, "fp8_e5m2": {"dtype": torch.float8_e5m2}}


def load_ar_model(path: str, profile: ARProfile | None, weight_dtype: str = "default"):
    """Load a diffusion model file; `profile` None takes the one in its header."""
    name = os.path.basename(path)
    weights, metadata = comfy.utils.load_torch_file(path, safe_load=True, return_metadata=True)
    if profile is None:
        if not metadata or PROFILE not in metadata:
            raise ValueError(f"'{name}' does not say how it was trained. Choose a profile in AR Video Model Loader: frame-wise or "
                             "chunk-wise cannot be told from the weights, and the wrong one gives a broken video.")
        profile = ARProfile.from_json(metadata[PROFILE])
    model = comfy.sd.load_diffusion_model_state_dict(weights, model_options=WEIGHT_DTYPES[weight_dtype], metadata=metadata)
    if model is None:
        raise ValueError(f"ComfyUI does not recognise the model in '{name}'. Keepsake loads Wan video models "
                         "(Self-Forcing, Causal-Forcing, LongLive and their like).")
    model.cached_patcher_init = (comfy.sd.load_diffusion_model, (path, WEIGHT_DTYPES[weight_dtype]))      # how the host makes it again
    model = with_profile(patch(model), profile)
    logging.info("Keepsake: %s loaded as %s, profile '%s'", name, type(model.model).__name__, profile.name)
    return model
