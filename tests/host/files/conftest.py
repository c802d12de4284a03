"""A tiny model, video decoder and output folder. ComfyUI is imported only when a test asks."""

import pytest
import torch


@pytest.fixture(scope="module")
def model(model):
    from support import tiny

    return tiny.prepared(model)


@pytest.fixture(scope="module")
def vae():
    """A tiny random Wan VAE in the host's own wrapper."""
    import comfy.sd
    from comfy.ldm.wan.vae import WanVAE

    module, generator = (
        WanVAE(
            dim=8,
            z_dim=16,
            dim_mult=[1, 2, 4, 4],
            num_res_blocks=2,
            attn_scales=[],
            temperal_downsample=[False, True, True],
        ),
        torch.Generator(),
    )
    state = {
        name: torch.ones(p.shape)
        if "gamma" in name
        else torch.randn(p.shape, generator=generator.manual_seed(i)) * (p[0].numel() or 1) ** -0.5
        for i, (name, p) in enumerate(module.named_parameters())
    }
    return comfy.sd.VAE(sd=state)


@pytest.fixture
def output(tmp_path, monkeypatch):
    import folder_paths

    monkeypatch.setattr(folder_paths, "get_output_directory", lambda: str(tmp_path))
    return tmp_path
