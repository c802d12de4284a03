"""Re-index: which positions, and when, by hand."""

import math
from types import SimpleNamespace

import pytest
import torch
from keepsake.kv_policies import BankPlan, Chunk, Cue, DeCoPrune, KVCache, Storage, Take
from keepsake.kv_policies.retention.reindex import Reindex, virtual_frames

from ... import fake


def test_virtual_frames_by_hand():
    frame = torch.tensor([0, 116, 232, 239])
    assert virtual_frames(frame, 240, 17, 8).tolist() == [223, 227.5, 232, 239]
    assert (
        virtual_frames(frame[:1], 17, 17, 8).tolist()
        == virtual_frames(frame[:1], 12, 17, 8).tolist()
        == [0]
    )  # a short one is not stretched


def reindexed_at(how, given=0, shot=0):
    """The frame of the latest re-index, or of the shot, as each of ten 2-frame chunks begins."""
    reindex, at = Reindex(how, 6, 4, "all", Take(20, given, (1.0, 0.0), 0)), []
    for index, start in enumerate(range(0, 20, 2)):
        chunk = Chunk(index, start, 2, start < given, Cue(shot=shot if start >= shot else 0))
        if start == shot > 0:
            reindex.begin_shot(chunk)
        reindex.begin_chunk(SimpleNamespace(banks=[], geometry=fake.geometry()), chunk)
        at.append(reindex.at)
    return at


def test_it_comes_once_or_when_more_frames_were_made_than_keep_their_places():
    assert reindexed_at("auto", given=8) == [0] * 4 + [8] * 6 and reindexed_at("auto") == [0] * 10
    assert reindexed_at("periodic") == [0, 0, 0, 6, 6, 6, 12, 12, 12, 18]
    assert reindexed_at("periodic", given=8) == [0] * 4 + [8, 8, 8, 14, 14, 14]
    assert reindexed_at("periodic", shot=8) == [0, 0, 0, 6, 8, 8, 8, 14, 14, 14]
    assert reindexed_at("off", given=8) == [0] * 10


def test_a_shot_is_squeezed_as_if_it_were_a_take():
    moved = []
    bank = SimpleNamespace(
        frame=torch.tensor([100, 108, 116, 119]),
        committed=4,
        move=lambda position, pairs: moved.append(position.tolist()),
    )
    Reindex("periodic", 6, 4, "all", Take(130, 0, (1.0, 0.0), 0)).begin_chunk(
        SimpleNamespace(banks=[bank], geometry=fake.geometry()),
        Chunk(60, 120, 2, cue=Cue(shot=100)),
    )
    assert moved == [[114, 115, 116, 119]]


@pytest.mark.parametrize("bands, turned", [("all", [True, True]), ("fast", [True, False])])
def test_fast_bands_leave_the_slower_half_of_the_temporal_pairs(bands, turned):
    """Two pairs, of one radian and of a hundredth of one per latent frame: a key at frame 0 moves
    12 - 4 = 8 frames on.
    """
    retention = DeCoPrune(reindex_bands=bands, virtual_length=4, reindex_recent=1)
    geometry = fake.geometry(layers=1, heads=1)
    cache = KVCache(geometry, [BankPlan(14, 14)], Storage(), torch.float64, torch.device("cpu"))
    for index in range(6):
        cache.reserve(Chunk(index, 2 * index, 2).span)
        key = torch.zeros(1, 12, 1, 8, dtype=torch.float64)
        key[..., [0, 2]] = 1  # both pairs point along their first channel
        cache.banks[0].write(0, key, key)
        cache.commit()
    run = retention.start(geometry, Take(14, 12, (1.0, 0.0), 0))
    run.begin_chunk(cache, Chunk(6, 12, 2))
    first = cache.banks[0].read(0)[0][0, 0, 0]
    angles = torch.atan2(first[[1, 3]], first[[0, 2]])
    want = [angle if turns else 0 for angle, turns in zip((8 - 2 * math.pi, 0.08), turned)]
    assert angles.tolist() == pytest.approx(want, abs=1e-6)
    assert cache.banks[0].position[0] == 8 and torch.equal(first[4:], torch.zeros(4).double())
