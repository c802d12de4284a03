"""The budget of a take agrees with its run, and says how long a take can be."""

import gc
import logging

import comfy.model_management
import pytest
import torch
from keepsake.host.budget import budget as budget_module
from keepsake.host.budget.budget import LENGTH_LIMIT
from keepsake.host.budget.report import budget_dict, budget_report
from keepsake.host.take.take import sample_take
from keepsake.kv_policies import (
    DeCoPrune,
    FlashForward,
    Hierarchical,
    KVPolicy,
    KVStorage,
    SinkWindow,
)
from support import tiny

from .inputs import budget

POLICIES = [
    KVPolicy(),
    KVPolicy(SinkWindow(2, 6, "shifted")),
    KVPolicy(DeCoPrune(mode="target_keep")),
    KVPolicy(storage=KVStorage("int4", 1, 1)),
    KVPolicy(storage=KVStorage("model", device="cpu")),
    KVPolicy(schedule=FlashForward(anchor_stride=4)),
    KVPolicy(schedule=Hierarchical(6)),
]


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
@pytest.mark.parametrize("cfg", [1.0, 2.0])
def test_the_budget_agrees_with_the_run(policy, cfg):
    stats, noise = [], tiny.noise_of(11, 4, 4)
    ahead = budget(policy, noise, cfg=cfg)
    tiny.ours(tiny.tiny_model(), noise, 2, policy, on_stats=stats.append, steps=2, cfg=cfg)
    assert ahead.estimate.allocated == (stats[0].peak_cache_bytes,) * 2
    assert [
        (chunk.row.bank_bytes, chunk.row.allocated_bytes) for chunk in ahead.estimate.least
    ] == [(row.bank_bytes, row.allocated_bytes) for row in stats[0].chunks]


def test_the_plan_is_the_samplers_first_line(caplog):
    with caplog.at_level(logging.INFO):
        tiny.ours(tiny.tiny_model(), tiny.noise_of(5, 4, 4), 2, steps=1)
    lines = [record.message for record in caplog.records]
    plan = next(
        i
        for i, line in enumerate(lines)
        if line.startswith(
            "Keepsake: 5 latent frames in 3 chunks, 1 prompt stream: the KV cache takes"
        )
    )
    assert not any("loaded" in line for line in lines[:plan])


def test_given_frames_count():
    noise = tiny.noise_of(9, 4, 4)
    ahead = budget(KVPolicy(), noise, prefix=noise[:, :, :4])
    assert budget_dict(ahead)["given_frames"] == 4 and [
        chunk["given"] for chunk in budget_dict(ahead)["chunks"]
    ] == [True, True, False, False, False]
    with pytest.raises(ValueError, match="longer than its prefix"):
        budget(KVPolicy(), noise, prefix=noise)


@pytest.mark.parametrize("batch", [1, 2])
def test_the_latents_of_the_whole_take_are_counted_as_often_as_they_are_held(batch):
    """Looked for among all tensors alive while a chunk is made."""
    shape, held = (batch, 16, 40, 4, 4), set()

    def look(*step):
        found = [
            x.untyped_storage()
            for x in gc.get_objects()
            if issubclass(type(x), torch.Tensor) and x.shape == shape and x.dtype == torch.float32
        ]
        held.update({storage.data_ptr(): storage.nbytes() for storage in found}.items())

    model = tiny.prepared(tiny.tiny_model())
    sample_take(
        model,
        tiny.prompt(1),
        None,
        1.0,
        {"samples": torch.zeros(shape)},
        seed=1,
        steps=1,
        chunk_frames=2,
        policy=KVPolicy(SinkWindow(0, 4)),
        callback=look,
    )
    ahead = budget(KVPolicy(SinkWindow(0, 4)), torch.zeros(shape))
    assert (
        ahead.plan.latent_bytes
        == sum(nbytes for _, nbytes in held)
        == budget_dict(ahead)["latent_bytes"]
    )
    assert (
        ahead.needed[0]
        == ahead.estimate.least[-1].row.allocated_bytes
        + ahead.estimate.least[-1].copied_bytes
        + ahead.plan.latent_bytes
        + ahead.activation_bytes
    )


