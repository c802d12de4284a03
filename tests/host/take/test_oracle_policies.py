"""Takes of a policy beside its authors' own code: the same tiny random weights, prompts and noise,
as in `test_oracle.py`.

`oracles/<method>.safetensors` holds what their code gave, in fp32; its header names repository and
commit. None of that code is here.
"""

from pathlib import Path
from typing import NamedTuple

import pytest
from keepsake.host.forward.prompts import add_prompt
from keepsake.host.model.published import PROFILES
from keepsake.kv_policies import (
    DeCoPrune,
    DeCoPruneHS,
    DeepForcing,
    DeepSink,
    DummyForcing,
    EmaSink,
    ForcingKV,
    FullKV,
    HeadMap,
    InfinityRope,
    KVPolicy,
    MemRope,
    MonarchRT,
    ReadAll,
    Retention,
    RollingSink,
    Selection,
    SinkWindow,
    TempDiff,
)
from keepsake.kv_policies.retention.forcing_kv import PRESETS
from safetensors.torch import load_file
from torch import Tensor

from .test_oracle import TOLERANCE, padded_prompt, sample

FILES = Path(__file__).parent / "oracles"
SELF_FORCING = "Self-Forcing (chunk-wise)"
STATIC_HEADS = HeadMap("tiny", 4, ((), (0, 2), (1,)))
HEADS = HeadMap("tiny", 4, ((), (0, 2), (1,)))  # static ones, as the authors' code read it
KREA = PRESETS["Krea Realtime 14B"]


class Case(NamedTuple):
    """A take that a file holds, and a policy so near that telling it apart means something."""

    file: str
    retention: Retention
    other: Retention
    changes: tuple[tuple[str, int], ...] = ()  # of the prompt: mode and latent frame
    profile: str = SELF_FORCING
    given: int = 0  # latent frames
    selection: Selection = ReadAll()
    other_selection: Selection = ReadAll()


