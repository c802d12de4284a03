"""The four lists of what can fill a slot, and which of them go together."""

import inspect

import keepsake.kv_policies as kv_policies
import pytest
from keepsake.kv_policies import (
    RETENTIONS,
    SCHEDULES,
    SELECTIONS,
    STORAGES,
    ActionPlan,
    CleanPass,
    DirectedForcing,
    KVPolicy,
    KVStorage,
    MonarchRT,
    ReadAll,
    Retention,
    RollingForcing,
    RollingSink,
    Schedule,
    Selection,
    Storage,
    Take,
    TaylorSeer,
)
from keepsake.kv_policies.words import title_of

from .. import fake

TAKE = Take(60, 0, (1.0, 0.9, 0.8, 0.5, 0.0), 0)
SELECTED = {
    (schedule, selection)
    for schedule in (CleanPass, RollingForcing, TaylorSeer)
    for selection in (DirectedForcing, MonarchRT)
}
HELD = {(CleanPass, KVStorage), (TaylorSeer, KVStorage)}


@pytest.mark.parametrize(
    "base, listed",
    [
        (Retention, RETENTIONS),
        (Selection, SELECTIONS),
        (Schedule, SCHEDULES),
        (Storage, STORAGES),
    ],
)
def test_whatever_is_exported_for_a_slot_is_in_its_list(base, listed):
    exported = {
        each
        for each in vars(kv_policies).values()
        if inspect.isclass(each) and issubclass(each, base) and not inspect.isabstract(each)
    }
    assert exported == set(listed) and len(listed) == len(set(listed))


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("selection", SELECTIONS)
def test_a_selection_goes_with_the_schedules_whose_forwards_it_can_act_on(schedule, selection):
    policy = KVPolicy(selection=selection(), schedule=schedule())
    if selection is ReadAll or (schedule, selection) in SELECTED:
        policy.check(fake.geometry(3), TAKE)
    else:
        with pytest.raises(ValueError, match=f"the selection {title_of(selection())} would have"):
            policy.check(fake.geometry(3), TAKE)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("storage", STORAGES)
def test_only_a_history_of_retentions_can_be_held_otherwise(schedule, storage):
    policy = KVPolicy(schedule=schedule(), storage=storage())
    if storage is Storage or (schedule, storage) in HELD:
        policy.check(fake.geometry(3), TAKE)
    else:
        with pytest.raises(ValueError, match="short caches of its own"):
            policy.check(fake.geometry(3), TAKE)


def test_frames_are_not_chosen_where_others_are_replayed_in_their_places():
    policy = KVPolicy(RollingSink(), DirectedForcing())
    with pytest.raises(ValueError, match="which latent frames to read, and in Rolling Sink"):
        policy.check(fake.geometry(3), TAKE)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_models_with_action_modules_run_chunk_after_chunk(schedule):
    """Their window follows one stretch of time; each schedule runs on them or is refused."""
    plan = ActionPlan(window_frames=3, layers=(0,), places={"keyboard": 1}, heads=1, head_dim=2)
    policy = KVPolicy(schedule=schedule())
    if schedule.gathers:
        with pytest.raises(ValueError, match="follows keys and mouse from frame to frame"):
            policy.check(fake.geometry(3, actions=plan), TAKE)
    else:
        policy.check(fake.geometry(3, actions=plan), TAKE)
        with pytest.raises(ValueError, match="Use chunk_frames of at most 3"):
            policy.check(fake.geometry(4, actions=plan), TAKE)
    policy.check(fake.geometry(4), TAKE)
