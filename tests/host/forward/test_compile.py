"""A MODEL behind ComfyUI's TorchCompileModel: what is compiled serves all layers and chunks."""

import gc

import pytest
import torch
import torch._dynamo
from comfy_api.torch_helpers import set_torch_compile_wrapper
from keepsake.kv_policies import KVPolicy, SinkWindow, TaylorSeer
from support import tiny

LAYERS = 10  # more than torch.compile's limit of eight versions of a function


@pytest.fixture(autouse=True)
def nothing_compiled():
    """Compiled code, and the fake tensors that it was traced with, live for this file alone."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
    gc.collect()


@pytest.mark.parametrize(
    "policy", [KVPolicy(SinkWindow(1, 4)), KVPolicy(schedule=TaylorSeer())], ids=repr
)
def test_a_compiled_model_makes_the_same_take_within_the_limit_of_recompiles(policy):
    """Where the layer's number or a count of the session was a constant of what is compiled, the
    ninth layer met the limit, and from there on nothing was compiled.
    """
    model = tiny.prepared(tiny.tiny_model(layers=LAYERS))
    compiled = model.clone()
    blocks = [f"diffusion_model.blocks.{layer}" for layer in range(LAYERS)]
    set_torch_compile_wrapper(compiled, backend="eager", keys=blocks)

    def take(model):
        sampler = tiny.sampler(policy, 1)
        return tiny.guide(model, sampler, tiny.noise_of(12, 4, 4))

    plain = take(model)
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        assert torch.equal(take(compiled), plain)
