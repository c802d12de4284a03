"""Controls: DeCoPrune's count from each chunk, other tokens. Six tokens a frame, two frames a chunk."""
import pytest
import torch
from keepsake.kv_policies import DeCoPrune, RandomPrune, ReversePrune, SinkWindow, TempDiffPrune
from keepsake.kv_policies.pruning_controls import control_of

from .test_decoprune import script, tokens

WRONG = [13, 17, 18, 25, 30]


def kept(made, chunk):
    """Tokens of a chunk that the last chunk of the take could read."""
    return [token for token in list(made.histories.values())[-1] if chunk * 12 <= token < chunk * 12 + 12]


@pytest.mark.parametrize("control", [RandomPrune, ReversePrune, TempDiffPrune])
def test_a_control_keeps_as_many_of_each_chunk(control):
    made, _ = script(control(), 12, 2, wrong=WRONG)
    assert [len(kept(made, chunk)) for chunk in range(5)] == [12, 3, 2, 12, 12]


def test_random_is_not_the_same_choice_and_repeats():
    made, _ = script(RandomPrune(), 12, 2, wrong=WRONG)
    assert kept(made, 1) != [13, 17, 18]
    torch.manual_seed(99)
    again, _ = script(RandomPrune(), 12, 2, wrong=WRONG)
    assert made.histories == again.histories


def test_reverse_keeps_the_easiest():
    made, _ = script(ReversePrune(), 12, 2, wrong=WRONG)
    assert kept(made, 1) == [12, 14, 15]             # of equal ones the first


def test_temporal_difference_keeps_the_tokens_whose_keys_turned():
    """Keys of equal direction everywhere but for one token of the second frame."""
    made, _ = script(TempDiffPrune(), 10, 2, wrong=[13], on_keys=lambda token, k: k.where(token[None, :, None, None] != 21, -k))
    assert kept(made, 1) == [21]


def test_only_plain_decoprune_has_a_control():
    assert control_of(DeCoPrune(gamma=.3), "reverse") == ReversePrune(gamma=.3)
    with pytest.raises(ValueError, match="got the policy SinkWindow and matches DeCoPrune alone"):
        control_of(SinkWindow(), "random")


def test_the_sink_is_a_controls_too():
    made, _ = script(RandomPrune(), 12, 2, wrong=WRONG)
    assert list(made.histories.values())[-1][:12] == tokens(0, 1)
