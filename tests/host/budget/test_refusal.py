"""A take that cannot fit is refused before it runs, with changes that make it fit."""

import re
from dataclasses import replace

import comfy.sample
import pytest
import torch
from keepsake.host.budget.refusal import changes_that_fit
from keepsake.host.take.take import sample_take
from keepsake.kv_policies import DeCoPrune, KVPolicy, KVStorage, SinkWindow
from support import tiny

from .inputs import budget


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
        ahead.needed[0] + ahead.estimate.main[0] - 1
    )  # here the device's memory is the main one
    with pytest.raises(ValueError, match="of main memory, which has"):
        tiny.ours(tiny.tiny_model(), noise, 2, policy, steps=2)
    device_of(ahead.needed[0] + ahead.estimate.main[0])
    assert torch.equal(
        tiny.ours(tiny.tiny_model(), noise, 2, policy, on_stats=stats.append, steps=2),
        tiny.ours(tiny.tiny_model(), noise, 2, steps=2),
    )
    assert (
        stats[0].peak_host_bytes == ahead.estimate.main[0]
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
