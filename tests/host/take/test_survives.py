"""What users of such tools ran into, each fault by name: the stock sampler's crashes, cancel, long
takes.
"""

import gc

import comfy.model_management
import comfy.samplers
import pytest
import torch
from keepsake.kv_policies import Chunk, KVPolicy, SinkWindow
from support import tiny
from torch._subclasses.fake_tensor import FakeTensor

# -- where the stock sampler stops


def test_guidance_runs_with_one_cache_per_stream(model):
    noise, stats = tiny.noise_of(5, **tiny.SIZE), []
    guided = tiny.ours(model, noise, 2, cfg=3.0, on_stats=stats.append)
    assert stats[0].streams == 2
    assert not torch.equal(guided, tiny.ours(model, noise, 2))
    same = tiny.ours(model, noise, 2, cfg=3.0, positive=tiny.prompt(1), negative=tiny.prompt(1))
    assert torch.allclose(same, tiny.ours(model, noise, 2, positive=tiny.prompt(1)), atol=1e-3)


def test_two_positive_prompts_have_a_stream_each(model):
    stats = []
    both = tiny.ours(
        model,
        tiny.noise_of(4, **tiny.SIZE),
        2,
        positive=tiny.prompt(1) + tiny.prompt(4),
        on_stats=stats.append,
    )
    assert stats[0].streams == 2 and torch.isfinite(both).all()


def test_a_prompt_for_a_part_of_the_steps_keeps_its_own_history(model):
    early, late = tiny.prompt(1), tiny.prompt(4)
    early[0][1].update(start_percent=0.0, end_percent=0.3)
    late[0][1].update(start_percent=0.3, end_percent=1.0)
    stats = []
    out = tiny.ours(
        model, tiny.noise_of(5, **tiny.SIZE), 2, positive=early + late, on_stats=stats.append
    )
    assert stats[0].streams == 2 and torch.isfinite(out).all()


@pytest.mark.parametrize("kind", ["DualCFG", "PerpNeg"])
def test_guiders_with_rules_of_their_own_write_every_stream_clean(model, kind):
    """Both run the negative whatever `guider.cfg` says; a stream that misses its clean pass would
    end the take.
    """
    from comfy_extras.nodes_custom_sampler import Guider_DualCFG
    from comfy_extras.nodes_perpneg import Guider_PerpNeg

    prepared, stats = tiny.prepared(model), []
    guider = (Guider_DualCFG if kind == "DualCFG" else Guider_PerpNeg)(prepared)
    if kind == "DualCFG":
        guider.set_cfg(2.0, 3.0)
    else:
        guider.set_cfg(1.0, 2.0)
    guider.set_conds(tiny.prompt(1), tiny.prompt(2), tiny.prompt(3))
    noise = tiny.noise_of(5, **tiny.SIZE)
    sigmas = torch.tensor([1.0, 0.9, 0.5, 0.0])
    out = guider.sample(
        noise,
        torch.zeros_like(noise),
        tiny.sampler(chunk_frames=2, on_stats=stats.append),
        sigmas,
        disable_pbar=True,
        seed=1,
    )
    assert stats[0].streams == 3 and torch.isfinite(out).all()


@pytest.mark.parametrize("size", [(7, 9), (4, 5), (5, 4)])
def test_odd_latent_sizes(model, size):
    out = tiny.ours(model, tiny.noise_of(4, *size), 2)
    assert out.shape == (1, 16, 4, *size) and torch.isfinite(out).all()


def test_a_batch_with_a_start_latent(model):
    image = tiny.noise_of(1, seed=8, **tiny.SIZE)
    out = tiny.ours(model, tiny.noise_of(4, batch=2, **tiny.SIZE), 2, prefix=image)
    assert torch.allclose(out[:, :, :1], image.expand(2, -1, -1, -1, -1), atol=1e-5)
    assert not torch.equal(out[0], out[1])


def test_a_video_prefix_is_continued_and_comes_out_first(model):
    clip = tiny.noise_of(5, seed=8, **tiny.SIZE)
    out = tiny.ours(model, tiny.noise_of(9, **tiny.SIZE), 2, prefix=clip)
    assert torch.allclose(out[:, :, :5], clip, atol=1e-5)


# -- length


def test_a_take_past_1024_latent_frames_in_constant_memory(model):
    stats = []
    out = tiny.ours(
        model,
        tiny.noise_of(1030, 2, 2),
        10,
        KVPolicy(SinkWindow(2, 22)),
        steps=1,
        on_stats=stats.append,
    )
    assert torch.isfinite(out).all() and out.shape[2] == 1030
    assert stats[0].chunks[-1].allocated_bytes == stats[0].chunks[3].allocated_bytes


def test_positions_stay_exact_in_half_precision(model):
    """In bf16, frame 257 would be 256: the table must come in fp32 whatever the activations are."""
    from keepsake.host.model.backbone import rotation

    backbone = model.get_model_object("diffusion_model")
    table = rotation(backbone, Chunk(0, 5001, 1).span, 4, 4, torch.device("cpu"), {})
    angle = 5001 * torch.tensor(10000.0, dtype=torch.float64) ** (
        -torch.arange(0, 8, 2, dtype=torch.float64) / 8
    )
    assert table.dtype == torch.float32
    assert torch.allclose(table[0, 0, 0, :4, 0, 0].double(), angle[:4].cos(), atol=1e-6)


