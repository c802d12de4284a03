"""Directed Forcing with Rolling Forcing: the frames of the joint window compete, too. Whole takes
against a plain, slow reading of the paper (loops, float64), and by hand.
"""

import pytest
import torch
from keepsake.kv_policies import (
    ContextRecompute,
    DirectedForcing,
    FlashForward,
    HeadTable,
    Hierarchical,
    KVPolicy,
    RollingForcing,
    SinkWindow,
    Take,
)
from keepsake.kv_policies.selection.frame_choice import choose_jointly, split_budget
from keepsake.kv_policies.selection.frame_scores import z_score_among
from keepsake.kv_policies.selection.masked_head import MaskedHead
from keepsake.rollout.estimate import estimate

from ... import fake
from ...rollout.test_estimate import measured, plan, untimed
from .slow import Slow

TWO, THREE = (1.0, 0.5, 0.0), (1.0, 0.8, 0.5, 0.0)
TABLE = HeadTable("fake", "x0_drift", ((0.0, 0.5), (1.0, 0.25)))


def both(policy, schedule, frames, chunk_frames, **options):
    """The take by Directed Forcing and by the loops, what the loops read, and the trace."""
    seen = []
    fast, trace, _ = fake.take(
        KVPolicy(selection=policy, schedule=schedule), frames, chunk_frames, **options
    )
    slow, *_ = fake.take(
        KVPolicy(selection=Slow(policy, seen), schedule=schedule), frames, chunk_frames, **options
    )
    return fast, slow, seen, trace


@pytest.mark.parametrize("table", [None, TABLE], ids=["uniform", "table"])
@pytest.mark.parametrize(
    "window, frames, chunk_frames, sigmas, given",
    [
        (10, 19, 2, TWO, 0),
        (9, 14, 2, TWO, 0),  # a window that is no whole number of chunks
        (12, 22, 3, TWO, 0),  # and a short last chunk
        (14, 20, 2, THREE, 3),  # a short second chunk
        (12, 18, 1, THREE, 0),
        (18, 23, 3, THREE, 0),
    ],
)
def test_a_whole_take_equals_the_slow_reading(window, frames, chunk_frames, sigmas, given, table):
    policy = DirectedForcing(budget_min=2, budget_max=9, uniform_budget=5, head_table=table)
    prefix = fake.noise_of(given, seed=9) if given else None
    fast, slow, seen, trace = both(
        policy, RollingForcing(window), frames, chunk_frames, prefix=prefix, sigmas=sigmas
    )
    assert torch.allclose(fast, slow, rtol=0, atol=1e-9)
    assert any("ragged attention by" in note for note in trace.notes)
    assert {len(read[0]) for _, reach, read in seen if len(reach) > 5} <= {2, 3, 4, 5}
    dense, *_ = fake.take(
        KVPolicy(schedule=RollingForcing(window)), frames, chunk_frames, prefix, sigmas
    )
    assert not torch.allclose(fast, dense, rtol=0, atol=1e-3)


def test_it_selects_once_the_joint_window_is_full():
    """12 frames in chunks of 2, two steps, window 8. A joint forward reads the sink (2), finished
    frames and 4 frames in flight: 8 with frames 4 to 7. The clean forward reads as many finished
    ones, the sink where it lies that near: 8 with chunk 6.
    """
    policy = DirectedForcing(uniform_budget=4)
    _, _, seen, _ = both(policy, RollingForcing(8), 12, 2, sigmas=TWO)
    assert [(span, len(reach), len(read[0])) for span, reach, read in seen] == [
        ([4, 5, 6, 7], 8, 4),
        ([6, 7, 8, 9], 8, 4),
        ([6, 7], 8, 4),
        ([8, 9, 10, 11], 8, 4),
        ([8, 9], 8, 4),
        ([10, 11], 8, 4),
    ]


def test_what_is_kept_of_a_joint_window():
    """The own frame, one of frames 0 to 2, and the rest of the budget split."""
    policy = DirectedForcing(uniform_budget=6)
    _, _, seen, _ = both(policy, RollingForcing(15), 24, 3, sigmas=TWO)
    joint = [(span, reach, read) for span, reach, read in seen if len(span) == 6]
    assert joint
    for span, reach, read in joint:
        past = set(reach) - set(span)
        for own, frames in zip(span, read):
            assert own in frames and len([frame for frame in frames if frame < 3]) == 1
            # 4 left; 6 finished frames and 5 in flight compete: 4 * 6 / 11 = 2.2, so 2 and 2.
            assert len(past) == 9 and len([f for f in frames if f in past and f > 2]) == 2


def test_splitting_by_hand():
    assert split_budget(5, 15, 5) == (4, 1)  # 3.75 and 1.25
    assert split_budget(2, 6, 2) == (2, 0)  # 1.5: the half to the history
    assert split_budget(4, 0, 8) == (0, 4)
    assert split_budget(3, 8, 0) == (3, 0)
    assert split_budget(0, 8, 4) == (0, 0)
    assert split_budget(9, 3, 4) == (3, 4)  # all there are
    for budget in range(12):
        for history in range(8):
            for window in range(8):
                a, b = split_budget(budget, history, window)
                assert a <= history and b <= window
                assert a + b == min(budget, history + window)


