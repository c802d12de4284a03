"""A take over several devices: the host's own clones and threads, on a CPU that goes by several
names.
"""

import threading
from dataclasses import replace

import comfy.model_management
import comfy.multigpu
import comfy.utils
import pytest
import torch
from keepsake.demo import world
from keepsake.demo.load import load_demo_world
from keepsake.host.forward import attention
from keepsake.host.forward.prompts import add_prompt
from keepsake.host.take.plan import HostPlan
from keepsake.host.take.take import sample_take
from keepsake.kv_policies import DeCoPrune, FlashForward, Hierarchical, KVPolicy
from support import tiny

LAYERS = 2
SMALL = KVPolicy(
    schedule=FlashForward(
        anchor_stride=4,
        block_anchors=2,
        anchor_window=2,
        planner_history=1,
        stage_history=1,
        budget_frames=6,
    )
)


@pytest.fixture(autouse=True)
def one_thread():
    """How a sum is shared out to a processor's threads decides its last bit, and new threads of
    Python share it out otherwise than the first.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def spread_over(model, devices, monkeypatch):
    """What the host's multi-GPU node does, with so many CPUs."""
    names = [torch.device("cpu"), *(torch.device("cpu", number) for number in range(1, devices))]
    monkeypatch.setattr(
        comfy.model_management, "get_all_torch_devices", lambda exclude_current=False: names
    )
    spread = comfy.multigpu.create_multigpu_deepclones(model, devices)
    for clone in (spread, *spread.get_additional_models_with_key("multigpu")):
        own = {
            key: entry
            for key, entry in clone.object_patches.items()
            if key.endswith("attn.forward")
        }
        assert own and all(
            entry.attention is comfy.utils.get_attr(clone.model, key.removesuffix(".forward"))
            for key, entry in own.items()
        )
    assert [
        clone.load_device for clone in spread.get_additional_models_with_key("multigpu")
    ] == names[1:]
    return spread


def prepared(**options):
    model = tiny.prepared(tiny.tiny_model(layers=LAYERS, **options))
    model.cached_patcher_init = (
        lambda: tiny.tiny_model(layers=LAYERS, **options),
        (),
    )  # how the host makes a clone; loaders set it
    return model


def take(model, policy=SMALL, frames=13, stats=None, **options):
    return tiny.ours(
        model,
        options.pop("noise", tiny.noise_of(frames, **tiny.SIZE)),
        2,
        policy,
        steps=2,
        on_stats=(stats if stats is not None else []).append,
        **options,
    )


@pytest.fixture(autouse=True)
def no_thread_stays():
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


@pytest.fixture
def threads(monkeypatch):
    """The threads that forwards ran in."""
    seen, read = set(), attention.SelfAttentionPatch.__call__
    monkeypatch.setattr(
        attention.SelfAttentionPatch,
        "__call__",
        lambda self, *args, **kwargs: (
            seen.add((threading.current_thread(), id(self.attention)))
            or read(self, *args, **kwargs)
        ),
    )
    return seen


@pytest.mark.parametrize("devices", [2, 3, 5])
def test_several_devices_make_the_same_take(devices, monkeypatch, threads):
    model, steps, collected = prepared(), [], []
    whole = take(model, callback=lambda step, x0, x, total: steps.append((step, x0.clone(), total)))
    threads.clear()
    spread, stats = spread_over(model, devices, monkeypatch), []
    assert torch.equal(
        take(
            spread,
            stats=stats,
            callback=lambda step, x0, x, total: collected.append((step, x0.clone(), total)),
        ),
        whole,
    )
    used = min(devices, 3)  # the planner and two stages
    assert (
        len({thread for thread, _ in threads}) == used
        and len({module for _, module in threads}) == len(threads) == used * LAYERS
    )  # each to its own clone
    assert threading.main_thread() not in {thread for thread, _ in threads}
    assert [(step, total) for step, _, total in collected] == [
        (step, total) for step, _, total in steps
    ]
    assert all(torch.equal(one, other) for (_, one, _), (_, other, _) in zip(collected, steps))
    assert [row.start_frame for row in stats[0].chunks] == [0, 2, 4, 6, 8, 10, 12]
    assert torch.equal(take(model), whole)


@pytest.mark.parametrize(
    "options",
    [dict(cfg=3.0), dict(prefix=5), dict(batch=2), dict(cfg=2.0, prefix=7, control=True)],
    ids=str,
)
def test_guidance_prefix_batch_and_control_on_several_devices(options, monkeypatch):
    options, model = dict(options), prepared(**({"in_dim": 32} if "control" in options else {}))
    if "prefix" in options:
        options["prefix"] = tiny.noise_of(options["prefix"], seed=8, **tiny.SIZE)
    if "batch" in options:
        options["noise"] = tiny.noise_of(9, batch=options.pop("batch"), **tiny.SIZE)
    if "control" in options:
        options["control"] = torch.randn(
            (1, 16, 13, 4, 4), generator=torch.Generator().manual_seed(6)
        )
    assert torch.equal(take(spread_over(model, 3, monkeypatch), **options), take(model, **options))


def test_prompts_that_change_or_rest_on_several_devices(monkeypatch):
    model = prepared()
    spread, late = (
        spread_over(model, 3, monkeypatch),
        [[tiny.prompt(4)[0][0], {"start_percent": 0.5}]],
    )
    for positive in (
        add_prompt(tiny.prompt(1), tiny.prompt(5), 6, "swap", 0, 12),
        tiny.prompt(1) + late,
    ):
        whole = take(model, positive=positive)
        assert torch.equal(take(spread, positive=positive), whole) and not torch.equal(
            take(model), whole
        )


