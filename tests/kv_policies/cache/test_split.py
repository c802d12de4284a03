"""A bank of all heads that becomes several: each head's rows stay its own."""

import pytest
import torch
from keepsake.kv_policies import BankPlan, Geometry, KVCache, KVStorage, Span, Storage

GEOMETRY = Geometry(layers=2, heads=3, head_dim=4, grid=(1, 2), chunk_frames=2, temporal_channels=2)
NO_HEADS = ((), ())
DENSE = [BankPlan(4, 4), BankPlan(4, 4, NO_HEADS)]
SPLIT = [BankPlan(3, 3, ((0, 2), ())), BankPlan(4, 4, ((1,), (0, 1, 2)))]
STORAGES = [Storage(), KVStorage("model", device="cpu")]


def cache_of(storage, plans=DENSE):
    return KVCache(GEOMETRY, plans, storage, torch.float32, torch.device("cpu"))


def write_chunk(cache, frames):
    """Every key says its layer, head, frame and cell: 1000 l + 100 h + 10 f + c."""
    cache.reserve(Span.of_frames(frames))
    for bank in cache.banks:
        rows = slice(bank.committed, bank.length)
        for layer, heads in enumerate(bank.heads):
            number = 10.0 * bank.frame[rows] + bank.cell[rows]
            head = torch.tensor(heads, dtype=torch.float32)
            k = 1000 * layer + 100 * head[None, :] + number[:, None]
            k = k[None, :, :, None].expand(-1, -1, -1, 4)
            bank.write(layer, k, -k)
    cache.commit()


def keys(bank, layer):
    """By head, one channel of each row."""
    k, v = bank.read(layer)
    assert torch.equal(k, -v)
    return k[0, :, :, 0].T.tolist()


@pytest.mark.parametrize("storage", STORAGES, ids=repr)
def test_each_head_takes_its_own_rows(storage):
    cache = cache_of(storage)
    write_chunk(cache, range(2))
    cache.split(SPLIT, [torch.tensor([0, 1]), torch.tensor([1, 2, 3])])
    first, second = cache.banks
    assert keys(first, 0) == [[0, 1], [200, 201]] and keys(first, 1) == []
    assert keys(second, 0) == [[101, 110, 111]]
    assert keys(second, 1) == [[1001, 1010, 1011], [1101, 1110, 1111], [1201, 1210, 1211]]
    assert second.frame[:3].tolist() == [0, 1, 1] and second.cell[:3].tolist() == [1, 0, 1]
    assert (first.capacity, second.capacity) == (6, 8)

    write_chunk(cache, range(2, 4))
    assert keys(first, 0) == [[0, 1, 20, 21, 30, 31], [200, 201, 220, 221, 230, 231]]
    assert keys(second, 0) == [[101, 110, 111, 120, 121, 130, 131]]


@pytest.mark.parametrize("storage", STORAGES, ids=repr)
def test_it_holds_what_a_cache_of_these_banks_would(storage):
    """The same bytes, and the same rows after both are saved."""
    cache, other = cache_of(storage), cache_of(storage, SPLIT)
    write_chunk(cache, range(2))
    write_chunk(other, range(2))
    cache.split(SPLIT, [torch.arange(4), torch.arange(4)])
    assert cache.nbytes() == other.nbytes() and cache.main_bytes() == other.main_bytes()
    for ours, theirs in zip(cache.state()["banks"], other.state()["banks"], strict=True):
        for a, b in zip(ours["layers"], theirs["layers"], strict=True):
            assert torch.equal(a["k"], b["k"]) and torch.equal(a["v"], b["v"])


def test_at_most_one_layer_lies_there_twice():
    """One side of a row of all three heads is 48 bytes. In layer 1 they all go into the second
    bank, of 8 rows; of one side at a time, 4 rows are picked and then their heads.
    """
    cache = cache_of(Storage())
    write_chunk(cache, range(2))
    cache.split(SPLIT, [torch.arange(4), torch.arange(4)])
    assert cache.copied_bytes == 2 * 8 * 48 + 2 * 4 * 48


def test_heads_that_no_bank_has_are_refused():
    cache = cache_of(Storage())
    with pytest.raises(RuntimeError, match="share out all heads"):
        cache.split([BankPlan(4, 4, ((0,), (0,))), BankPlan(4, 4, NO_HEADS)], [torch.arange(0)] * 2)
