"""Controls: DeCoPrune's count from each chunk, other tokens. Six tokens a frame, two frames a
chunk.
"""

import pytest
import torch
from keepsake.kv_policies import (
    BankPlan,
    Chunk,
    DeCoPrune,
    KVCache,
    KVPolicy,
    RandomPrune,
    ReversePrune,
    SinkWindow,
    Storage,
    Take,
    TempDiffPrune,
)
from keepsake.kv_policies.retention.pruning_controls import control_of

from ... import fake
from .test_decoprune import script, tokens

WRONG = [13, 17, 18, 25, 30]


def kept(model, chunk):
    """Tokens of a chunk that the last chunk of the take could read."""
    return [
        token
        for token in list(model.histories.values())[-1]
        if chunk * 12 <= token < chunk * 12 + 12
    ]


@pytest.mark.parametrize("control", [RandomPrune, ReversePrune, TempDiffPrune])
def test_a_control_keeps_as_many_of_each_chunk(control):
    model, _ = script(control(), 12, 2, wrong=WRONG)
    assert [len(kept(model, chunk)) for chunk in range(5)] == [12, 3, 2, 12, 12]


def test_random_is_not_the_same_choice_and_repeats():
    model, _ = script(RandomPrune(), 12, 2, wrong=WRONG)
    assert kept(model, 1) != [13, 17, 18]
    torch.manual_seed(99)
    again, _ = script(RandomPrune(), 12, 2, wrong=WRONG)
    assert model.histories == again.histories


def test_reverse_keeps_the_easiest():
    model, _ = script(ReversePrune(), 12, 2, wrong=WRONG)
    assert kept(model, 1) == [12, 14, 15]  # of equal ones the first


def turned(**by_layer):
    """Keys of equal direction everywhere but for one token of each layer."""
    return lambda token, k: k.where(
        token[None, :, None, None] != by_layer["one" if k.max() >= 1000 else "zero"], -k
    )


def test_temporal_difference_keeps_the_tokens_whose_keys_turned_at_layer_1():
    model, _ = script(TempDiffPrune(), 10, 2, wrong=[13], on_keys=turned(zero=20, one=21))
    assert kept(model, 1) == [21]


def test_where_the_frame_before_was_pruned_a_chunks_first_frame_is_worth_what_its_second_is():
    model, _ = script(
        TempDiffPrune(DeCoPrune(dense_chunks=1)), 10, 2, wrong=[25], on_keys=turned(zero=33, one=33)
    )
    assert kept(model, 2) == [27]  # frame 4, the cell that turned in frame 5


def test_the_blocks_of_a_large_picture_are_a_6x13_grid():
    geometry = fake.geometry(1, grid=(12, 26), layers=1, heads=1)
    cache = KVCache(geometry, [BankPlan(2, 2)], Storage(), torch.float32, torch.device("cpu"))
    for frame in range(2):
        k = torch.ones(1, 12, 26, 1, fake.DIM)
        k[:, 3, 5] = 1 - 2 * frame
        cache.reserve(Chunk(frame, frame, 1).span)
        cache.banks[0].write(0, *[k.flatten(1, 2)] * 2)
        cache.commit()
    run = TempDiffPrune().start(geometry, Take(2, 0, (1.0, 0.0), 0))
    ranks = TempDiffPrune().rank(run, cache, Chunk(1, 1, 1), torch.zeros(12 * 26))
    assert (ranks.view(12, 26) > 0.1).nonzero().tolist() == [[2, 4], [2, 5], [3, 4], [3, 5]]


def test_a_control_is_described_as_it_was_before_it_held_its_decoprune():
    """Saved memories compare it."""
    described = KVPolicy(RandomPrune(DeCoPrune(gamma=0.3))).describe()["retention"]
    assert (described["name"], described["gamma"], described["mode"]) == (
        "RandomPrune",
        0.3,
        "threshold",
    )


def test_only_plain_decoprune_has_a_control():
    assert control_of(DeCoPrune(gamma=0.3), "reverse") == ReversePrune(DeCoPrune(gamma=0.3))
    with pytest.raises(
        ValueError, match=r"got the policy Sink \+ Window and matches DeCoPrune alone"
    ):
        control_of(SinkWindow(), "random")


def test_the_sink_is_a_controls_too():
    model, _ = script(RandomPrune(), 12, 2, wrong=WRONG)
    assert list(model.histories.values())[-1][:12] == tokens(0, 1)
