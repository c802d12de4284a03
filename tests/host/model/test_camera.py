"""Walks in keys, poses, and what a camera is told of them."""

import math

import pytest
import torch
from keepsake.host.model.camera import Lens, camera_control, rays
from keepsake.host.model.camera_keys import (
    PATHS,
    Held,
    keys_by_frame,
    read_keys,
    walk_poses,
)

W = frozenset("w")


def walk(text, frames):
    return walk_poses(keys_by_frame(read_keys(text), frames))


def test_a_text_of_keys_is_read():
    assert read_keys("w-16, wj-8,\nnone-8") == [
        Held(W, 16),
        Held(frozenset("wj"), 8),
        Held(frozenset(), 8),
    ]
    assert keys_by_frame(read_keys("w-2,none-1"), 5) == [W, W, *3 * [frozenset()]]
    assert keys_by_frame(read_keys("W-9"), 2) == [W, W]
    assert keys_by_frame(read_keys("w-999999999"), 2) == [W, W]  # no list of so many is made


@pytest.mark.parametrize(
    "text, match",
    [
        ("", "The keys are empty. Write a walk"),
        ("w", "'w' is no part of a walk. Write keys, a dash and a number of frames from 1 to"),
        ("w-0", "'w-0' is no part of a walk"),
        ("w--3x", "'w--3x' is no part of a walk"),
        ("w-1000000000", "'w-1000000000' is no part of a walk"),
        ("w" * 5000, r"'w{40}\.\.\.' is no part of a walk"),
        ("wq-3", "'wq-3' holds the key 'q', and there are w a s d i j k l. none stands for no key"),
        ("nine-3", "holds the key 'e'"),
    ],
)
def test_another_text_is_refused(text, match):
    with pytest.raises(ValueError, match=match):
        read_keys(text)


def test_a_walk_ahead_and_back_ends_where_it_began():
    poses = walk("w-10,s-10", 20)
    assert torch.allclose(poses[10, :3, 3], torch.tensor([0, 0, 0.5]).double(), atol=1e-5)
    assert torch.allclose(poses[20], torch.eye(4).double(), atol=1e-6)


def test_l_turns_right_and_w_then_goes_right():
    """45 frames of 2 degrees are a quarter turn; x is right."""
    poses = walk("l-45,w-10", 55)
    assert torch.allclose(poses[-1, :3, 3], torch.tensor([0.5, 0, 0]).double(), atol=1e-5)
    assert torch.allclose(poses[-1, :3, 2], torch.tensor([1.0, 0, 0]).double(), atol=1e-6)


def test_looking_up_ends_at_85_degrees_and_moves_stay_level():
    poses = walk("i-60,w-10", 70)
    assert math.degrees(math.asin(-float(poses[60, 1, 2]))) == pytest.approx(84)
    assert torch.allclose(poses[-1, :3, 3], torch.tensor([0, 0, 0.5]).double(), atol=1e-4)


def test_an_orbit_looks_at_one_point():
    """Its radius is a move over a turn: .05 / radians(2)."""
    poses = walk(PATHS["orbit"](0, 180), 180)
    centre = poses[:, :3, 3] + poses[:, :3, 2] * 0.05 / math.radians(2)
    assert float((centre - centre[0]).norm(dim=1).max()) < 0.06


def test_a_step_is_told_as_a_share_of_the_largest():
    poses = torch.eye(4).repeat(9, 1, 1)
    poses[:, 2, 3] = torch.tensor([0, 1, 2, 3, 4, 6, 8, 10, 12.0])  # steps of 4 and 8
    control = camera_control(poses, 0.0, Lens())
    assert control.scale == 8.0
    assert control.values[0, 11, :, 0, 0].tolist() == [0.0, 0.5, 1.0]
    assert camera_control(poses, 16.0, Lens()).values[0, 11, :, 0, 0].tolist() == [0.0, 0.25, 0.5]
    assert control.poses[:, 2, 3].tolist() == [0.0, 4.0, 12.0]
    assert camera_control(torch.eye(4).repeat(9, 1, 1), 0.0, Lens()).scale == 1.0


def test_rays_go_through_the_pixels_centres():
    """A picture of 16x16, focal length 8 and the centre in the middle: the pixel at (15.5, .5)
    looks 7.5 to the right, 7.5 up and 8 ahead.
    """
    camera = torch.cat([torch.eye(3, 4).flatten(), torch.tensor([0.5, 0.5, 0.5, 0.5])])[:, None]
    camera[11] = 3.0
    got = rays(camera, 16, 16)
    assert got.shape == (1, 6, 1, 16, 16)
    toward = torch.tensor([7.5, -7.5, 8.0])
    assert torch.allclose(got[0, 3:, 0, 0, 15], toward / toward.norm())
    assert got[0, :3, 0].flatten(1).T.unique(dim=0).tolist() == [[0.0, 0.0, 3.0]]


def test_an_odd_number_of_cells_is_filled_up():
    camera = camera_control(torch.eye(4).repeat(5, 1, 1), 0.0, Lens()).values[0, :, :, 0, 0]
    small, whole = rays(camera, 24, 24), rays(camera, 32, 24)
    assert small.shape == (1, 6, 2, 32, 32) and whole.shape == (1, 6, 2, 32, 32)
