"""The valley between two humps of scores, by hand. Six tokens a frame in the scripted takes."""

import math

import pytest
import torch
from keepsake.kv_policies import (
    Chunk,
    DeCoPrune,
    KVCache,
    KVMemoryError,
    RandomPrune,
    Storage,
    Take,
    TempDiffPrune,
)
from keepsake.kv_policies.retention.token_prune import Undecided
from keepsake.kv_policies.retention.valley import Valley, best_split

from ... import fake
from .test_decoprune import SIGMAS, script, tokens

# Bins are a sixteenth of a decade wide and begin at 1e-10: 1e-3 lies in bin 112, 1 in bin 160.
KNOWN, NEW = 112, 160


def scores_of(*groups):
    """So many scores of each value: `(count, value)`."""
    return torch.cat([torch.full((count,), value) for count, value in groups])


def seen(*chunks, target_keep=0.15, **options):
    """A rule that has seen these chunks."""
    valley = Valley(target_keep, **options)
    for index, scores in enumerate(chunks, 1):
        valley.see(Chunk(index, 3 * index, 3), scores)
    return valley


def kept(valley, *values):
    mask = valley.keep(torch.tensor(values), torch.zeros(len(values), dtype=torch.bool))
    return mask.tolist()


def drawn(shape, count, seed):
    """log10 of scores of one hump."""
    generator = torch.Generator().manual_seed(seed)
    normal = torch.randn(count, generator=generator)
    uniform = torch.rand(count, generator=generator)
    return {
        "normal": 0.3 * normal,
        "uniform": 2 * uniform,
        "exponential": torch.log10(-uniform.log()),
        "laplace": 0.3 * uniform.log() * normal.sign(),
        "gumbel": -0.3 * torch.log(-uniform.log()),
        "pareto": -torch.log10(uniform),
    }[shape]


def test_two_humps_are_split_in_the_middle_of_the_gap():
    counts = [0] * 224
    counts[KNOWN], counts[NEW] = 72, 24
    split = best_split(counts)
    # The gap is from 113, the upper edge of the one bin, to 160, the lower edge of the other. Each
    # class has the variance inside a bin, 1/12, so Ashman's D is 48 / sqrt(1/12).
    assert split.cut == 113 + 160 and split.distance == pytest.approx(48 * math.sqrt(12))
    # One normal class of variance 48^2 * 3/16 + 1/12 against two of 1/12, less their entropy.
    one, two = math.log(48**2 * 3 / 16 + 1 / 12) / 2, math.log(1 / 12) / 2
    entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    assert split.gain == pytest.approx(one - two - entropy)


def test_fifteen_tokens_are_no_class():
    counts = [0] * 224
    counts[KNOWN], counts[NEW] = 72, 15
    assert best_split(counts) is None


def test_the_threshold_lies_between_the_humps_and_splits_them():
    valley = seen(*[scores_of((72, 1e-3), (24, 1.0))] * 3)
    assert valley.threshold == pytest.approx(10 ** (-10 + (113 + 160) / 2 / 16))  # 0.034
    assert kept(valley, 1e-3, 0.03, 0.04, 1.0) == [False, False, True, True]


def test_a_class_of_a_few_in_a_thousand_is_found_beside_a_wide_one():
    generator = torch.Generator().manual_seed(0)
    predictable = 10 ** (0.25 * torch.randn(6000, generator=generator) - 3)
    new = 10 ** (0.4 * torch.randn(30, generator=generator) - 0.5)
    valley = seen(*[torch.cat([predictable, new])] * 3)
    assert predictable.max() < valley.threshold < new.min()


def test_chunks_wait_until_three_in_a_row_left_a_clear_split():
    chunk = scores_of((72, 1e-3), (24, 1.0))
    assert seen(chunk, chunk).threshold is None
    assert seen(chunk, chunk).keep(chunk, chunk > 9) is None
    valley = seen(chunk, chunk, chunk)
    assert valley.keep(chunk, chunk > 9).sum() == 24 and valley.since == 3


