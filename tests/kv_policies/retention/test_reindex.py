"""Re-index: which positions, and when, by hand."""

from types import SimpleNamespace

import torch
from keepsake.kv_policies import Chunk, Take
from keepsake.kv_policies.retention.reindex import Reindex, virtual_frames


def test_virtual_frames_by_hand():
    frame = torch.tensor([0, 116, 232, 239])
    assert virtual_frames(frame, 240, 17, 8).tolist() == [223, 227.5, 232, 239]
    assert (
        virtual_frames(frame[:1], 17, 17, 8).tolist()
        == virtual_frames(frame[:1], 12, 17, 8).tolist()
        == [0]
    )  # a short one is not stretched


def reindexed_at(how, given=0, shot=0):
    """Where it was done last, or where the shot began, as each of ten chunks of two frames begins."""
    reindex, at = Reindex(how, 6, 4, Take(20, given, (1.0, 0.0), 0)), []
    for index, start in enumerate(range(0, 20, 2)):
        chunk = Chunk(index, start, 2, given=start < given, shot=shot if start >= shot else 0)
        if start == shot > 0:
            reindex.cut(chunk)
        reindex.begin_chunk(SimpleNamespace(banks=[]), chunk)
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
        move=lambda position: moved.append(position.tolist()),
    )
    Reindex("periodic", 6, 4, Take(130, 0, (1.0, 0.0), 0)).begin_chunk(
        SimpleNamespace(banks=[bank]), Chunk(60, 120, 2, shot=100)
    )
    assert moved == [[114, 115, 116, 119]]
