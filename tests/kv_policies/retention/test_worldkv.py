"""WorldKV: what stays of a chunk, and which chunks are read."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from keepsake.kv_policies import KVMemoryError, KVPolicy, Take, WorldKV
from keepsake.kv_policies.retention.pose_retrieval import nearest, pose_distances

from ... import fake

POLICY = WorldKV(sink_frames=1, retrieved_frames=2, recent_frames=2)


def at(*places, turned=0.0):
    """A camera at places on a line, all turned by so many radians about the vertical."""
    poses = torch.eye(4).repeat(len(places), 1, 1)
    poses[:, 0, 3] = torch.tensor(places, dtype=torch.float32)
    c, s = torch.tensor(turned).cos(), torch.tensor(turned).sin()
    poses[:, 0, 0], poses[:, 0, 2], poses[:, 2, 0], poses[:, 2, 2] = c, s, -s, c
    return poses


def test_the_nearest_place_is_the_nearest_chunk():
    poses = at(0, 1, 2, 3, 4, 3, 2, 1)
    chunks = [range(i, i + 1) for i in range(6)]
    # Frame 7 stands at 1; the others lie 1, 0, 1, 4, 9 and 4 from it, squared.
    assert pose_distances(poses, range(7, 8), chunks).mul(18).tolist() == pytest.approx(
        [1, 0, 1, 4, 9, 4]
    )
    assert nearest(poses, range(7, 8), chunks, 3) == [0, 1, 2]


def test_turning_counts_as_much_as_moving():
    poses = torch.cat([at(0), at(0, turned=torch.pi), at(4), at(0)])
    distances = pose_distances(poses, range(3, 4), [range(i, i + 1) for i in range(3)])
    assert distances.tolist() == pytest.approx([0, 0.5, 0.5])


def test_neither_origin_heading_nor_unit_matters():
    poses = torch.cat([at(0, 2, 5), at(1, 3, turned=0.4), at(2)])
    chunks = [range(i, i + 1) for i in range(5)]
    moved = at(7, turned=1.0) @ poses
    moved[:, :3, 3] *= 30
    one, other = (pose_distances(p, range(5, 6), chunks) for p in (poses, moved))
    assert torch.allclose(one, other, atol=1e-3)


def test_a_camera_that_stands_still_has_no_distances_of_rounding():
    poses = at(*[1e3] * 6, turned=0.7)
    assert pose_distances(poses, range(5, 6), [range(0, 2), range(2, 5)]).tolist() == [0, 0]


def take(policy=POLICY, poses=None, frames=16, **options):
    """A fake take under a camera, and what each chunk's last forward could read, by frame."""
    reads = {}

    def on_forward(session, forward, x, sigma):
        for stream in list(session.streams.values())[:1]:
            (view,) = stream.views(forward)
            rows = view.frame[..., : view.history_rows]
            reads[forward.chunk.start_frame] = rows.unique().tolist()

    made, trace, _ = fake.take(
        KVPolicy(policy), frames, poses=poses, on_forward=on_forward, **options
    )
    return made, trace, reads


def test_a_chunk_reads_the_beginning_what_was_seen_from_here_and_the_latest():
    # Chunks of 2 frames, away to 6 and back; all of a chunk's frames at one place.
    poses = at(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 2, 2, 1, 1, 0, 0)
    _, trace, reads = take(WorldKV(1, 2, 2, keep_ratio=1.0), poses)
    assert reads[4] == [0, 2, 3]  # chunk 0 is the sink's
    assert reads[10] == [0, 4, 5]  # chunk 2 stood at 2; of the latest, room for its own frames
    assert reads[12] == [0, 2, 3]
    assert trace.rows[-1].reads == (1.0, 0.0, 1.0, 1.0, *[0.0] * 10)
    # All of it is kept: 14 frames of 6 tokens, in 2 layers of 2 heads.
    assert trace.rows[-1].kept_tokens == 14 * 6 * 4


def test_what_is_left_of_the_window_goes_to_the_latest():
    # Two retrieved chunks of 2 frames count as 3 where half of each second frame stays: of the
    # window of 8, 4 are for the latest, and 2 of these the chunk's own.
    poses = at(*range(8), *reversed(range(8)))
    _, _, reads = take(WorldKV(1, 4, 3), poses)
    assert reads[14] == [0, 2, 3, 4, 5, 12, 13]


def test_of_an_old_chunk_the_first_frame_stays_and_half_of_the_others_least_like_its_mean():
    rows = {}

    def on_chunk(session, chunk):
        bank = fake.bank(session)
        if chunk.index == 1:  # whole still, and its keys final
            rows["keys"] = [bank.read(layer, bank.rows_of(2, 3))[0][0] for layer in range(2)]
            rows["keys"] = [k.clone() for k in rows["keys"]]
        rows["kept"] = [
            bank.cell[layer, : bank.length][bank.frame[layer, : bank.length] == 3].tolist()
            for layer in range(2)
        ]
        first = bank.frame[:, : bank.length] == 2
        assert chunk.index < 1 or first.sum(1).tolist() == [6, 6]

    take(poses=at(*range(8)), frames=8, on_chunk=on_chunk)
    for keys, kept in zip(rows["keys"], rows["kept"]):
        keys = keys.flatten(1)
        mean = keys[:6].mean(0)
        cosines = [float(k @ mean / (k.norm() * mean.norm())) for k in keys[6:]]
        assert kept == sorted(sorted(range(6), key=cosines.__getitem__)[:3])


def test_a_take_that_goes_on_under_another_path_is_refused():
    poses, kept = at(*range(12)), []
    take(poses=poses, frames=12, stop_after=8, on_memory=kept.append)
    bent = poses.clone()
    bent[8:, 0, 3] = 0
    take(poses=bent, frames=12, memory=kept[-1])  # what comes after may change
    with pytest.raises(KVMemoryError, match="path up to latent frame 8 is not the one"):
        take(poses=at(*range(1, 13)), frames=12, memory=kept[-1])
    with pytest.raises(KVMemoryError, match="Let the path begin as it did"):
        take(frames=12, memory=kept[-1])


def test_resumed_under_a_camera_it_is_the_same_take():
    poses, kept = at(*range(8), *reversed(range(8))), []
    straight, *_ = take(poses=poses)
    take(poses=poses, stop_after=10, on_memory=kept.append)
    resumed, *_ = take(poses=poses, memory=kept[-1])
    assert torch.equal(resumed, straight)


def test_other_places_make_another_take():
    back = at(*range(8), *reversed(range(8)))
    away = at(*range(16))
    assert not torch.equal(take(poses=back)[0], take(poses=away)[0])


def test_it_asks_for_room_for_a_chunk():
    geometry = fake.geometry(chunk_frames=3)
    about = partial(Take, 9, 0, (1.0, 0.0), 0)
    with pytest.raises(ValueError, match="recent_frames is 2, and a chunk has 3 latent frames"):
        WorldKV(recent_frames=2).check(geometry, about())
    with pytest.raises(ValueError, match="retrieved_frames is 2"):
        replace(WorldKV(), retrieved_frames=2).check(geometry, about())
    with pytest.raises(ValueError, match="keep_ratio is 1.5"):
        WorldKV(keep_ratio=1.5)
