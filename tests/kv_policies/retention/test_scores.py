"""Token scores, by hand: 2x2 patches of two channels."""

import math

import pytest
import torch
from keepsake.kv_policies.retention.scores import (
    ScoreHistogram,
    best_of_each_block,
    highest,
    token_scores,
)


def latents(*frames):
    """`[1, 2, F, H, W]` with both channels the same."""
    return torch.tensor(frames, dtype=torch.float32)[None, None].expand(1, 2, -1, -1, -1)


def test_mse_is_a_mean_over_a_patch_and_its_channels_in_token_order():
    predicted = latents([[1, 0, 0, 0], [0, 0, 0, 2]], [[0, 0, 3, 3], [0, 0, 3, 3]])
    assert token_scores("mse", predicted, torch.zeros_like(predicted), (1, 2)).tolist() == [
        0.25,
        1,
        0,
        9,
    ]


def test_a_token_at_an_odd_edge_is_as_much_as_there_is():
    predicted = latents([[0, 0, 1], [0, 0, 3], [2, 0, 2]])
    assert token_scores("mse", predicted, torch.zeros_like(predicted), (2, 2)).tolist() == [
        0,
        5,
        2,
        4,
    ]


def test_energies_and_cosine():
    final, predicted = (
        latents([[2, 2, 1, 1], [2, 2, 1, 1]]),
        latents([[1, 1, -1, -1], [1, 1, -1, -1]]),
    )
    assert token_scores("mse / token energy", predicted, final, (1, 2)).tolist() == [0.25, 4]
    assert token_scores("mse / chunk energy", predicted, final, (1, 2)).tolist() == pytest.approx(
        [1 / 2.5, 4 / 2.5]
    )
    assert token_scores("cosine distance", predicted, final, (1, 2)).tolist() == pytest.approx(
        [0, 2]
    )


def test_scores_are_fp32_for_half_precision_latents():
    big = latents([[300.0, 300.0], [300.0, 300.0]]).half()
    assert token_scores("mse", big, -big, (1, 1)).tolist() == [360000.0]


def test_each_block_keeps_its_best_tokens_also_at_a_ragged_edge():
    scores = torch.tensor([[0.1, 0.2, 0.3, 0.4, 0.9], [0.5, 0.0, 0.0, 0.0, 0.8]])

    def best(least, threshold):
        return (
            best_of_each_block(scores.flatten(), (2, 5), least, threshold).nonzero()[:, 0].tolist()
        )

    assert best(1, 0) == [4, 5] and best(2, 0) == [3, 4, 5, 9]
    assert best(1, 0.6) == [4] and best(0, 0) == []


def test_the_highest_come_after_those_that_are_first():
    values, first = (
        torch.tensor([0.3, 0.9, 0.1, 0.3, 0.2]),
        torch.tensor([False, False, True, False, True]),
    )

    def chosen(count, first=None):
        return highest(values, count, first).nonzero()[:, 0].tolist()

    assert chosen(2) == [0, 1] and chosen(0) == []  # of the equal ones the one that comes first
    assert (
        chosen(1, first) == [4]
        and chosen(3, first) == [1, 2, 4]
        and chosen(9, first) == [0, 1, 2, 3, 4]
    )


def test_the_histogram_counts_every_score_once():
    histogram = ScoreHistogram("mse", 0.1)
    histogram.add(
        torch.tensor([0.0, 0.1, 0.11, 5.0, 1e9, math.nan]), torch.tensor([0, 0, 1, 1, 1, 1]).bool()
    )
    histogram.add(torch.tensor([0.1]), torch.tensor([False]))
    result = histogram.to_dict()
    assert (
        result["kept"] == 4
        and histogram.share == 4 / 7
        and ScoreHistogram("mse", 0.1).share is None
    )
    assert sum(result["counts"]) == 7 and len(result["counts"]) == len(result["edges"]) + 1
    at = result["edges"].index(0.1)
    assert sum(result["counts"][: at + 1]) == 3  # .1 itself lies below: the rule is strict
    assert result["counts"][-1] == 2
