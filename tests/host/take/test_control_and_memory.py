"""Per-frame control, and what the host is told about memory."""

import comfy.model_management
import pytest
import torch
from keepsake.kv_policies import KVPolicy, SinkWindow
from support import tiny


def test_each_chunk_sees_its_own_frames_of_the_control():
    model = tiny.tiny_model(in_dim=32)
    seen, noise = [], tiny.noise_of(5, **tiny.SIZE)
    control = torch.arange(5.0).view(1, 1, 5, 1, 1).expand(1, 16, 5, 4, 4).contiguous()
    backbone = model.get_model_object("diffusion_model")
    handle = backbone.patch_embedding.register_forward_pre_hook(
        lambda module, args: seen.append(args[0][0, 16, :, 0, 0].clone())
    )
    tiny.ours(model, noise, 2, control=control, steps=1)
    handle.remove()
    frames = [[round(float(v), 3) for v in chunk] for chunk in seen]
    assert frames == [
        [0, 1],
        [0, 1],
        [2, 3],
        [2, 3],
        [4],
    ]  # a step and a clean pass each, no clean pass at the end


def test_the_callers_control_is_not_changed():
    control = torch.randn(1, 16, 4, 4, 4)
    copy = control.clone()
    tiny.ours(
        tiny.tiny_model(in_dim=32), tiny.noise_of(4, **tiny.SIZE), 2, control=control, steps=1
    )
    assert torch.equal(control, copy)


def test_the_host_is_told_the_cache_before_it_loads_weights(monkeypatch):
    announced = []
    load = comfy.model_management.load_models_gpu

    def spy(models, memory_required=0, minimum_memory_required=None, **kwargs):
        announced.append(minimum_memory_required)
        return load(
            models,
            memory_required=memory_required,
            minimum_memory_required=minimum_memory_required,
            **kwargs,
        )

    monkeypatch.setattr(comfy.model_management, "load_models_gpu", spy)
    model, stats = tiny.tiny_model(), []
    tiny.ours(model, tiny.noise_of(40, **tiny.SIZE), 2, on_stats=stats.append, steps=1)
    whole = announced[-1]
    one_chunk = model.model.memory_required([1, 16, 2, 4, 4])
    assert whole >= one_chunk + stats[0].peak_cache_bytes
    tiny.ours(
        model,
        tiny.noise_of(40, **tiny.SIZE),
        2,
        KVPolicy(SinkWindow(0, 6)),
        on_stats=stats.append,
        steps=1,
    )
    assert one_chunk + stats[1].peak_cache_bytes <= announced[-1] < whole


@pytest.mark.parametrize(
    "policy", [KVPolicy(), KVPolicy(SinkWindow(2, 6, "shifted"))], ids=["full", "shifted sink"]
)
def test_every_stream_and_the_held_sink_are_counted(policy, plans):
    from keepsake.host.take.outer_call import announce_cache

    announced, stats, model = [], [], tiny.tiny_model()
    sampler = tiny.sampler(policy, 2, on_stats=stats.append)
    tiny.guide(
        tiny.prepared(model),
        sampler,
        tiny.noise_of(12, **tiny.SIZE),
        positive=tiny.prompt(1) + tiny.prompt(2),
        steps=1,
    )
    announce_cache(plans[0])(lambda model, shape: announced.append(shape), model, [1, 16, 12, 4, 4])
    assert plans[0].estimate.allocated[0] == stats[0].peak_cache_bytes
    assert model.model.memory_required(announced[0]) >= stats[0].peak_cache_bytes


def test_full_kv_allocates_what_the_stock_sampler_allocates():
    stats = []
    tiny.ours(tiny.tiny_model(), tiny.noise_of(6, **tiny.SIZE), 2, on_stats=stats.append)
    backbone = tiny.tiny_model().get_model_object("diffusion_model")
    stock = backbone.init_kv_caches(1, 6 * 4, torch.device("cpu"), torch.float32)
    assert stats[0].peak_cache_bytes == sum(c[side].numel() * 4 for c in stock for side in "kv")
