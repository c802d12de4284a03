"""What a short take, or the part of a take that is made, tells of a longer one, against the longer
one's own rows.
"""

from dataclasses import replace

import pytest
import torch
from keepsake.kv_policies import (
    DeCoPrune,
    DeCoPruneHS,
    DummyForcing,
    FullKV,
    HeadMap,
    KVPolicy,
    RandomPrune,
    ReversePrune,
    SinkWindow,
    Take,
)
from keepsake.rollout.earlier_take import share_in, share_of
from keepsake.rollout.estimate import estimate
from keepsake.rollout.stats import KVStats

from .. import fake
from ..kv_policies.retention.test_decoprune import SIGMAS as SCRIPTED
from ..kv_policies.retention.test_decoprune import script
from .test_estimate import SIGMAS, plan, untimed

GEOMETRY = fake.geometry()
SPECIALISED = DeCoPruneHS(head_map=HeadMap("fake", 2, ((0,), (1,))))
SURPRISING = [
    DeCoPrune(),
    DeCoPrune(dense_chunks=1, sink_chunks=0),
    DeCoPrune(most_frames=5),
    DeCoPrune(gamma=1e9, min_keep_per_block=3),
    SPECIALISED,
    RandomPrune(),
    ReversePrune(),
]


def surprise(retention, frames, cells, given=0):
    """The scores and rows of a take in chunks of two frames, in each of which these of its twelve
    tokens could not have been predicted.
    """
    _, trace = script(
        retention,
        frames,
        2,
        wrong=[12 * chunk + cell for chunk in range(frames // 2) for cell in cells],
        given=given,
    )
    return trace.scores, untimed(trace.rows)


def scripted(retention, frames, share, given=0):
    return replace(
        plan(KVPolicy(retention), frames, given=given),
        take=Take(frames, given, SCRIPTED, 3),
        share=share,
    )


@pytest.mark.parametrize("retention", SURPRISING, ids=repr)
@pytest.mark.parametrize("given", [0, 6])
def test_what_an_earlier_take_expects_is_what_a_longer_one_needs(retention, given):
    """As many surprises in each chunk: then the rows of both agree to the last byte."""
    scores, _ = surprise(retention, 12, (1, 4, 8, 9, 11), given)
    share = scores["kept"] / sum(scores["counts"])
    assert 0 < share < 1
    share_for = estimate(scripted(retention, 60, share, given))
    assert (
        untimed(chunk.row for chunk in share_for.expected)
        == surprise(retention, 60, (1, 4, 8, 9, 11), given)[1]
    )
    assert (
        share_for.allocated[0]
        <= max(chunk.row.allocated_bytes for chunk in share_for.expected)
        <= share_for.allocated[1]
    )


def test_surprises_that_come_by_chance_are_expected_to_within_theirs():
    """A quarter of all tokens: what stays differs by the counts' own spread, of the short take and
    of the long one.
    """
    random = torch.Generator().manual_seed(4)
    wrong = [
        (torch.rand(6 * frames, generator=random) < 0.25).nonzero()[:, 0].tolist()
        for frames in (40, 120)
    ]
    runs = [
        script(DeCoPrune(), frames, 2, wrong=tokens)[1] for frames, tokens in zip((40, 120), wrong)
    ]
    kept, scored = runs[0].scores["kept"], sum(runs[0].scores["counts"])
    expected = estimate(scripted(DeCoPrune(), 120, kept / scored)).expected
    for chunk, row in zip(expected, runs[1].rows, strict=True):
        tokens = 6 * max(
            0, row.start_frame - 6
        )  # those behind the sink's frames 0 and 1 and before the dense four
        spread = (0.25 * 0.75 * tokens * (1 + tokens / scored)) ** 0.5
        assert (
            abs(chunk.row.bank_tokens[0] - row.bank_tokens[0]) <= 4 * spread + row.index / 2
        )  # and a share of a chunk is a whole number


@pytest.mark.parametrize(
    "retention, after, known",
    [
        (DeCoPrune(gamma=5.0), (8, 14), True),
        (DeCoPrune(), (2,), False),
        (SinkWindow(1, 7), (8,), False),
    ],
)
def test_a_memory_tells_the_share_that_stayed_so_far(retention, after, known):
    """Also of a take that goes on twice; where nothing is scored, or not yet, none."""
    kept = [None]
    for stop_after in after:
        *_, trace, _ = fake.take(
            KVPolicy(retention), 20, memory=kept[-1], stop_after=stop_after, on_memory=kept.append
        )
    *_, at_once, _ = fake.take(
        KVPolicy(retention), 20, stop_after=after[-1], on_memory=lambda memory: None
    )
    assert trace.scores == at_once.scores
    for _ in range(
        2
    ):  # a look ahead counts on in its own histogram, and leaves the memory as it is
        share = share_in(kept[-1], retention, fake.geometry(), Take(20, 0, SIGMAS, 1))
        estimate(plan(KVPolicy(retention), 20, memory=kept[-1]))
    assert share == (trace.scores["kept"] / sum(trace.scores["counts"]) if known else None)


def stats_of(retention, frames=12, steps=4, geometry=GEOMETRY):
    """Of a take in which each chunk's first three tokens could not have been predicted."""
    _, trace = script(
        retention,
        frames,
        2,
        wrong=[12 * chunk + cell for chunk in range(frames // 2) for cell in range(3)],
    )
    return KVStats(
        policy=KVPolicy(retention).describe(),
        geometry=geometry,
        dtype="float64",
        steps=steps,
        temporal_compression=4,
        streams=1,
        chunks=tuple(trace.rows),
        seconds=1.0,
        peak_cache_bytes=0,
        scores=trace.scores,
    )


def share_for(stats, retention, geometry=GEOMETRY):
    return share_of(stats, KVPolicy(retention), geometry, Take(60, 0, SCRIPTED, 3))


@pytest.mark.parametrize(
    "retention",
    [DeCoPrune(), DeCoPrune(dense_chunks=5, most_frames=9), RandomPrune(), SPECIALISED],
    ids=repr,
)
def test_a_share_holds_for_another_length_and_size_and_whatever_else_the_memory_holds(retention):
    assert share_for(stats_of(DeCoPrune()), retention, fake.geometry(3, grid=(4, 6))) == 3 / 12


def test_a_policy_that_is_known_exactly_asks_for_no_share():
    assert (
        share_for(stats_of(DeCoPrune()), SinkWindow()) is None
        and share_for(stats_of(FullKV()), DeCoPrune(mode="target_keep")) is None
    )


def test_a_policy_whose_range_no_take_narrows_says_so():
    retention = DummyForcing()
    earlier = replace(stats_of(FullKV()), policy=KVPolicy(retention).describe())
    with pytest.raises(ValueError, match="The estimate is a range in any case. Disconnect them."):
        share_for(earlier, retention)


@pytest.mark.parametrize(
    "stats, words",
    [
        (
            dict(retention=FullKV()),
            "under FullKV, which scores no tokens, so they do not tell what share DeCoPrune",
        ),
        (dict(retention=DeCoPrune(gamma=0.02)), "gamma 0.02 there and 0.1 here"),
        (
            dict(retention=DeCoPrune(score="cosine distance")),
            "score cosine distance there and mse here",
        ),
        (dict(retention=DeCoPrune(min_keep_per_block=1)), "min_keep_per_block 1 there and 0 here"),
        (
            dict(retention=DeCoPrune(mode="target_keep")),
            "mode target_keep there and threshold here",
        ),
        (dict(retention=DeCoPrune(), steps=2), "steps 2 there and 4 here"),
        (
            dict(retention=DeCoPrune(), geometry=fake.geometry(layers=3)),
            "layers 3 there and 2 here",
        ),
        (dict(retention=DeCoPrune(), frames=4), "a take of 4 latent frames, too short"),
    ],
    ids=repr,
)
def test_an_earlier_take_that_says_nothing_is_refused(stats, words):
    with pytest.raises(ValueError, match=words):
        share_for(stats_of(**stats), DeCoPrune())
