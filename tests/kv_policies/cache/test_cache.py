"""Banks: which rows are kept, which tokens they hold, and that both move together."""

import pytest
import torch
from keepsake.kv_policies import Bank, BankPlan, Chunk, Geometry, Storage

GEOMETRY = Geometry(layers=2, heads=2, head_dim=4, grid=(1, 2), chunk_frames=2, temporal_channels=2)


def filled_bank(frames=4, dtype=torch.float32, heads=((0, 1), (0, 1)), plan=None):
    """Two tokens a frame, two frames a chunk; every key and value says which row it was."""
    bank = Bank(
        GEOMETRY, plan or BankPlan(frames, frames, heads), Storage(), dtype, torch.device("cpu")
    )
    fill(bank, frames)
    return bank


def fill(bank, frames, more=0):
    for index, start in enumerate(range(0, frames, 2)):
        bank.reserve(Chunk(index, start, 2).span)
        for layer, heads in enumerate(bank.heads):
            k = (
                torch.arange(bank.committed, bank.length)[None, :, None, None].expand(
                    1, 4, len(heads), 4
                )
                + 100 * layer
                + more
            )
            bank.write(layer, k, -k)
        bank.commit()


def test_rows_are_named_by_frame_and_cell():
    bank = filled_bank()
    assert bank.frame[: bank.length].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert bank.cell[: bank.length].tolist() == [0, 1] * 4
    assert bank.position[: bank.length].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize(
    "rows",
    [
        [0, 1, 2],
        [0, 3, 7],
        [5, 6],
        [],
        [0, 1, 2, 3, 4, 5, 6, 7],
        [0, 1, 2, 3, 4, 5, 6],
        [1, 2, 3, 4, 5, 6, 7],
    ],
)
def test_keep_gathers_the_same_rows_in_every_layer(rows):
    bank = filled_bank()
    names = bank.frame[:8][rows].tolist(), bank.cell[:8][rows].tolist()
    bank.keep(torch.tensor(rows, dtype=torch.long))
    assert (bank.length, bank.committed) == (len(rows), len(rows))
    assert (bank.frame[: bank.length].tolist(), bank.cell[: bank.length].tolist()) == names
    for layer in range(2):
        k, v = bank.read(layer)
        assert k[0, :, 0, 0].tolist() == [row + 100 * layer for row in rows]
        assert v[0, :, 1, 3].tolist() == [-row - 100 * layer for row in rows]


def test_reading_copies_nothing():
    bank = filled_bank()
    assert bank.read(1)[0].data_ptr() == bank.pages[1].k.data_ptr()


def test_the_chunk_in_work_survives_compaction_and_is_overwritten_in_place():
    bank = filled_bank(frames=6)
    bank.keep(torch.arange(8))
    bank.reserve(Chunk(2, 4, 2).span)
    bank.write(0, torch.full((1, 4, 2, 4), 7.0), torch.full((1, 4, 2, 4), 7.0))
    bank.keep(torch.tensor([0, 5, 8, 9, 10, 11]))
    assert (bank.committed, bank.length) == (2, 6)
    assert bank.frame[:6].tolist() == [0, 2, 4, 4, 5, 5]
    bank.write(0, torch.full((1, 4, 2, 4), 9.0), torch.full((1, 4, 2, 4), 9.0))
    assert bank.read(0)[0][0, :, 0, 0].tolist() == [0, 5, 9, 9, 9, 9]


def test_a_policy_cannot_drop_the_chunk_in_work():
    bank = filled_bank(frames=6)
    bank.keep(torch.arange(8))
    bank.reserve(Chunk(2, 4, 2).span)
    for rows in (torch.arange(2), torch.arange(8), torch.arange(11)):
        with pytest.raises(RuntimeError, match="chunk in work"):
            bank.keep(rows)


def test_a_bank_that_is_too_small_says_so():
    bank = filled_bank()
    with pytest.raises(RuntimeError, match="most_frames"):
        bank.reserve(Chunk(2, 4, 2).span)


def test_a_bank_grows_and_loses_nothing():
    grown, whole = filled_bank(frames=8, plan=BankPlan(2, 8)), filled_bank(frames=8)
    assert whole.length == grown.length == 16 and grown.capacity == 16
    for layer in range(2):
        for a, b in zip(grown.read(layer), whole.read(layer)):
            assert torch.equal(a, b)
    for name in ("frame", "cell", "position"):
        assert torch.equal(getattr(grown, name)[:16], getattr(whole, name)[:16])
    assert (
        filled_bank(frames=4, plan=BankPlan(2, 8)).capacity == 8
    )  # by a quarter at least, and no further than it must
    with pytest.raises(RuntimeError, match="most_frames"):
        grown.reserve(Chunk(4, 8, 2).span)


def test_bytes_are_those_of_the_buffers():
    bank = filled_bank(heads=((0,), (0, 1)))
    assert bank.nbytes() == 2 * (8 * 1 * 4 + 8 * 2 * 4) * 4
    bank.keep(torch.arange(4))
    assert bank.live_bytes(bank.committed) == bank.nbytes() // 2
    bank.hold(1)  # its key once more, in both layers
    assert bank.live_bytes(bank.committed) == bank.nbytes() - 2 * (4 * 1 * 4 + 4 * 2 * 4) * 4
    assert GEOMETRY.bytes_per_frame(4) * 4 == filled_bank().nbytes()


def test_rows_that_stay_where_they_are_are_not_copied():
    bank = filled_bank()
    bank.keep(torch.tensor([0, 1, 2, 5, 7]))
    assert bank.copied_bytes == bank.side_bytes(2)


def test_what_was_held_is_forgotten_with_the_rows():
    """After a cut the new shot's sink moves, from its own keys."""
    bank, fresh = filled_bank(), filled_bank()
    bank.hold(2)
    bank.move(torch.full((2,), 5.0, dtype=torch.float64))
    for each in (bank, fresh):
        each.clear()
        fill(each, 4, more=1000)
        each.hold(2)
        each.move(torch.full((2,), 9.0, dtype=torch.float64))
    assert torch.equal(bank.read(1)[0], fresh.read(1)[0]) and bank.read(1)[0][0, 0, 0, 2] == 1100


def test_a_sink_that_moves_often_gathers_no_rounding_error():
    moved, once = filled_bank(dtype=torch.bfloat16), filled_bank(dtype=torch.bfloat16)
    for bank in (moved, once):
        bank.hold(2)
    for step in range(1, 200):
        moved.move(torch.full((2,), float(step), dtype=torch.float64))
    once.move(torch.full((2,), 199.0, dtype=torch.float64))
    assert torch.equal(moved.pages[1].k, once.pages[1].k)
    assert moved.position[:3].tolist() == [199, 199, 1]
    moved.move(torch.zeros(2, dtype=torch.float64))
    assert torch.equal(moved.pages[0].k, filled_bank(dtype=torch.bfloat16).pages[0].k)
