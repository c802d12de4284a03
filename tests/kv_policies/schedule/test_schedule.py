"""The seam of schedules: what they may call, their roles, and what a selection sees of them."""

import inspect
from dataclasses import dataclass

import pytest
from keepsake.kv_policies import (
    SCHEDULES,
    CleanPass,
    FlashForward,
    KVPolicy,
    RollingForcing,
    Selection,
    SelectionRun,
    Span,
    Stage,
    Take,
)
from keepsake.rollout.rollout import Rollout

from ... import fake

TAKE = Take(9, 0, (1.0, 0.5, 0.0), 0)
ALL = pytest.mark.parametrize("schedule", SCHEDULES)


def test_a_rollout_has_every_call_of_a_stage():
    calls = {name: call for name, call in vars(Stage).items() if inspect.isfunction(call)}
    calls = {name: call for name, call in calls.items() if not name.startswith("_")}
    assert len(calls) == 15
    for name, call in calls.items():
        of_rollout, of_stage = (
            [(p.name, p.default) for p in inspect.signature(f).parameters.values()]
            for f in (vars(Rollout)[name], call)
        )
        assert of_rollout == of_stage, name


@ALL
def test_each_cache_is_written_by_one_of_the_roles(schedule):
    caches = schedule().caches(KVPolicy().retention, fake.geometry(), TAKE)
    roles = {schedule().role_of(cache) for cache in caches}
    assert roles == (set(schedule.roles) or {None})


def test_models_of_roles_are_shown_in_words_and_compared_by_nothing():
    schedule = FlashForward()
    plain, planned = KVPolicy(schedule=schedule), KVPolicy(schedule=schedule, models={"planner": 1})
    assert plain == planned and hash(plain) == hash(planned) and repr(plain) == repr(planned)
    described = planned.describe()["schedule"]
    assert described["planner_model"] == "its own"
    assert described["renderer_model"] == "the sampler's"
    assert "planner_model" not in KVPolicy(schedule=CleanPass()).describe()["schedule"]


def test_a_model_for_both_roles_is_warned_of_unless_it_was_trained_on_noisy_history():
    schedule = FlashForward()
    assert "expect the take to drift" in schedule.notes({}, False)[0]
    assert schedule.notes({}, True) == schedule.notes({"planner": 1}, False) == ()


def test_a_span_stands_at_its_frames_or_from_a_position_on():
    anchors = Span.of_frames((0, 10, 20))
    assert anchors.positions == (0, 10, 20) and anchors.at(5).positions == (5, 6, 7)
    latents = fake.noise_of(21)
    assert anchors.cut(latents).data_ptr() == latents.data_ptr()  # every tenth frame: a view
    for numbers in ((0, 10, 20), (0, 3, 4), (7,)):
        assert Span.of_frames(numbers).cut(latents).equal(latents[:, :, list(numbers)])


@dataclass(frozen=True)
class Watch(Selection):
    """Reads everything, and notes (frames of the span, frames in reach, rows of the span)."""

    seen: list

    def start(self, geometry, take, full_frames):
        class Run(SelectionRun):
            def read(run, layer, forward, q, view, attention):  # noqa: N805
                frames = view.frame.unique_consecutive().tolist()
                self.seen.append((list(forward.span.numbers), frames, view.own_rows))
                return super().read(layer, forward, q, view, attention)

        return Run()


def test_a_selection_acts_on_a_forward_that_reads_several_caches():
    """12 frames in chunks of 2, two steps: 4 frames in flight read the sink, 0 and 1, and of the
    finished ones the two that a window of 8 leaves room for.
    """
    seen, policy = [], RollingForcing(8)
    watched, *_ = fake.take(
        KVPolicy(selection=Watch(seen), schedule=policy), 12, 2, sigmas=(1.0, 0.5, 0.0)
    )
    assert ([4, 5, 6, 7], [0, 1, 2, 3, 4, 5, 6, 7], 4 * 6) in seen
    assert ([8, 9, 10, 11], [0, 1, 6, 7, 8, 9, 10, 11], 4 * 6) in seen
    alone, *_ = fake.take(KVPolicy(schedule=policy), 12, 2, sigmas=(1.0, 0.5, 0.0))
    assert watched.equal(alone)