def test_more_than_21_frames_keep_all_or_roll_and_never_overflow(model):
    for policy in (KVPolicy(), KVPolicy(SinkWindow(0, 6)), KVPolicy(SinkWindow(3, 9, "shifted"))):
        assert torch.isfinite(tiny.ours(model, tiny.noise_of(25, 2, 2), 3, policy, steps=1)).all()


# -- cancel, errors, repetition


def live_bytes() -> int:
    """Bytes of all tensors, but for those that hold none: the fake ones of torch.compile, and the
    undefined ones that other libraries leave.
    """
    gc.collect()
    storages = {
        t.untyped_storage().data_ptr(): t.untyped_storage().nbytes()
        for t in gc.get_objects()
        if issubclass(type(t), torch.Tensor)
        and not isinstance(t, FakeTensor)
        and torch._C._has_storage(t)
    }
    return sum(storages.values())


def test_cancel_in_mid_layer_frees_the_cache_and_the_next_run_is_equal(model):
    noise = tiny.noise_of(6, **tiny.SIZE)
    whole, before = tiny.ours(model, noise, 2), live_bytes()

    def cancel(step, x0, x, total):
        if step == 5:
            comfy.model_management.interrupt_current_processing()

    with pytest.raises(comfy.model_management.InterruptProcessingException):
        tiny.ours(model, noise, 2, callback=cancel)
    comfy.model_management.interrupt_current_processing(False)
    assert live_bytes() <= before
    assert torch.equal(tiny.ours(model, noise, 2), whole)


@pytest.mark.parametrize("call", [3, 40])
def test_running_out_of_memory_frees_the_cache_and_the_next_run_is_equal(model, monkeypatch, call):
    from keepsake.host.forward import attention

    noise = tiny.noise_of(6, **tiny.SIZE)
    whole, before, calls, real = (
        tiny.ours(model, noise, 2),
        live_bytes(),
        [],
        attention.optimized_attention,
    )

    def out_of_memory(*args, **kwargs):
        calls.append(1)
        if len(calls) == call:
            raise torch.OutOfMemoryError("no room")
        return real(*args, **kwargs)

    monkeypatch.setattr(attention, "optimized_attention", out_of_memory)
    with pytest.raises(torch.OutOfMemoryError):
        tiny.ours(model, noise, 2)
    monkeypatch.undo()
    assert live_bytes() <= before
    assert torch.equal(tiny.ours(model, noise, 2), whole)


def test_a_preview_that_fails_does_not_end_the_take(model):
    def broken(step, x0, x, total):
        raise OSError("no picture")

    noise = tiny.noise_of(4, **tiny.SIZE)
    assert torch.equal(tiny.ours(model, noise, 2, callback=broken), tiny.ours(model, noise, 2))


def test_progress_counts_chunks_times_steps(model):
    reported = []
    tiny.ours(
        model,
        tiny.noise_of(5, **tiny.SIZE),
        2,
        steps=3,
        callback=lambda step, x0, x, total: reported.append((step, total)),
    )
    assert reported == [(i, 9) for i in range(9)]


def test_the_preview_plays_the_newest_finished_chunk(model):
    """Three steps, chunks of two frames: the prediction while nothing is finished, then frames 0, 0
    and 1 of the chunk before, and the last result whole.
    """
    shown = []
    out = tiny.ours(
        model,
        tiny.noise_of(6, **tiny.SIZE),
        2,
        steps=3,
        callback=lambda step, x0, x, total: shown.append(x0[:, :, :1].clone()),
    )
    frames = [model.model.process_latent_out(x) for x in shown]
    assert not torch.equal(frames[0], out[:, :, :1])
    for report, frame in [(2, 0), (3, 0), (4, 0), (5, 1), (6, 2), (7, 2), (8, 4)]:
        assert torch.equal(frames[report], out[:, :, frame : frame + 1]), report


def test_the_same_seed_gives_the_same_take_and_another_seed_another(model):
    noise = tiny.noise_of(4, **tiny.SIZE)
    assert torch.equal(tiny.ours(model, noise, 2, seed=1), tiny.ours(model, noise, 2, seed=1))
    assert not torch.equal(tiny.ours(model, noise, 2, seed=1), tiny.ours(model, noise, 2, seed=2))


def test_the_global_random_numbers_are_left_alone(model):
    torch.manual_seed(5)
    tiny.ours(model, tiny.noise_of(4, **tiny.SIZE), 2)
    after = torch.rand(1)
    torch.manual_seed(5)
    assert torch.rand(1) == after


def test_the_largest_seed_works(model):
    assert torch.isfinite(
        tiny.ours(model, tiny.noise_of(4, **tiny.SIZE), 2, seed=0xFFFFFFFFFFFFFFFF)
    ).all()