CASES = {
    "infinity_rope": Case("infinity_rope", InfinityRope(), SinkWindow(1, 6, "shifted")),
    "infinity_rope_flush_and_cut": Case(
        "infinity_rope",
        InfinityRope(),
        InfinityRope(cut_distance=44),
        (("swap", 12), ("cut", 24), ("swap", 36)),
    ),
    "infinity_rope_two_cuts": Case(
        "infinity_rope",
        InfinityRope(),
        InfinityRope(cut_distance=44),
        (("cut", 6), ("swap", 27), ("cut", 30)),
    ),
    # A reuse limit of 7 tells from no limit in the last 11 of the 32 chunks.
    "deep_forcing": Case("deep_forcing", DeepForcing(), DeepForcing(reuse_limit=0)),
    "deep_forcing_budget_18": Case(
        "deep_forcing", DeepForcing(budget_frames=18), DeepForcing(recent_frames=5)
    ),
    "deep_sink": Case("deep_forcing", DeepSink(), DeepSink(13)),
    # Their loop, with their torch reference in place of their kernel.
    "monarch_rt_h_reduce_1": Case(
        "monarch_rt",
        FullKV(),
        FullKV(),
        selection=MonarchRT(1),
        other_selection=MonarchRT(2),
    ),
    "monarch_rt_h_reduce_2": Case("monarch_rt", FullKV(), FullKV(), selection=MonarchRT(2)),
    # Their cache policies, which are made for a larger model, around a tiny Wan.
    "cmbench_decoprune": Case(
        "cmbench", DeCoPrune(gamma=2.4), DeCoPrune(gamma=2.4, dense_chunks=1), given=24
    ),
    "cmbench_decoprune_fast_bands": Case(
        "cmbench",
        DeCoPrune(gamma=1.1, reindex_bands="fast"),
        DeCoPrune(gamma=1.1, reindex="off"),
        given=24,
    ),
    "cmbench_decoprune_hs": Case(
        "cmbench",
        DeCoPruneHS(gamma=2.4, head_map=STATIC_HEADS),
        DeCoPruneHS(gamma=2.4, head_map=STATIC_HEADS, static_recent_frames=3),
        given=24,
    ),
    "cmbench_temp_diff": Case("cmbench", TempDiff(blocks=20), TempDiff(blocks=19), given=24),
    "rolling_sink": Case("rolling_sink", RollingSink(), RollingSink(24)),
    "memrope": Case("memrope", MemRope(), MemRope(adaptive=True)),
    "memrope_adaptive": Case("memrope", MemRope(adaptive=True), MemRope()),
    "reward_forcing": Case("reward_forcing", EmaSink(), EmaSink(sink_weight=0.9)),
    "reward_forcing_half": Case(
        "reward_forcing", EmaSink(sink_weight=0.5), SinkWindow(3, 9, "shifted")
    ),
    "dummy_forcing": Case("dummy_forcing", DummyForcing(num_dummy=6), DummyForcing(num_dummy=7)),
    "dummy_forcing_two_local": Case(
        "dummy_forcing",
        DummyForcing(num_dummy=4, ar_start=2, local_frames=6),
        DummyForcing(num_dummy=4, ar_start=2, local_frames=5),
    ),
    "dummy_forcing_recache": Case(
        "dummy_forcing",
        DummyForcing(ar_start=2, local_frames=6),
        DummyForcing(num_dummy=7, ar_start=2, local_frames=6),
        (("recache", 18), ("recache", 30)),
        "LongLive 1.3B",
    ),
    "forcing_kv": Case(
        "forcing_kv", ForcingKV(head_map=HEADS), ForcingKV(head_map=HEADS, bank_share=0.28)
    ),
    "forcing_kv_krea": Case(
        "forcing_kv",
        ForcingKV(head_map=HEADS, **KREA),
        ForcingKV(head_map=HEADS, **KREA, static_frames=3),
    ),
    "forcing_kv_two_latest": Case(
        "forcing_kv",
        ForcingKV(head_map=HEADS, dynamic_frames=2),
        ForcingKV(head_map=HEADS, dynamic_frames=2, ar_start=2),
    ),
}


def difference(name: str, policy: KVPolicy, **request) -> float:
    """Largest difference to the authors' latents."""
    case = CASES[name]
    expected = authors(case.file)[name]
    positive = padded_prompt(1)
    for seed, (mode, frame) in enumerate(case.changes, 2):
        positive = add_prompt(positive, padded_prompt(seed), frame, mode, 0, 12)
    profile, (frames, *size) = PROFILES[case.profile], expected.shape[2:]
    take = sample(profile, frames, case.given, policy, positive, size, **request)
    return float((take - expected).abs().max())


def authors(file: str) -> dict[str, Tensor]:
    """By name: latents `[1, C, T, 2h, 2w]`, normalised, and numbers."""
    return load_file(FILES / f"{file}.safetensors")


@pytest.mark.parametrize("name", CASES)
def test_a_take_equals_the_authors(name):
    case = CASES[name]
    assert difference(name, KVPolicy(case.retention, case.selection)) < TOLERANCE


def test_reward_forcings_own_weights_get_their_memory_without_a_policy():
    expected = load_file(FILES / "reward_forcing.safetensors")["reward_forcing"]
    take = sample(PROFILES["Reward Forcing 1.3B"], expected.shape[2])
    assert float((take - expected).abs().max()) < TOLERANCE


@pytest.mark.parametrize("name", CASES)
def test_the_comparison_tells_another_policy_apart(name):
    case = CASES[name]
    assert difference(name, KVPolicy(case.other, case.other_selection)) > 50 * TOLERANCE


@pytest.mark.parametrize("name", [name for name in CASES if CASES[name].file == "cmbench"])
def test_the_prune_ratio_is_the_authors(name):
    stats = []
    difference(name, KVPolicy(CASES[name].retention), on_stats=stats.append)
    assert stats[0].prune_ratio == pytest.approx(float(authors("cmbench")[f"{name}_prune_ratio"]))
