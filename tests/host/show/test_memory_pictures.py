"""The memory map's pictures, of tiny takes in the real host."""

import pytest
import torch
from keepsake.host.show.memory_pictures import (
    STRIP_HEIGHT,
    film_of_memory,
    light_kept_tokens,
    memory_map_preview,
)
from keepsake.kv_policies import (
    DeCoPrune,
    DeCoPruneHS,
    DeepForcing,
    DirectedForcing,
    FullKV,
    HeadMap,
    KVPolicy,
    SinkWindow,
)
from support import tiny

MIDDLES = [round((i + 0.5) * 1024 / 9) for i in range(9)]  # of nine frames in a row of the film
NOTHING_KEPT = DeCoPrune(mode="target_keep", target_keep=0.0)


def take(policy, noise):
    stats = []
    tiny.ours(tiny.tiny_model(), noise, 2, policy, on_stats=stats.append)
    return stats[0]


def test_the_memory_map_dims_what_was_dropped():
    stats = take(KVPolicy(NOTHING_KEPT), tiny.noise_of(12, 7, 9))
    images = torch.full((stats.pixel_frames, 7 * 8, 9 * 8, 3), 0.5)
    shown = light_kept_tokens(images, stats, 0.2)
    assert (shown[:5] == 0.5).all() and (
        shown[-8:] == 0.5
    ).all()  # the sink and what the last chunk has before it
    assert torch.allclose(shown[9:17], torch.tensor(0.1))
    with pytest.raises(
        ValueError, match=f"got 3 images, and the stats are of {stats.pixel_frames} frames"
    ):
        light_kept_tokens(images[:3], stats, 0.2)
    with pytest.raises(
        ValueError, match="images of 90x56, and the stats are of a take whose latent is 9x7"
    ):
        light_kept_tokens(images[:, :, :1].expand(-1, -1, 90, -1), stats, 0.2)


def test_the_page_gets_a_picture_and_a_share_of_each_frame(monkeypatch):
    stats = take(KVPolicy(NOTHING_KEPT), tiny.noise_of(12, 7, 9))
    images, saved = torch.rand(stats.pixel_frames, 56, 72, 3), []
    monkeypatch.setattr(
        "keepsake.host.show.memory_pictures.save_preview",
        lambda image, node: saved.append(image) or [{"filename": f"{len(saved)}.png"}],
    )
    preview = memory_map_preview(images, stats, 0.2, None)
    assert (preview["sheet"], preview["frames"], preview["rows"], preview["columns"]) == (
        {"filename": "1.png"},
        list(range(12)),
        2,
        8,
    )
    assert (
        saved[0].shape == (1, 2 * 200, 8 * 256, 3) and (saved[0][0, -1, 4 * 256 :] == 0).all()
    )  # 12 of 16 places
    assert torch.allclose(
        saved[0][0, 200:, 3 * 256 : 4 * 256].mean((0, 1)), images[44].mean((0, 1)), atol=0.02
    )  # the last frame is the 45th
    assert preview["kept_by_frame"][-3:] == [1, 1, 1] and preview["kept_by_frame"][4] == 0


