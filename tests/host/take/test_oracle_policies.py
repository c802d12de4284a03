"""Takes of a policy beside its authors' own code: the same tiny random weights, prompts and noise,
as in `test_oracle.py`.

`oracles/<method>.safetensors` holds what their code gave, in fp32; its header names repository and
commit. None of that code is here.
"""

from pathlib import Path
from typing import NamedTuple

import pytest
from keepsake.host.forward.prompts import add_prompt
from keepsake.host.model.profiles import PROFILES
from keepsake.kv_policies import InfinityRope, KVPolicy, Retention, SinkWindow
from safetensors.torch import load_file

from .test_oracle import TOLERANCE, padded_prompt, sample

FILES = Path(__file__).parent / "oracles"
SELF_FORCING = "Self-Forcing (chunk-wise)"


class Case(NamedTuple):
    """A take that a file holds, and a policy so near that telling it apart means something."""

    file: str
    retention: Retention
    other: Retention
    changes: tuple[tuple[str, int], ...] = ()  # of the prompt: mode and latent frame
    profile: str = SELF_FORCING


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
}


def difference(name: str, retention: Retention) -> float:
    """Largest difference to the authors' latents."""
    case = CASES[name]
    expected = load_file(FILES / f"{case.file}.safetensors")[name]
    positive = padded_prompt(1)
    for seed, (mode, frame) in enumerate(case.changes, 2):
        positive = add_prompt(positive, padded_prompt(seed), frame, mode, 0, 12)
    policy = KVPolicy(retention)
    take = sample(PROFILES[case.profile], expected.shape[2], 0, policy, positive)
    return float((take - expected).abs().max())


@pytest.mark.parametrize("name", CASES)
def test_a_take_equals_the_authors(name):
    assert difference(name, CASES[name].retention) < TOLERANCE


@pytest.mark.parametrize("name", CASES)
def test_the_comparison_tells_another_policy_apart(name):
    assert difference(name, CASES[name].other) > 50 * TOLERANCE
