"""What a forward can read, as one list of rows: in which order, how many, and without copies."""

import torch
from keepsake.kv_policies import BankPlan, Chunk, KVCache, Storage, View
from keepsake.kv_policies.cache.view import OtherRows

from ... import fake

T = 6  # tokens of a latent frame


def bank_of(*chunks):
    """A bank of these chunks, all but the last one history; row r has r everywhere as its key."""
    plan = BankPlan(10, 10)
    cache = KVCache(fake.geometry(), [plan], Storage(), torch.float64, torch.device("cpu"))
    for index, (start, frames) in enumerate(chunks):
        cache.reserve(Chunk(index, start, frames).span)
        if index < len(chunks) - 1:
            cache.commit()
    (bank,) = cache.banks
    rows = torch.arange(bank.length, dtype=torch.float64)[None, :, None, None]
    rows = rows.expand(1, bank.length, fake.HEADS, fake.DIM)
    bank.pages[0].write(slice(0, bank.length), rows, -rows)
    return bank


def test_a_cache_alone_is_read_in_place():
    bank = bank_of((0, 2), (2, 1))
    view = View(bank)
    assert (view.history_rows, view.own_rows) == (2 * T, T)
    for of_view, of_bank in zip(view.read(0), bank.read(0)):
        assert of_view.data_ptr() == of_bank.data_ptr() and torch.equal(of_view, of_bank)
    assert view.frame.data_ptr() == bank.frame.data_ptr()
    assert view.frame.tolist() == [0] * T + [1] * T + [2] * T


def test_rows_of_other_caches_come_first_and_the_own_ones_last():
    """Frames 1 and 2 of a cache that holds 0 to 3, before a cache with frame 4 that works on 5."""
    other, own = bank_of((0, 4), (9, 1)), bank_of((4, 1), (5, 1))
    view = View(own, (OtherRows(other, other.rows_of(1, 2)),))
    assert view.frame.unique_consecutive().tolist() == [1, 2, 4, 5]
    assert view.position.unique_consecutive().tolist() == [1, 2, 4, 5]
    assert (view.history_rows, view.own_rows) == (3 * T, T)
    assert view.cell.tolist() == list(range(T)) * 4
    assert view.history_ids().tolist() == [*range(T, 3 * T), *range(4 * T, 5 * T)]
    k, v = view.read(0)
    assert k[0, :, 0, 0].tolist() == [*range(T, 3 * T), *range(2 * T)] and torch.equal(v, -k)


def test_copies_are_read_in_the_place_of_a_bank_on_another_device():
    other, own = bank_of((0, 2), (9, 1)), bank_of((4, 1), (5, 1))
    copies = [tuple(side + 100 for side in other.read(0, slice(0, 2 * T)))]
    view = View(own, (OtherRows(other, other.rows_of(1, 1), copies),))
    assert view.read(0)[0][0, :T, 0, 0].tolist() == [100.0 + row for row in range(T, 2 * T)]


def test_the_state_changes_when_rows_come_or_go():
    bank = bank_of((0, 2), (2, 1))
    before = View(bank).state
    assert View(bank).state == before
    bank.commit()
    assert View(bank).state != before