def test_the_page_gets_the_last_chunk_that_could_read_each_token(monkeypatch):
    stats, saved = take(KVPolicy(SinkWindow(1, 5)), tiny.noise_of(9, 7, 9)), []
    monkeypatch.setattr(
        "keepsake.host.show.memory_pictures.save_preview",
        lambda image, node: saved.append(image) or [{}],
    )
    preview = memory_map_preview(torch.rand(stats.pixel_frames, 56, 72, 3), stats, 0.2, None)
    h, w = stats.geometry.grid
    number = (saved[1][0] * 255).long()  # as a PNG holds it
    cells = [number[h * (i // 8), w * (i % 8)].tolist() for i in range(9)]
    assert saved[1].shape == (1, 2 * h, 8 * w, 3) and cells == [
        [0, last + 1, 0] for last in (4, 1, 2, 2, 3, 3, 4, 4, 4)
    ]
    assert preview["dropped"] == [
        [[], *([(chunk, h * w)] for chunk in (2, 3, 3, 4, 4)), [], [], []]
    ] and preview["chunks"][-1] == (4, 8, 1)


def test_the_film_shows_each_chunks_memory():
    stats = take(KVPolicy(SinkWindow(1, 5)), tiny.noise_of(9, 8, 8))
    film = film_of_memory(torch.full((stats.pixel_frames, 64, 64, 3), 0.5), stats, 0.2)
    assert film.shape == (5, 2 * 128 + STRIP_HEIGHT, 8 * 128, 3)
    pictures = (
        film[:, :256]
        .unflatten(1, (2, 128))
        .unflatten(3, (8, 128))
        .amax((2, 4, 5))
        .flatten(1)[:, :9]
    )
    for i, kept in enumerate(
        [[0, 1], [0, 1, 2, 3], [0, 2, 3, 4, 5], [0, 4, 5, 6, 7], [0, 6, 7, 8]]
    ):
        expected = [
            0.5 if frame in kept else 0.1 if frame < kept[-1] else 0.0 for frame in range(9)
        ]
        assert torch.allclose(pictures[i], torch.tensor(expected), atol=1e-6)
        assert (film[i, -1, MIDDLES, 2] > 0.5).tolist() == [frame in kept for frame in range(9)]


def test_a_group_for_each_of_many_layers_is_one_row_in_the_film():
    """As bright as the share of the layers that hold a frame's tokens. Chunks of two: the last one,
    of a single frame, cuts the six frames before it: frame 0, three frames' worth of 1 to 6 in each
    of five layers, and the newest frame of the history.
    """
    stats, policy = [], KVPolicy(DeepForcing(1, 6, 2, 6))
    model = tiny.tiny_model(layers=5)
    tiny.ours(model, tiny.noise_of(9, 8, 8), 2, policy, on_stats=stats.append)
    film = film_of_memory(torch.full((33, 64, 64, 3), 0.5), stats[0], 0.2)
    assert stats[0].memory_maps[0].shares == (0.2,) * 5
    assert film.shape == (5, 2 * 128 + STRIP_HEIGHT, 8 * 128, 3)
    kept = torch.tensor(stats[0].to_dict()["kept_by_frame"][0])
    assert kept[0] == kept[7] == kept[8] == 1 and 0 < kept[1:7].min() < 1
    assert abs(float(kept[1:7].sum()) - 3) < 0.01
    assert torch.allclose(film[-1, -1, MIDDLES, 2], 0.91 * (0.12 + 0.88 * kept), atol=1e-3)


def test_head_groups_and_reads_have_rows_in_the_film():
    noise = torch.cat([tiny.noise_of(9, 8, 8, seed=seed) for seed in (1, 2)])
    heads = DeCoPruneHS(gamma=-1.0, head_map=HeadMap("tiny", 4, ((), (0, 2), (3,))))
    images = torch.rand(2 * 33, 64, 64, 3)
    assert film_of_memory(images, take(KVPolicy(heads), noise), 0.2).shape == (
        2 * 5,
        2 * 128 + 2 * STRIP_HEIGHT,
        8 * 128,
        3,
    )
    stats = take(KVPolicy(FullKV(), DirectedForcing(uniform_budget=4, active_from=6)), noise[:1])
    film = film_of_memory(images[:33], stats, 0.2)
    assert film.shape == (5, 2 * 128 + 2 * STRIP_HEIGHT, 8 * 128, 3)
    last = film[-1, -1, MIDDLES, 0]
    assert (
        torch.allclose(
            last[:8], 0.95 * (0.12 + 0.88 * torch.tensor(stats.chunks[-1].reads)), atol=1e-5
        )
        and last[8] == 0
    )