def test_frame_wise_models_wait_three_times_as_many():
    chunk = scores_of((72, 1e-3), (24, 1.0))
    assert seen(*[chunk] * 8, unit=3).threshold is None
    assert seen(*[chunk] * 9, unit=3).since == 9


def test_one_hump_keeps_the_share_from_the_fourth_chunk_on():
    chunk = 10 ** (torch.arange(100) / 100 - 3)  # from 1e-3 to 1e-2, even on the logarithmic axis
    assert seen(chunk, chunk, chunk).threshold is None
    valley = seen(*[chunk] * 4)
    assert valley.since == 4 and valley.keep(chunk, chunk > 9).sum() == 15
    assert seen(*[chunk] * 4, target_keep=0.4).keep(chunk, chunk > 9).sum() == 40
    assert seen(*[chunk] * 4, target_keep=0.0).keep(chunk, chunk > 9).sum() == 0
    assert seen(*[chunk] * 4, target_keep=1.0).keep(chunk, chunk > 9).sum() == 100


@pytest.mark.parametrize(
    "shape", ["normal", "uniform", "exponential", "laplace", "gumbel", "pareto"]
)
@pytest.mark.parametrize("count", [96, 1560])
def test_one_hump_of_any_usual_shape_has_no_valley(shape, count):
    for seed in range(5):
        chunks = [10 ** (drawn(shape, count, 100 * seed + i) - 3) for i in range(12)]
        assert not seen(*chunks).cut


def test_a_clear_split_that_is_not_steady_decides_when_chunks_may_wait_no_longer():
    """A quarter of the tokens is new, and each chunk has some that are closer to the known ones, so
    the cuts lie more than half a decade apart. The share of 15 % decided here and dropped some.
    """
    chunks = [
        torch.cat([scores_of((72, 1e-3)), 10 ** torch.linspace(math.log10(lowest), 0.5, 24)])
        for lowest in (3.0, 0.5, 0.05, 0.02)
    ]
    assert seen(*chunks[:3]).threshold is None
    valley = seen(*chunks)
    assert valley.since == 4 and kept(valley, 1e-3, 0.02, 1.0, 3.0) == [False, True, True, True]


def test_a_valley_that_comes_later_takes_over_from_the_share():
    still = 10 ** (torch.arange(96) / 96 - 3.5)
    moving = torch.cat([still[:72], scores_of((24, 1.0))])
    valley = seen(*[still] * 5, *[moving] * 2)
    assert not valley.cut and valley.since == 4
    valley = seen(*[still] * 5, *[moving] * 3)
    assert valley.since == 8 and still.max() < valley.threshold < 1


def test_a_valley_stays_in_force_when_the_split_is_clear_no_more():
    chunk = scores_of((72, 1e-3), (24, 1.0))
    valley = seen(*[chunk] * 3)
    threshold = valley.threshold
    between = 10 ** (3 * torch.arange(2000) / 2000 - 3)  # fills the gap evenly
    valley.see(Chunk(4, 12, 3), between)
    assert not best_split(valley.counts).is_clear and valley.threshold == threshold


def test_a_valley_elsewhere_counts_when_three_chunks_agree_on_it():
    chunk = scores_of((72, 1e-3), (24, 1.0))
    valley = seen(*[chunk] * 3)
    cut = valley.cut
    for index, in_force in ((4, cut), (5, cut), (6, None)):
        valley.see(Chunk(index, 3 * index, 3), scores_of((4000, 1.0), (4000, 1e3)))
        assert in_force is None or valley.cut == in_force
    assert valley.cut == 161 + 208  # from 1 to 1e3


@pytest.mark.parametrize("factor", [10.0, 0.1, 1e-4])
def test_scores_of_another_scale_keep_the_same_tokens(factor):
    generator = torch.Generator().manual_seed(1)
    predictable = 10 ** (0.25 * torch.randn(72, generator=generator) - 3)
    chunks = [
        torch.cat([predictable, 10 ** -torch.rand(24, generator=generator)]) for _ in range(4)
    ]
    here, there = seen(*chunks), seen(*[factor * chunk for chunk in chunks])
    assert there.threshold == pytest.approx(factor * here.threshold, rel=1e-6)
    assert kept(here, *chunks[3]) == kept(there, *(factor * chunks[3]))


