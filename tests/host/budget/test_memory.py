"""What a take needs is known before it runs; what cannot fit is refused with changes that work."""

import gc
import json
import logging
import re
from dataclasses import replace

import comfy.model_management
import comfy.sample
import pytest
import torch
from keepsake.host.budget import budget as budget_module
from keepsake.host.budget.budget import LONGEST
from keepsake.host.budget.of_inputs import budget_of_inputs
from keepsake.host.budget.refusal import changes_that_fit
from keepsake.host.budget.report import budget_dict, budget_report, size
from keepsake.host.take.take import sample_take
from keepsake.kv_policies import (
    DeCoPrune,
    FlashForward,
    Hierarchical,
    KVPolicy,
    KVStorage,
    SinkWindow,
)
from keepsake.nodes.estimate import KVMemoryEstimate
from keepsake.rollout.estimate import peaks
from support import tiny

POLICIES = [
    KVPolicy(),
    KVPolicy(SinkWindow(2, 6, "shifted")),
    KVPolicy(DeCoPrune(mode="target_keep")),
    KVPolicy(storage=KVStorage("int4", 1, 1)),
    KVPolicy(storage=KVStorage("model", device="cpu")),
    KVPolicy(schedule=FlashForward(anchor_stride=4)),
    KVPolicy(schedule=Hierarchical(6)),
]


@pytest.fixture
def device_of(monkeypatch):
    """Give the device so many bytes, all of them free but those in use."""

    def give(nbytes, in_use=0):
        monkeypatch.setattr(budget_module, "MARGIN", 0)
        for function, value in (("get_total_memory", nbytes), ("get_free_memory", nbytes - in_use)):
            monkeypatch.setattr(
                comfy.model_management,
                function,
                lambda device=None, with_torch=False, value=value: (
                    (value, value) if with_torch else value
                ),
            )

    return give


def budget(policy, noise, prefix=None, cfg=1.0, **more):
    return budget_of_inputs(
        tiny.prepared(tiny.tiny_model()),
        {"samples": noise},
        steps=2,
        cfg=cfg,
        chunk_frames=2,
        policy=policy,
        prefix=None if prefix is None else {"samples": prefix},
        prompts=1,
        **more,
    )


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


def follow(change: str, noise, cfg):
    """Do what a suggestion says."""
    policy = KVPolicy()
    if match := re.search(r"DeCoPrune in mode target_keep with target_keep ([\d.]+)", change):
        policy = KVPolicy(DeCoPrune(mode="target_keep", target_keep=float(match[1])))
    elif match := re.search(r"KV Storage with dtype (\w+)", change):
        policy = KVPolicy(storage=KVStorage(match[1]))
    elif match := re.search(r"window_frames (\d+) and sink_frames (\d+)", change):
        policy = KVPolicy(SinkWindow(int(match[2]), int(match[1])))
    elif match := re.search(r"a latent of (\d+) frames", change):
        noise = noise[:, :, : int(match[1])]
    elif match := re.search(r"a latent of (\d+)x(\d+)", change):
        noise = noise[..., : int(match[2]), : int(match[1])]
    else:
        assert change.startswith("one prompt stream")
        cfg = 1.0
    return tiny.ours(tiny.tiny_model(), noise, 2, policy, steps=2, cfg=cfg)


@pytest.mark.parametrize("frames, cfg", [(24, 2.0), (9, 1.0)])
def test_every_suggested_change_makes_the_take_fit(device_of, frames, cfg):
    noise = tiny.noise_of(frames, 8, 8)
    ahead, loaded = budget(KVPolicy(), noise, cfg=cfg), []
    device_of(ahead.activation_bytes + int(ahead.estimate.needed[0] * 0.7))
    model = tiny.tiny_model()
    model.model.memory_required, required = (
        (lambda shape, **more: loaded.append(shape) or required(shape, **more)),
        model.model.memory_required,
    )
    with pytest.raises(ValueError, match="Any of these makes it fit") as refused:
        tiny.ours(model, noise, 2, steps=2, cfg=cfg)
    changes = re.split(r"\(\d\) ", str(refused.value).split("makes it fit: ")[1])[1:]
    assert 2 <= len(changes) <= 3
    for change in changes:
        assert torch.isfinite(follow(change, noise, cfg)).all()


def test_a_device_without_any_room_is_said_to_be_too_small(device_of):
    device_of(1000)
    with pytest.raises(ValueError, match="No single change"):
        tiny.ours(tiny.tiny_model(), tiny.noise_of(9, 8, 8), 2, steps=1)


def test_a_take_whose_least_need_fits_is_let_through(device_of):
    noise, policy = tiny.noise_of(24, 4, 4), KVPolicy(DeCoPrune(gamma=1e9))
    ahead = budget(policy, noise)
    assert ahead.needed[0] < ahead.needed[1]
    device_of(ahead.needed[0])
    tiny.ours(tiny.tiny_model(), noise, 2, policy, steps=2)


