"""Banks in which each layer holds its own tokens: six tokens a frame, two layers."""

from dataclasses import dataclass

import pytest
import torch
from keepsake.kv_policies import (
    Bank,
    BankPlan,
    DirectedForcing,
    FullKV,
    KVMemoryError,
    KVPolicy,
    KVStorage,
    Retention,
    RetentionRun,
    Span,
    Storage,
    Take,
)

from ... import fake

FRAMES = 7


def bank_of(frames, by_layer=True) -> Bank:
    """A bank with so many latent frames of history. A key tells its layer and its token."""
    plan = BankPlan(frames + 1, frames + 1, by_layer=by_layer)
    bank = Bank(fake.geometry(1), plan, Storage(), torch.float64, torch.device("cpu"))
    bank.reserve(Span.of_frames(range(frames)))
    for layer in range(2):
        write(bank, layer, bank.token_ids())
    bank.commit()
    return bank


def write(bank, layer, ids):
    k = (100.0 * layer + ids).view(1, -1, 1, 1).expand(1, -1, 2, 8)
    bank.write(layer, k.double(), k.double())


def ids_of(bank, layer):
    """By the columns, and by the keys."""
    columns = bank.frame[layer] * 6 + bank.cell[layer]
    keys = bank.read(layer)[0][0, :, 0, 0] - 100 * layer
    return columns[: bank.length].tolist(), keys.tolist()


def test_each_layer_chooses_before_its_rows_are_written():
    bank = bank_of(3)
    bank.open(history=6 + 2, first_kept=6)
    bank.reserve(Span.of_frames([3]))
    for layer, chosen in enumerate([[7, 17], [6, 9]]):
        assert bank.is_open(layer)
        assert bank.open_keys(layer, slice(6, 18))[0, :, 0, 0].tolist() == [
            100 * layer + token for token in range(6, 18)
        ]
        bank.choose(layer, torch.tensor(chosen))
        write(bank, layer, torch.arange(18, 24))
        assert not bank.is_open(layer)
    bank.commit()
    for layer, chosen in enumerate([[7, 17], [6, 9]]):
        expected = [*range(6), *chosen, *range(18, 24)]
        assert ids_of(bank, layer) == (expected, expected)


def test_it_is_saved_and_restored():
    bank = bank_of(3)
    bank.open(history=6 + 2, first_kept=6)
    for layer, chosen in enumerate([[7, 17], [6, 9]]):
        bank.choose(layer, torch.tensor(chosen))
    again = bank_of(1)
    again.restore(bank.state())
    for layer in range(2):
        assert ids_of(again, layer) == ids_of(bank, layer)
    broken = bank.state()
    broken["frame"][1, 0] = 5
    with pytest.raises(KVMemoryError, match="not tokens of a take in their order"):
        again.restore(broken)


@dataclass(frozen=True)
class LastOfLayer(Retention):
    """Of each chunk of two frames but the latest, layer 0 holds the first frame and layer 1 the
    second.
    """

    def banks(self, geometry, take):
        return [BankPlan(take.total_frames, take.total_frames, by_layer=True)]

    def start(self, geometry, take):
        return LastOfLayerRun()


class LastOfLayerRun(RetentionRun):
    chooses = True

    def begin_chunk(self, cache, chunk):
        (bank,) = cache.banks
        if bank.committed:
            bank.open(bank.committed - 6, bank.committed - 12)

    def choose(self, layer, forward, q, bank):
        if bank.is_open(layer):
            bank.choose(layer, torch.arange(6) + bank.committed - 6 + 6 * layer)


def test_the_map_tells_in_which_share_of_the_layers_a_token_is():
    """Of frames 0 to 3, a chunk at frame 4 reads one of each pair in each layer."""
    _, trace, _ = fake.take(KVPolicy(LastOfLayer()), FRAMES)
    kept = trace.memory_maps[0]
    assert kept.shares == (0.5, 0.5)
    assert kept.at(trace.rows[2])[:, 0, 0].tolist() == [0.5] * 4 + [1] * 2
    assert [row.bank_tokens for row in trace.rows] == [(0,), (6,), (12,), (18,)]
    assert trace.rows[2].kept_tokens == 12 * 2 * 2  # rows, layers, heads


def test_what_needs_the_same_tokens_in_all_layers_is_refused():
    geometry, take = fake.geometry(), Take(FRAMES, 0, (1.0, 0.0), 1)
    for policy, sentence in (
        (KVPolicy(LastOfLayer(), DirectedForcing()), "Directed Forcing chooses by frames"),
        (KVPolicy(LastOfLayer(), storage=KVStorage("int8")), "codes the same ones in all"),
    ):
        with pytest.raises(ValueError, match=f"Last Of Layer keeps other tokens.*{sentence}"):
            policy.check(geometry, take)
    KVPolicy(LastOfLayer(), storage=KVStorage("model", device="cpu")).check(geometry, take)
    KVPolicy(FullKV(), DirectedForcing()).check(geometry, take)