def test_the_share_stays_within_its_bounds():
    """Of 4 x 0.15 and 0.15 / 30 of all scores of the take."""
    new = 10 ** (torch.arange(900) / 900)
    valley = seen(*[torch.cat([scores_of((100, 1e-3)), new])] * 3)
    assert valley.cut and valley.keep(new, new < 0).sum() == 600
    predictable = 10 ** (torch.arange(1000) / 1000 - 3)
    valley = seen(*[torch.cat([predictable, scores_of((10, 1.0))])] * 3, *[predictable] * 57)
    assert (
        valley.cut and valley.keep(predictable, predictable < 0).sum() == 4
    )  # 300 of 60,030, less 30, by 60


def test_scores_that_are_no_numbers_count_for_nothing_and_stay():
    chunk = scores_of((72, 1e-3), (24, 1.0))
    strange = torch.cat([chunk, torch.tensor([math.nan, math.inf])])
    assert seen(*[strange] * 3).threshold == seen(*[chunk] * 3).threshold
    assert seen(*[scores_of((9, math.nan))] * 4).keep(chunk, chunk > 9).all()
    assert kept(seen(*[scores_of((96, 0.0))] * 4), 0.0, 1e-9) == [False, True]


def test_a_run_that_is_taken_up_again_goes_on_to_the_bit():
    generator = torch.Generator().manual_seed(2)
    chunks = [10 ** (2 * torch.randn(96, generator=generator) - 2) for _ in range(9)]
    for stop in range(9):
        again = Valley(0.15)
        again.restore(seen(*chunks[:stop]).state())
        whole = seen(*chunks[:stop])
        for index, scores in enumerate(chunks[stop:], stop + 1):
            again.see(Chunk(index, 0, 3), scores)
            whole.see(Chunk(index, 0, 3), scores)
            assert again.state() == whole.state() and again.threshold == whole.threshold


@pytest.mark.parametrize(
    "wrong", [dict(counts=[1]), dict(chunks=-1), dict(cut=999), dict(latest=[1]), dict(since="1")]
)
def test_a_damaged_state_is_refused(wrong):
    valley = seen(*[scores_of((72, 1e-3), (24, 1.0))] * 3)
    with pytest.raises(KVMemoryError, match=f"'{next(iter(wrong))}'"):
        valley.restore({"valley": {**valley.state()["valley"], **wrong}})
    with pytest.raises(KVMemoryError, match="'valley' is NoneType"):
        valley.restore({})


# In chunks of six frames, the first three frames of each are wrong: 18 of its 36 tokens.
HALF = [token for chunk in range(8) for token in tokens(*range(6 * chunk, 6 * chunk + 3))]


def half_of(*chunks):
    return [token for chunk in chunks for token in tokens(*range(6 * chunk, 6 * chunk + 3))]


def whole(*chunks):
    return [token for chunk in chunks for token in tokens(*range(6 * chunk, 6 * chunk + 6))]


@pytest.mark.parametrize("control", [None, RandomPrune, TempDiffPrune])
def test_the_chunks_that_waited_are_pruned_too(control):
    """Chunks 1 to 3 are scored before the threshold is known, when chunk 3 is finished."""
    policy = DeCoPrune(mode="valley")
    model, trace = script(control(policy) if control else policy, 36, 6, wrong=HALF)
    assert model.histories[4] == whole(0, 1, 2, 3)
    if control:
        assert len(model.histories[5]) == len(whole(0, 3, 4)) + len(half_of(1, 2))
    else:
        assert model.histories[5] == [*whole(0), *half_of(1, 2), *whole(3, 4)]
    assert trace.scores["kept"] == 4 * 18 and 0 < trace.scores["threshold"] < 0.2


