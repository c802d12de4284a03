"""Merged rows: computed from others, counted as other tokens or none, saved and restored."""

import pytest
import torch
from keepsake.kv_policies import Bank, BankPlan, KVMemoryError, KVStorage, Storage
from keepsake.kv_policies.cache.view import View

from .test_cache import GEOMETRY, fill, filled_bank


def merging(storage=None, frames=6):
    """Two tokens a frame; the first two frames are held with their values."""
    plan = BankPlan(frames, frames, held_frames=2, holds_values=True, merges=True)
    bank = Bank(GEOMETRY, plan, storage or Storage(), torch.float32, torch.device("cpu"))
    fill(bank, frames)
    return bank


def replay(bank):
    """Frame 3 becomes frame 1 again, as it was held: key 2 and 3 of layer 0, value -2 and -3."""

    def first_rows(layer):
        return bank.read_held(layer, torch.tensor([2, 3]))

    bank.hold(4)
    assert bank.held_position.tolist() == [0, 0, 1, 1]
    bank.keep(torch.arange(4, bank.length))  # frames 2, 3 ...: the held ones are gone
    bank.rewrite(slice(2, 4), first_rows, source=torch.tensor([2, 3]))
    return bank


@pytest.mark.parametrize("storage", [Storage(), KVStorage("model", device="cpu")], ids=repr)
def test_rows_can_be_computed_from_held_ones_that_are_gone(storage):
    bank = replay(merging(storage))
    for layer in range(2):
        k, v = bank.read(layer)
        assert k[0, :, 0, 3].tolist() == [100 * layer + n for n in (4, 5, 2, 3, 8, 9, 10, 11)]
        assert torch.equal(v, -k)
    assert bank.frame[:8].tolist() == [2, 2, 3, 3, 4, 4, 5, 5]


def test_a_replayed_token_counts_as_itself_and_a_mean_as_none():
    bank = replay(merging())
    assert View(bank).history_ids().tolist() == [4, 5, 2, 3, 8, 9, 10, 11]
    assert bank.stand_for_themselves(slice(4, 8)) and not bank.stand_for_themselves(slice(2, 8))
    none = torch.tensor([-1, -1])
    bank.rewrite(slice(0, 2), lambda layer: bank.read(layer, slice(2, 4)), source=none)
    assert View(bank).history_ids().tolist() == [2, 3, 8, 9, 10, 11]


def test_a_rewritten_held_row_moves_from_what_was_written():
    bank, fresh = filled_bank(), filled_bank()
    bank.hold(2)
    bank.move(torch.full((2,), 5.0, dtype=torch.float64))
    start = torch.zeros(2, dtype=torch.float64)
    bank.rewrite(slice(0, 2), lambda layer: fresh.read(layer, slice(2, 4)), position=start)
    bank.move(start + 9)
    fresh.keep(torch.arange(2, 8))
    fresh.position[:2] = 0
    fresh.move(start + 9)
    for layer in range(2):
        assert torch.equal(bank.read(layer, slice(0, 2))[0], fresh.read(layer, slice(0, 2))[0])


def test_what_was_held_and_merged_is_saved():
    state, other = replay(merging()).state(), merging()
    other.restore(state)
    assert View(other).history_ids().tolist() == [4, 5, 2, 3, 8, 9, 10, 11]
    k, v = other.read_held(1, torch.tensor([3]))
    assert k[0, 0, 0, 0] == 103 and v[0, 0, 0, 0] == -103


def test_a_damaged_memory_is_refused():
    for damage in (
        lambda state: state["source"].fill_(12),
        lambda state: state["source"].fill_(-2),
        lambda state: state.pop("source"),
        lambda state: state["layers"][1].pop("held_v"),
        lambda state: state["layers"][1].update(held_v=torch.zeros(1, 3, 2, 4)),
    ):
        state = replay(merging()).state()
        damage(state)
        with pytest.raises(KVMemoryError):
            merging().restore(state)


def test_held_values_are_counted():
    plain, bank = filled_bank(frames=6), replay(merging())
    assert bank.nbytes() == plain.nbytes() + plain.nbytes() // 3
