"""What is expected of a take whose tokens stay or go by the picture."""

import json
import logging
from dataclasses import replace

import pytest
import torch
from keepsake.host.budget.report import size
from keepsake.kv_policies import DeCoPrune, KVPolicy
from keepsake.nodes.estimate import KVMemoryEstimate
from keepsake.rollout.estimate import peaks
from support import tiny

from .inputs import budget


def test_an_earlier_take_tells_what_is_to_be_expected(device_of, monkeypatch):
    """By the node: of a longer take, and of a larger one."""
    monkeypatch.setattr("keepsake.host.budget.budget.LENGTH_LIMIT", 240)
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


def test_the_host_is_told_an_expected_share_of_what_the_picture_decides(plans):
    sampler = tiny.sampler(KVPolicy(DeCoPrune()), 2)
    tiny.guide(tiny.prepared(tiny.tiny_model()), sampler, tiny.noise_of(40, 4, 4), steps=3)
    least, most = plans[0].estimate.needed
    assert least < plans[0].take_bytes < least + (most - least) / 4
