"""The demo world: drawn from a seed, walked by a camera, asked for in words."""

import numpy as np
import pytest
import torch
from keepsake.demo import text, world


def test_a_seed_draws_the_same_world_again_and_another_seed_another():
    one = world.draw(3, 40, "day", "downtown")
    assert one.shape == (3, 64, 320) and one.min() >= 0 and one.max() <= 1
    assert torch.equal(one, world.draw(3, 40, "day", "downtown"))
    assert not torch.equal(one, world.draw(4, 40, "day", "downtown"))


@pytest.mark.parametrize("district", world.DISTRICTS)
def test_night_is_darker_than_day(district):
    assert world.draw(3, 40, "night", district).mean() < world.draw(3, 40, "day", district).mean()


def test_a_place_that_comes_back_is_the_same_picture():
    seen = world.views(world.draw(3, 60, "day", "harbour"), world.camera("go and return", 9, 4))
    assert seen.shape == (33, 3, 64, 128)
    assert torch.equal(seen[0], seen[32]) and torch.equal(seen[5], seen[27])
    assert not torch.equal(seen[0], seen[16])


def test_between_two_latent_frames_the_camera_glides_a_quarter_each():
    picture = torch.arange(40 * 8.0).expand(3, 64, -1)
    left_edge = world.views(picture, [0, 2, 2])[:, 0, 0, 0]
    assert left_edge.tolist() == [0, 4, 8, 12, 16, 16, 16, 16, 16]


@pytest.mark.parametrize(
    "path, expected",
    [
        ("hold", [0, 0, 0, 0, 0, 0]),
        ("pan right", [0, 2, 4, 6, 8, 10]),
        ("pan left", [0, -2, -4, -6, -8, -10]),
        ("go and return", [0, 2, 4, 2, 0, 0]),
        ("loop", [0, 2, 4, 2, 0, 2]),
    ],
)
def test_camera_paths(path, expected):
    assert world.camera(path, 6, 2) == expected


def test_a_path_that_is_not_there_is_named():
    with pytest.raises(ValueError, match="no camera path 'spiral'"):
        world.camera("spiral", 6, 2)


def test_the_same_place_has_the_same_control_whatever_the_view():
    a, b = world.control(torch.tensor([10, 12]))
    assert a.shape == (16, 8, 16)
    assert torch.allclose(a[..., 2:], b[..., :-2], atol=1e-4)
    assert not torch.allclose(a[..., 0], a[..., 8], atol=0.1)


def test_control_fits_the_latent_it_is_made_for():
    assert world.camera_control((1, 16, 5, 8, 24), "loop", 2, 3).shape == (1, 16, 5, 8, 24)


def test_an_image_latent_has_no_camera():
    with pytest.raises(ValueError, match="needs a video latent"):
        world.camera_control((1, 4, 8, 16), "loop", 2, 3)


def test_a_wandering_camera_stays_in_its_strip_and_turns_round():
    positions = world.wander(np.random.default_rng(0), 200, 32)
    assert min(positions) >= 0 and max(positions) <= 32 and len(positions) == 200
    assert {b - a for a, b in zip(positions, positions[1:])} == {-2, 0, 2}


def test_prompts_are_read_word_by_word():
    assert [text.CONCEPTS[i] for i in text.words("A Village at DUSK, in the rain")] == [
        "town",
        "sunset",
    ]
    assert text.embed(text.words("")).abs().sum() == 0
    assert text.embed(text.words("night " * 20)).shape == (1, 8, 32)
    assert not torch.equal(text.embed(text.words("day")), text.embed(text.words("night")))