def test_choosing_by_hand():
    """Two sinks, three finished frames, and the two query frames themselves."""
    scores = torch.tensor(
        [[[1.0, 2.0, 5.0, 4.0, 6.0, 9.0, 3.0]], [[2.0, 1.0, 5.0, 7.0, 6.0, 0.0, 9.0]]]
    )
    # The anchor and the own frame; of 4 frames (3 finished, 1 in flight) 1, 2 or 3 more.
    assert choose_jointly(scores, 2, 3).tolist() == [[[1, 4, 5]], [[0, 3, 6]]]
    assert choose_jointly(scores, 2, 4).tolist() == [[[1, 2, 4, 5]], [[0, 3, 4, 6]]]  # 1.5: 2, 0
    assert choose_jointly(scores, 2, 5).tolist() == [[[1, 2, 4, 5, 6]], [[0, 3, 4, 5, 6]]]
    assert choose_jointly(scores, 0, 1).tolist() == [[[5]], [[6]]]  # no sink: the own frame alone


def test_z_scores_leave_out_what_does_not_compete():
    values = torch.tensor([[1.0, 100.0, 3.0]])
    z = z_score_among(values, torch.tensor([[True, False, True]]))
    assert z[0, [0, 2]].tolist() == pytest.approx([-1, 1])


def test_budgets_that_reach_everything_are_bit_equal_to_dense_reads():
    policy = DirectedForcing(uniform_budget=8)
    directed, trace, _ = fake.take(
        KVPolicy(selection=policy, schedule=RollingForcing(8)), 14, 2, sigmas=TWO
    )
    dense, *_ = fake.take(KVPolicy(schedule=RollingForcing(8)), 14, 2, sigmas=TWO)
    assert torch.equal(directed, dense)
    assert "each head may read as many" in trace.notes[0]


def test_a_take_shorter_than_the_window_says_that_it_never_selected():
    _, trace, _ = fake.take(
        KVPolicy(selection=DirectedForcing(), schedule=RollingForcing(21)), 18, 3, sigmas=TWO
    )
    assert "it begins at 21 latent frames in reach, and no chunk had more than 18" in trace.notes[0]


def test_two_streams_do_not_disturb_each_other():
    policy = KVPolicy(selection=DirectedForcing(uniform_budget=4), schedule=RollingForcing(8))
    alone, *_ = fake.take(policy, 14, 2, sigmas=TWO)
    beside, *_ = fake.take(policy, 14, 2, sigmas=TWO, streams=("positive", "negative"))
    assert torch.equal(alone, beside)


def test_the_trace_tells_which_finished_frames_a_chunk_read():
    """In its last step, by its own query frames: one anchor; of a budget of 4, 2 are left, and for
    these 5 or 6 finished frames compete with 3 in flight: 1.25 or 1.33 finished ones, so 1.
    """
    policy = KVPolicy(selection=DirectedForcing(uniform_budget=4), schedule=RollingForcing(12))
    _, trace, _ = fake.take(policy, 22, 2, sigmas=TWO)
    rows = {row.start_frame: row.reads for row in trace.rows}
    for start in (8, 10, 12, 14):
        assert len(rows[start]) == start
        assert sum(rows[start][:3]) == pytest.approx(1, abs=0.01)
        assert sum(rows[start][3:]) == pytest.approx(1, abs=0.01)
    assert set(rows[4]) == {1}  # not yet selecting


@pytest.mark.parametrize("stop", [6, 10, 12])
def test_a_resumed_take_is_the_take_of_one_run(stop):
    policy = KVPolicy(selection=DirectedForcing(uniform_budget=4), schedule=RollingForcing(8))
    options, kept = dict(frames=15, chunk_frames=2, sigmas=TWO), []
    straight, trace, _ = fake.take(policy, **options)
    fake.take(policy, stop_after=stop, on_memory=kept.append, **options)
    resumed, again, _ = fake.take(policy, memory=kept[0], **options)
    assert torch.equal(resumed, straight) and again.notes == trace.notes


def test_a_masked_head_says_nothing_in_a_joint_window_either():
    """As Calibrate Heads does it."""
    dense, *_ = fake.take(KVPolicy(schedule=RollingForcing(8)), 12, 2, sigmas=TWO)
    without, *_ = fake.take(
        KVPolicy(selection=MaskedHead(1, 0), schedule=RollingForcing(8)), 12, 2, sigmas=TWO
    )
    assert torch.isfinite(without).all() and not torch.allclose(without, dense, atol=1e-3)


def test_of_schedules_with_a_history_of_their_own_rolling_forcing_alone_takes_a_selection():
    take = Take(30, 0, TWO, 0)
    KVPolicy(selection=DirectedForcing(), schedule=RollingForcing()).check(fake.geometry(), take)
    for schedule in (Hierarchical(), FlashForward(), ContextRecompute()):
        with pytest.raises(ValueError, match="the selection Directed Forcing would have nothing"):
            KVPolicy(selection=DirectedForcing(), schedule=schedule).check(fake.geometry(), take)
    with pytest.raises(ValueError, match=r"the retention Sink \+ Window would have nothing"):
        KVPolicy(SinkWindow(), DirectedForcing(), RollingForcing()).check(fake.geometry(), take)


@pytest.mark.parametrize("given", [0, 3])
def test_the_estimate_is_what_a_run_measures(given):
    policy = KVPolicy(selection=DirectedForcing(uniform_budget=4), schedule=RollingForcing(9))
    planned = untimed(chunk.row for chunk in estimate(plan(policy, frames=15, given=given)).least)
    assert planned == measured(policy, frames=15, given=given)
