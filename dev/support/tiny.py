"""Tiny random Wan models in the real host, and the stock AR sampler beside ours."""

import json

import comfy.samplers
import comfy.sd
import torch
from keepsake.host.model.profiles import ARProfile, with_profile
from keepsake.host.take.patch import patch
from keepsake.host.take.request import TakeRequest
from keepsake.host.take.sampling import ARVideoSampler, log_stats
from keepsake.kv_policies import KVPolicy

SIZE = dict(height=4, width=4)  # of a small latent, for `noise_of`


def tiny_state(seed=0, dim=64, heads=4, layers=3, in_dim=16, ffn_dim=96):
    """A state dict of a Wan T2V model with random weights, and the metadata that describes it to
    the host's loader.
    """
    import comfy.ops
    from comfy.ldm.wan.model import WanModel

    config = dict(
        in_dim=in_dim,
        dim=dim,
        ffn_dim=ffn_dim,
        freq_dim=64,
        text_dim=24,
        out_dim=16,
        num_heads=heads,
        num_layers=layers,
    )
    model = WanModel(
        operations=comfy.ops.disable_weight_init, dtype=torch.float32, device="cpu", **config
    )
    return random_weights(model, seed), config


def random_weights(model, seed) -> dict[str, torch.Tensor]:
    """Weights by which what goes in and out of a layer is of one size."""
    generator = torch.Generator().manual_seed(seed)
    state = {}
    for name, p in model.named_parameters():
        if "norm" in name and name.endswith("weight"):
            state[name] = torch.ones(p.shape)
        else:
            fan_in = p[0].numel() if p.ndim > 1 else 16
            state[name] = torch.randn(p.shape, generator=generator) * fan_in**-0.5
    return state


def lingbot_state(seed=0, dim=128, layers=2, ffn_dim=64, text_dim=4096, freq_dim=256):
    """A state dict of LingBot-World's tensors, as its authors name them."""
    import comfy.ops
    from keepsake.host.model.lingbot import LingBotWan

    return random_weights(
        LingBotWan(
            in_dim=36,
            out_dim=16,
            dim=dim,
            ffn_dim=ffn_dim,
            freq_dim=freq_dim,
            text_dim=text_dim,
            num_heads=dim // 128,
            num_layers=layers,
            operations=comfy.ops.disable_weight_init,
            dtype=torch.float32,
            device="cpu",
        ),
        seed,
    )


LINGBOT = dict(dim=256, ffn_dim=512, text_dim=64)  # of `lingbot_state`, for takes


def lingbot_file(path, seed=0) -> str:
    """A tiny LingBot-World as a file, whose header says its width and its text's."""
    from safetensors.torch import save_file

    config = {"transformer": {"num_heads": LINGBOT["dim"] // 128, "text_dim": 64}}
    save_file(lingbot_state(seed, **LINGBOT), path, {"config": json.dumps(config)})
    return str(path)


def tiny_model(causal=True, weights=None, **options):
    """An unpatched MODEL of the host: the causal class, or the plain Wan class; `weights` is a
    dtype for the host's loader.
    """
    state, config = tiny_state(**options)
    metadata = {
        "config": json.dumps({"transformer": {**config, "causal_ar": True} if causal else config})
    }
    return comfy.sd.load_diffusion_model_state_dict(
        state, model_options={"dtype": weights}, metadata=metadata
    )


def prompt(seed, tokens=7, batch=1):
    return [[torch.randn((batch, tokens, 24), generator=torch.Generator().manual_seed(seed)), {}]]


def noise_of(frames=7, height=6, width=10, batch=1, seed=3):
    return torch.randn(
        (batch, 16, frames, height, width), generator=torch.Generator().manual_seed(seed)
    )


def guide(
    model,
    sampler,
    noise,
    positive=None,
    negative=None,
    cfg=1.0,
    steps=4,
    seed=11,
    callback=None,
    sigmas=None,
):
    """One sampling call of the host: `[B, 16, T, h, w]`."""
    if sigmas is None:
        sigmas = comfy.samplers.calculate_sigmas(
            model.get_model_object("model_sampling"), "simple", steps
        )
    guider = comfy.samplers.CFGGuider(model)
    guider.set_conds(positive or prompt(1), negative or prompt(2))
    guider.set_cfg(cfg)
    return guider.sample(
        noise,
        torch.zeros_like(noise),
        sampler,
        sigmas,
        callback=callback,
        disable_pbar=True,
        seed=seed,
    )


def stock(model, noise, chunk_frames, **options):
    return guide(
        model,
        comfy.samplers.ksampler("ar_video", {"num_frame_per_block": chunk_frames}),
        noise,
        **options,
    )


def ours(
    model,
    noise,
    chunk_frames,
    policy=None,
    prefix=None,
    control=None,
    on_stats=lambda stats: None,
    **options,
):
    made_by = sampler(
        policy or KVPolicy(), chunk_frames, prefix=prefix, control=control, on_stats=on_stats
    )
    return guide(prepared(model), made_by, noise, **options)


def sampler(policy=None, chunk_frames=0, on_stats=log_stats, on_memory=None, files=None, **request):
    """Our SAMPLER; `request` are further fields of a TakeRequest."""
    asked = TakeRequest(policy=policy, chunk_frames=chunk_frames, **request)
    return ARVideoSampler(asked, on_stats, on_memory, files)


def prepared(model):
    return with_profile(patch(model), ARProfile(name="tiny", shift=5.0))