def test_a_lora_goes_to_every_device(monkeypatch):
    model = prepared()
    lora = with_lora(model)
    plain, changed = take(model), take(lora)
    assert torch.equal(take(spread_over(lora, 3, monkeypatch)), changed) and not torch.equal(
        changed, plain
    )


def test_a_loaded_file_can_be_spread(monkeypatch):
    model, clip, _ = load_demo_world()
    latent = {"samples": torch.zeros(1, 16, 7, world.ROWS, world.COLUMNS)}
    inputs = dict(
        seed=3,
        steps=2,
        control=world.camera_control(latent["samples"].shape, "go and return", 4, 0),
        policy=SMALL,
    )
    positive = clip.encode_from_tokens_scheduled(clip.tokenize("harbour at dawn"))
    alone = sample_take(model, positive, None, 1.0, latent, **inputs)[0]["samples"]
    assert torch.equal(
        sample_take(spread_over(model, 3, monkeypatch), positive, None, 1.0, latent, **inputs)[0][
            "samples"
        ],
        alone,
    )


@pytest.mark.parametrize("where", [0, 5, 23])
def test_an_error_on_one_device_ends_the_take_and_the_next_is_equal(where, monkeypatch):
    model = prepared()
    whole, spread, calls = take(model), spread_over(model, 3, monkeypatch), []
    real = attention.optimized_attention

    def out_of_memory(*args, **kwargs):
        calls.append(1)
        if len(calls) > where:
            raise torch.OutOfMemoryError(f"attention {len(calls)}")
        return real(*args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(attention, "optimized_attention", out_of_memory)
        with pytest.raises(torch.OutOfMemoryError):
            take(spread)
    assert torch.equal(take(spread), whole)


@pytest.mark.parametrize("at", [1, 12, 40])
def test_a_cancel_inside_a_forward_ends_every_device(at, monkeypatch):
    model, calls, real = prepared(), [], attention.optimized_attention
    whole, spread = take(model), spread_over(model, 3, monkeypatch)

    def cancel(*args, **kwargs):
        calls.append(1)
        if len(calls) == at:
            comfy.model_management.interrupt_current_processing()
        return real(*args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(attention, "optimized_attention", cancel)
        with pytest.raises(comfy.model_management.InterruptProcessingException):
            take(spread)
    assert torch.equal(take(spread), whole)


@pytest.mark.parametrize(
    "policy, name",
    [
        (KVPolicy(), "Clean Pass"),
        (KVPolicy(DeCoPrune()), "Clean Pass"),
        (KVPolicy(schedule=Hierarchical()), r"Hierarchical \(HiAR\)"),
    ],
)
def test_a_schedule_with_nothing_to_run_side_by_side_is_refused(policy, name, monkeypatch):
    with pytest.raises(
        ValueError,
        match=f"{name} runs one forward after another, on one device, and this MODEL is spread "
        "over 2. Use .*FlashForward",
    ):
        take(spread_over(prepared(), 2, monkeypatch), policy)


def with_lora(model):
    """The same weights with a change on one layer's text keys."""
    lora = model.clone()
    lora.add_patches(
        {
            "diffusion_model.blocks.0.cross_attn.k.weight": (
                "diff",
                (torch.randn((64, 64), generator=torch.Generator().manual_seed(5)),),
            )
        }
    )
    return lora


def test_a_planner_of_its_own_has_a_device_of_its_own(monkeypatch, threads):
    model = prepared()
    policy = replace(SMALL, models={"planner": with_lora(model)})
    whole, plain = take(model, policy, cfg=2.0), take(model, cfg=2.0)
    threads.clear()
    spread = spread_over(model, 3, monkeypatch)
    assert torch.equal(take(spread, policy, cfg=2.0), whole) and not torch.equal(plain, whole)
    assert len({thread for thread, _ in threads}) == 3
    assert torch.equal(take(spread, cfg=2.0), plain) and torch.equal(
        take(model, cfg=2.0), plain
    )  # the sampler's weights are back


@pytest.mark.parametrize(
    "devices, role, words",
    [
        (
            2,
            "planner",
            "would take turns with a step on one device. Spread the MODEL over 3 devices",
        ),
        (
            3,
            "renderer",
            "renderer_model is not. Connect the renderer's model, behind the multi-GPU node",
        ),
    ],
)
def test_roles_that_would_take_turns_are_refused_on_several_devices(
    devices, role, words, monkeypatch
):
    model = prepared()
    with pytest.raises(ValueError, match=words):
        take(
            spread_over(model, devices, monkeypatch),
            replace(SMALL, models={role: model}),
        )


def test_the_host_is_told_the_cache_of_the_fullest_device(monkeypatch):
    collected, real = [], HostPlan.shape_to_load
    monkeypatch.setattr(
        HostPlan,
        "shape_to_load",
        lambda plan, *args: collected.append(plan.take_bytes) or real(plan, *args),
    )
    model = prepared()
    take(model)
    take(spread_over(model, 3, monkeypatch))
    frame = LAYERS * 2 * 64 * 4 * 4  # keys and values of a latent frame of four tokens
    joined = (
        frame // LAYERS * (2 * 2 + 4)
    )  # one layer's, while a chunk reads both blocks and its stage
    latents = 4 * 13 * 16 * 4 * 4 * 4  # four times the take's, in fp32
    assert collected == [
        frame * (2 * 2 + 2 * 4) + joined + latents,
        frame * 2 * 2 + joined + latents,
    ]  # two blocks of two anchors, two stages of two chunks; each on a device
