"""Rows of action modules: the latest frames stay, whatever the policy does."""

import pytest
import torch
from keepsake.kv_policies import ActionPlan, KVMemoryError, Span
from keepsake.kv_policies.cache.action_rows import ActionRows

PLAN = ActionPlan(
    window_frames=4, layers=(0, 2), places={"mouse": 3, "keyboard": 1}, heads=2, head_dim=5
)
CPU = torch.device("cpu")


def rows_with(frames: int, chunk: int = 3) -> ActionRows:
    """Rows of a take of so many frames, whose values are the frames' numbers."""
    rows = ActionRows(PLAN, torch.float32, CPU)
    for start in range(0, frames, chunk):
        add(rows, range(start, start + chunk))
        rows.commit()
    return rows


def add(rows: ActionRows, frames):
    rows.reserve(Span.of_frames(frames))
    for layer in PLAN.layers:
        for part, places in PLAN.places.items():
            k = torch.tensor(list(frames), dtype=torch.float32)[None, :, None, None]
            k = k.expand(places, -1, 2, 5)
            rows.write(layer, part, k, -k)


def frames_in(rows: ActionRows, layer=2, part="mouse") -> list[float]:
    k, v = rows.read(layer, part)
    assert torch.equal(k, -v) and k.shape[0] == PLAN.places[part]
    return k[0, :, 0, 0].tolist()


def test_a_chunk_reads_itself_and_as_many_frames_as_the_window_has_room_for():
    rows = rows_with(6)
    assert frames_in(rows) == rows.frames == [2, 3, 4, 5]
    add(rows, range(6, 9))
    assert frames_in(rows) == [5, 6, 7, 8]
    rows.commit()
    add(rows, [9])  # a short chunk
    assert frames_in(rows, 0, "keyboard") == [6, 7, 8, 9]


def test_forwards_overwrite_the_chunk_in_work_and_a_discarded_one_leaves_nothing():
    rows = rows_with(3)
    add(rows, range(3, 6))
    rows.write(2, "mouse", *[torch.full((3, 3, 2, 5), 7.0)] * 2)
    assert rows.read(2, "mouse")[0][0, :, 0, 0].tolist() == [2, 7, 7, 7]
    rows.discard()
    assert frames_in(rows) == [2]
    k, v = rows.read_with(2, "mouse", *[torch.full((3, 3, 2, 5), 9.0)] * 2)
    assert k[0, :, 0, 0].tolist() == [2, 9, 9, 9] and frames_in(rows) == [2]


def test_frames_before_a_number_can_be_forgotten_and_all_of_them():
    rows = rows_with(6)
    rows.forget(4)
    assert frames_in(rows) == [4, 5]
    rows.clear()
    assert frames_in(rows) == []


def test_rows_saved_and_restored_are_equal():
    rows, other = rows_with(6), ActionRows(PLAN, torch.float32, CPU)
    other.restore(rows.state())
    for each in (rows, other):
        add(each, range(6, 9))
    for layer in PLAN.layers:
        for part in PLAN.places:
            assert torch.equal(rows.read(layer, part)[0], other.read(layer, part)[0])
    # Without content, as in a dry run.
    ActionRows(PLAN, torch.float32, torch.device("meta")).restore(rows.state())


def test_what_cannot_be_its_state_is_refused():
    good = rows_with(6).state()
    empty = {**good["layer 0 mouse"], "k": torch.zeros(3, 1, 2, 5)}
    for state in (None, {}, {**good, "frames": [0] * 5}, {**good, "layer 0 mouse": empty}):
        with pytest.raises(KVMemoryError, match="damaged"):
            ActionRows(PLAN, torch.float32, CPU).restore(state)


def test_bytes_are_those_of_the_window_and_gone_when_it_is_freed():
    rows = rows_with(3)
    # layers, keys and values, window, places, heads, head_dim, fp32
    assert rows.nbytes() == 2 * 2 * 4 * (3 + 1) * 2 * 5 * 4
    rows.free()
    assert rows.nbytes() == 0


def test_a_model_without_action_modules_holds_none():
    rows = ActionRows(None, torch.float32, CPU)
    rows.reserve(Span.of_frames(range(3)))
    rows.commit()
    rows.restore(None)
    assert rows.nbytes() == 0 and rows.state() == {}