def test_without_a_sink_and_a_take_that_is_too_short():
    model, trace = script(DeCoPrune(mode="valley", sink_chunks=0), 18, 6, wrong=HALF)
    assert model.histories[2] == whole(0, 1)
    assert trace.scores["threshold"] is None and sum(trace.scores["counts"]) == 0
    note = "found no threshold: 2 chunks were scored, and it needs 3 to 4."
    assert note in trace.notes[-1] and "scored the prediction" in trace.notes[0]


@pytest.mark.parametrize(
    "chunks, options, says",
    [
        (0, {}, "no chunk was scored. All"),
        (1, {}, "1 chunk was scored, and it needs 3 to 4."),
        (2, dict(unit=3), "2 chunks were scored, and it needs 9 to 12."),
        (1, dict(waiting_chunks=3), "1 chunk was scored, and it needs 3."),
        (1, dict(waiting_chunks=2), "1 chunk was scored, and it needs 2."),
        (0, dict(waiting_chunks=0), "no chunk was scored."),
    ],
)
def test_the_note_says_how_many_chunks_a_threshold_needs(chunks, options, says):
    valley = seen(*[scores_of((72, 1e-3), (24, 1.0))] * chunks, **options)
    assert valley.threshold is None
    assert says in valley.notes[0]


def test_a_take_too_short_to_be_scored_names_no_scored_step():
    _, trace = script(DeCoPrune(mode="valley"), 6, 6)
    assert len(trace.notes) == 1 and "no chunk was scored" in trace.notes[0]


def test_where_a_bound_decides_the_note_does_not_call_it_the_valley():
    new = 10 ** (torch.arange(900) / 900)
    (note,) = seen(*[torch.cat([scores_of((100, 1e-3)), new])] * 3).notes
    assert "above which 0.6 of this take's scores lie: 4 times target_keep, the most" in note
    predictable = 10 ** (torch.arange(1000) / 1000 - 3)
    with_new = torch.cat([predictable, scores_of((10, 1.0))])
    (note,) = seen(*[with_new] * 3, *[predictable] * 57).notes
    assert "above which 0.005 of this take's scores lie: a 30th of target_keep" in note


def test_the_notes_name_the_threshold_and_from_which_chunk_on():
    _, trace = script(DeCoPrune(mode="valley"), 36, 6, wrong=HALF)
    (note,) = [note for note in trace.notes if "threshold" in note]
    assert "the valley between the two humps" in note and "from chunk 3 (counted from 0) on" in note
    _, trace = script(DeCoPrune(mode="valley"), 36, 6, wrong=[])
    (note,) = [note for note in trace.notes if "threshold" in note]
    assert "above which 15% of this take's scores lie" in note and "from chunk 4" in note


def test_under_a_bound_no_more_chunks_wait_than_it_holds():
    geometry = fake.geometry(2)
    for most_frames, waiting in ((0, 4), (20, 4), (6, 2), (3, 0), (2, 0)):
        policy = DeCoPrune(mode="valley", most_frames=most_frames)
        run = policy.start(geometry, Take(20, 0, SIGMAS, 0))
        assert run.rule.waiting_chunks == waiting
    _, trace = script(DeCoPrune(mode="valley", most_frames=6), 36, 2, wrong=HALF)
    assert max(row.bank_tokens[0] for row in trace.rows) <= 6 * (6 + 3 * 2)


def test_a_cut_forgets_the_chunks_that_wait_and_keeps_what_was_learnt():
    run = DeCoPrune(mode="valley").start(fake.geometry(2), Take(20, 0, SIGMAS, 0))
    run.rule.see(Chunk(1, 2, 2), torch.rand(12))
    run.undecided.append(Undecided(Chunk(1, 2, 2), torch.rand(12)))
    cache = KVCache(fake.geometry(2), [], Storage(), torch.float32, torch.device("cpu"))
    run.begin_shot(cache, Chunk(2, 4, 2))
    assert not run.undecided and run.rule.chunks == 1