def test_the_longest_take_fits_and_one_frame_more_does_not(device_of):
    noise = tiny.noise_of(9, 4, 4)
    plan = budget(KVPolicy(), noise).plan
    frame = plan.geometry.bytes_per_frame(4) + plan.latent_bytes // 9
    device_of(budget(KVPolicy(), noise).activation_bytes + 13 * frame + 1)
    assert budget(KVPolicy(), noise).longest == {"free": (13, 13), "total": (13, 13)}
    window = (
        budget(KVPolicy(SinkWindow(0, 6)), noise).estimate.needed[0] - plan.latent_bytes
    )  # whatever the length, so latents set the bound
    assert (
        budget(KVPolicy(SinkWindow(0, 6)), noise).longest["free"]
        == ((13 * frame + 1 - window) * 9 // plan.latent_bytes,) * 2
    )
    report = budget_report(budget(KVPolicy(), noise))
    assert "this take fits" in report and "13 latent frames (49 pixel frames)" in report


def test_the_longest_take_of_a_policy_that_goes_by_the_picture_is_a_range(device_of, monkeypatch):
    # Without latents, which set a bound to any length.
    monkeypatch.setattr(budget_module, "LATENT_COPIES", 0)
    noise, policy = tiny.noise_of(9, 4, 4), KVPolicy(DeCoPrune())
    frame = budget(KVPolicy(), noise).plan.geometry.bytes_per_frame(4)
    device_of(budget(KVPolicy(), noise).activation_bytes + 40 * frame)
    surely, at_best = budget(policy, noise).longest["free"]
    assert 30 < surely < 40 and at_best == LENGTH_LIMIT
    report = budget_report(budget(policy, noise))
    assert f"surely {surely} latent frames" in report
    assert f"at best {LENGTH_LIMIT} latent frames" in report
    values = budget_dict(budget(policy, noise))
    assert (values["surely_longest_frames"]["free"], values["longest_frames"]["free"]) == (
        surely,
        at_best,
    )


def test_main_memory_is_what_is_free_of_it(device_of):
    """On a CPU there is nothing to unload into."""
    noise = tiny.noise_of(9, 4, 4)
    needed = budget(KVPolicy(), noise).needed[0]
    device_of(10 * needed, in_use=9 * needed + 1)
    ahead = budget(KVPolicy(), noise)
    assert ahead.longest["total"] == ahead.longest["free"] == (8, 8)
    assert (
        "does not fit on this device" in budget_report(ahead)
        and "unload" not in budget_report(ahead)
        and "offload" not in budget_report(ahead)
    )
    with pytest.raises(ValueError, match="and the device has .* free for it"):
        tiny.ours(tiny.tiny_model(), noise, 2, steps=2)
    device_of(10 * needed, in_use=9 * needed)
    assert "this take fits beside the weights" in budget_report(budget(KVPolicy(), noise))


def test_some_of_the_main_memory_stays_for_others():
    ahead = budget(KVPolicy(), tiny.noise_of(9, 4, 4))
    assert (
        ahead.usable_bytes == int(ahead.free_bytes * (1 - budget_module.MARGIN)) < ahead.free_bytes
    )


def test_a_look_ahead_ends_with_the_hosts_interrupt():
    comfy.model_management.interrupt_current_processing(True)
    with pytest.raises(comfy.model_management.InterruptProcessingException):
        budget(KVPolicy(), tiny.noise_of(9, 4, 4))
    comfy.model_management.interrupt_current_processing(True)
    with pytest.raises(comfy.model_management.InterruptProcessingException):
        tiny.ours(tiny.tiny_model(), tiny.noise_of(9, 4, 4), 2, steps=1)