def test_what_lies_in_main_memory_must_fit_there(device_of):
    noise, policy = tiny.noise_of(11, 4, 4), KVPolicy(storage=KVStorage("model", device="cpu"))
    ahead, stats = budget(policy, noise), []
    device_of(
        ahead.needed[0] + ahead.estimate.host[0] - 1
    )  # here the device's memory is the main one
    with pytest.raises(ValueError, match="of main memory, which has"):
        tiny.ours(tiny.tiny_model(), noise, 2, policy, steps=2)
    device_of(ahead.needed[0] + ahead.estimate.host[0])
    assert torch.equal(
        tiny.ours(tiny.tiny_model(), noise, 2, policy, on_stats=stats.append, steps=2),
        tiny.ours(tiny.tiny_model(), noise, 2, steps=2),
    )
    assert (
        stats[0].peak_host_bytes == ahead.estimate.host[0]
        and "of it in main memory" in stats[0].report()
    )


def test_main_memory_is_suggested_where_it_has_room():
    noise = tiny.noise_of(24, 8, 8)
    plain = budget(KVPolicy(), noise)
    small, what = (
        replace(plain, usable_bytes=plain.needed[0] - plain.estimate.allocated[0] // 5),
        "KV Storage with dtype model and device cpu",
    )
    for ram, is_proposed in (
        (plain.estimate.allocated[0], True),
        (plain.estimate.allocated[0] - 1, False),
    ):
        assert (
            what
            in changes_that_fit(
                tiny.prepared(tiny.tiny_model()), replace(small, main_bytes=ram), (8, 8)
            )
        ) is is_proposed


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


def test_the_longest_take_of_a_policy_that_goes_by_the_picture_is_a_range(device_of, monkeypatch):
    # Without latents, which set a bound to any length.
    monkeypatch.setattr(budget_module, "LATENT_COPIES", 0)
    noise, policy = tiny.noise_of(9, 4, 4), KVPolicy(DeCoPrune())
    frame = budget(KVPolicy(), noise).plan.geometry.bytes_per_frame(4)
    device_of(budget(KVPolicy(), noise).activation_bytes + 40 * frame)
    surely, at_best = budget(policy, noise).longest["free"]
    assert 30 < surely < 40 and at_best == LONGEST
    report = budget_report(budget(policy, noise))
    assert f"surely {surely} latent frames" in report
    assert f"at best {LONGEST} latent frames" in report
    values = budget_dict(budget(policy, noise))
    assert (values["surely_longest_frames"]["free"], values["longest_frames"]["free"]) == (
        surely,
        at_best,
    )


def test_an_earlier_take_tells_what_is_to_be_expected(device_of, monkeypatch):
    """By the node: of a longer take, and of a larger one."""
    monkeypatch.setattr("keepsake.host.budget.budget.LONGEST", 240)
    model, stats, policy, found = (
        tiny.prepared(tiny.tiny_model()),
        [],
        KVPolicy(DeCoPrune(gamma=1.8)),
        [],
    )
    tiny.ours(tiny.tiny_model(), tiny.noise_of(12, 4, 4), 2, policy, on_stats=stats.append, steps=3)
    share = stats[0].scores["kept"] / sum(stats[0].scores["counts"])
    assert 0 < share < 1
    for noise in (tiny.noise_of(60, 4, 4), tiny.noise_of(40, 8, 6)):
        device_of(
            budget(KVPolicy(), noise).activation_bytes
            + 30 * budget(KVPolicy(), noise).plan.geometry.bytes_per_frame(4)
        )
        out, blank = (
            KVMemoryEstimate.execute(
                model, {"samples": noise}, 3, 1.0, 2, 1, policy, kv_stats=before
            )
            for before in (stats[0], None)
        )
        values = json.loads(out.result[1])
        (least, most), expected = values["needed_bytes"], values["expected"]
        assert (
            expected["share"] == share
            and least < expected["needed_bytes"] < most
            and len(expected["chunks"]) == len(values["chunks"])
        )
        found.append(
            (
                values["surely_longest_frames"]["free"],
                expected["longest_frames"]["free"],
                values["longest_frames"]["free"],
            )
        )
        assert (
            found[-1] == tuple(sorted(found[-1]))
            and f"{share:.1%} of it is expected to stay, as in the earlier take" in out.result[0]
        )
        assert (
            f"(expected {size(expected['allocated_bytes'])})" in out.result[0]
            and f"as expected {found[-1][1]} latent frames" in out.result[0]
        )
        assert not torch.equal(out.result[2], blank.result[2])
        assert json.loads(blank.result[1]) == {**values, "expected": None}
    with pytest.raises(ValueError, match="gamma 1.8 there and 2.0 here"):
        budget(
            KVPolicy(DeCoPrune(gamma=2.0)),
            tiny.noise_of(60, 4, 4),
            earlier=replace(stats[0], steps=2),
        )


def test_a_take_that_goes_on_expects_what_it_has_kept_so_far(plans, caplog):
    model, memories = tiny.prepared(tiny.tiny_model()), []
    policy = KVPolicy(DeCoPrune(gamma=1.8))
    part = tiny.sampler(
        policy,
        2,
        stop_after=20,
        on_memory=memories.append,
        on_stats=lambda stats: scores.update(stats.scores),
    )
    scores: dict = {}
    tiny.guide(model, part, tiny.noise_of(40, 4, 4), steps=3)
    rest = tiny.sampler(policy, 2, memory=memories[0])
    with caplog.at_level(logging.INFO):
        tiny.guide(model, rest, tiny.noise_of(40, 4, 4), steps=3)
    ahead = plans[-1]
    assert ahead.take_plan.share == scores["kept"] / sum(scores["counts"])
    expected = peaks(ahead.estimate.expected)
    assert "(expected " in caplog.text
    assert ahead.estimate.needed[0] < expected.needed < ahead.estimate.needed[1]
    assert ahead.take_bytes >= expected.needed


def test_what_was_planned_stands_beside_what_was_allocated():
    stats = []
    for policy in (KVPolicy(), KVPolicy(DeCoPrune(gamma=1.8))):
        tiny.ours(
            tiny.tiny_model(), tiny.noise_of(30, 8, 8), 2, policy, on_stats=stats.append, steps=3
        )
        least, most = stats[-1].planned_bytes
        assert least <= stats[-1].peak_cache_bytes <= most and stats[-1].to_dict()[
            "planned_bytes"
        ] == (least, most)
    assert (
        f"peak {size(stats[0].peak_cache_bytes)} allocated (float32), "
        f"{size(stats[0].peak_cache_bytes)} planned" in stats[0].report()
    )
    assert f"allocated (float32), {size(least)} to {size(most)} planned" in stats[1].report()


def test_a_look_ahead_ends_with_the_hosts_interrupt():
    comfy.model_management.interrupt_current_processing(True)
    with pytest.raises(comfy.model_management.InterruptProcessingException):
        budget(KVPolicy(), tiny.noise_of(9, 4, 4))
    comfy.model_management.interrupt_current_processing(True)
    with pytest.raises(comfy.model_management.InterruptProcessingException):
        tiny.ours(tiny.tiny_model(), tiny.noise_of(9, 4, 4), 2, steps=1)


def test_a_take_that_cannot_fit_is_refused_before_its_noise_is_made(device_of, monkeypatch):
    monkeypatch.setattr(
        comfy.sample, "prepare_noise", lambda *inputs: pytest.fail("noise was made")
    )
    device_of(2**20)
    latent = {"samples": torch.zeros(1).expand(1, 16, 4096, 90, 160)}
    with pytest.raises(ValueError, match="This take needs at least"):
        sample_take(
            tiny.prepared(tiny.tiny_model()), tiny.prompt(1), None, 1.0, latent, seed=0, steps=2
        )


def test_the_host_is_told_an_expected_share_of_what_the_picture_decides(plans):
    sampler = tiny.sampler(KVPolicy(DeCoPrune()), 2)
    tiny.guide(tiny.prepared(tiny.tiny_model()), sampler, tiny.noise_of(40, 4, 4), steps=3)
    least, most = plans[0].estimate.needed
    assert least < plans[0].take_bytes < least + (most - least) / 4


def test_given_frames_count():
    noise = tiny.noise_of(9, 4, 4)
    ahead = budget(KVPolicy(), noise, prefix=noise[:, :, :4])
    assert budget_dict(ahead)["given_frames"] == 4 and [
        chunk["given"] for chunk in budget_dict(ahead)["chunks"]
    ] == [True, True, False, False, False]
    with pytest.raises(ValueError, match="longer than its prefix"):
        budget(KVPolicy(), noise, prefix=noise)


def test_measured_peaks_stand_beside_the_computed_ones():
    stats, held = [], torch.ones(2**24)  # 64 MiB that are there anyway
    tiny.ours(tiny.tiny_model(), tiny.noise_of(8, 32, 32), 2, on_stats=stats.append, steps=1)
    peak = stats[0].measured_peaks["resident in RAM"]
    assert peak > held.nbytes + stats[0].peak_cache_bytes
    assert (
        stats[0].to_dict()["measured_peaks"] == stats[0].measured_peaks
        and "measured peaks" in stats[0].report()
    )
