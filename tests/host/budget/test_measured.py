"""What a take was seen to use stands in its stats beside what was planned."""

import torch
from keepsake.host.budget.report import size
from keepsake.kv_policies import DeCoPrune, KVPolicy
from support import tiny


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


def test_measured_peaks_stand_beside_the_computed_ones():
    stats, held = [], torch.ones(2**24)  # 64 MiB that are there anyway
    tiny.ours(tiny.tiny_model(), tiny.noise_of(8, 32, 32), 2, on_stats=stats.append, steps=1)
    peak = stats[0].measured_peaks["resident in RAM"]
    assert peak > held.nbytes + stats[0].peak_cache_bytes
    assert (
        stats[0].to_dict()["measured_peaks"] == stats[0].measured_peaks
        and "measured peaks" in stats[0].report()
    )
