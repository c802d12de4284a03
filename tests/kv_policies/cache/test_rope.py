"""Moving keys in time against a plain float64 reference."""

import torch
from keepsake.kv_policies import Bank, BankPlan, Chunk, Geometry, Storage
from keepsake.kv_policies.cache.rope import turn, turn_in_time_and_space
from keepsake.kv_policies.retention.reindex import virtual_frames

from ...fake import rotate_in_time


def rotate_reference(k, position, channels, theta):
    """Every pair as a complex number, in float64."""
    out = k.double().clone()
    for row, t in enumerate(position.tolist()):
        for pair in range(channels // 2):
            turn = torch.polar(
                torch.tensor(1.0, dtype=torch.float64),
                torch.tensor(t * theta ** (-2 * pair / channels), dtype=torch.float64),
            )
            z = torch.complex(out[:, row, :, 2 * pair], out[:, row, :, 2 * pair + 1]) * turn
            out[:, row, :, 2 * pair], out[:, row, :, 2 * pair + 1] = z.real, z.imag
    return out


def keys(rows=5, dtype=torch.float32):
    return torch.randn(1, rows, 2, 16, generator=torch.Generator().manual_seed(0)).to(dtype)


def test_rotation_equals_the_reference_and_leaves_the_spatial_channels():
    position = torch.tensor([0.0, 1.0, 7.5, 1025.0, 50000.0], dtype=torch.float64)
    turned = rotate_in_time(keys(), position, 6)
    assert torch.allclose(
        turned.double(), rotate_reference(keys(), position, 6, 10000.0), atol=1e-6
    )
    assert torch.equal(turned[..., 6:], keys()[..., 6:])


def test_moving_equals_rotating_the_bare_key_at_the_new_place():
    old, new = torch.arange(5).double() * 400, torch.arange(5).double()
    moved = rotate_in_time(rotate_in_time(keys(), old, 6, 10000.0), new - old, 6)
    assert torch.allclose(moved, rotate_in_time(keys(), new, 6), atol=1e-6)


def test_pruning_and_rotating_commute():
    rows, position = torch.tensor([0, 3, 4]), torch.arange(5).double() * 3
    assert torch.equal(
        rotate_in_time(keys(), position, 6)[:, rows],
        rotate_in_time(keys()[:, rows], position[rows], 6),
    )


def test_bf16_keys_stay_bf16_and_close():
    position = torch.arange(5).double() * 100
    turned = rotate_in_time(keys(dtype=torch.bfloat16), position, 6)
    assert turned.dtype == torch.bfloat16
    assert torch.allclose(
        turned.double(),
        rotate_reference(keys(dtype=torch.bfloat16), position, 6, 10000.0),
        atol=2e-2,
    )


def test_a_history_past_1024_frames_that_was_squeezed_again_and_again_stays_exact():
    """Length reports: no table, no limit. Each move rounds a fp32 key once; a held sink starts from
    its originals.
    """
    geometry = Geometry(
        layers=1, heads=2, head_dim=16, grid=(1, 1), chunk_frames=1, temporal_channels=6
    )
    for held in (0, 5):
        bank = Bank(
            geometry,
            BankPlan(5, 5, held_frames=held),
            Storage(),
            torch.float32,
            torch.device("cpu"),
        )
        bare = keys()
        for start in (0, 3, 900, 1500, 5000):
            bank.reserve(Chunk(0, start, 1).span)
            row = bank.length - 1
            k = rotate_in_time(
                bare[:, row : row + 1], torch.tensor([float(start)], dtype=torch.float64), 6
            )
            bank.write(0, k, k)
            bank.commit()
        if held:
            bank.hold(held)
        for boundary in range(5001, 5041):
            bank.move(virtual_frames(bank.frame[:5], boundary, 17, 8))
        expected = rotate_reference(bare, virtual_frames(bank.frame[:5], 5040, 17, 8), 6, 10000.0)
        assert torch.allclose(bank.read(0)[0].double(), expected, atol=1e-6 if held else 4e-6)


def test_turning_in_space_undoes_what_the_grid_did():
    """Keys of one bare key at five places: turned back by frame, row and column they are equal, and
    a place is what each axis does by itself.
    """
    geometry = Geometry(
        layers=1, heads=2, head_dim=16, grid=(3, 4), chunk_frames=1, temporal_channels=8
    )
    bare = keys(1).expand(1, 5, 2, 16)
    frame, row, column = (torch.tensor(at) for at in ([0, 1, 9, 9, 50], [0, 2, 1, 0, 2], [3] * 5))
    placed = turn(bare, *turn_in_time_and_space(frame, row, column, geometry, bare.device))
    for axis, position, channels in (
        (frame, placed[..., :8], slice(0, 8)),
        (row, placed[..., 8:12], slice(8, 12)),
        (column, placed[..., 12:], slice(12, 16)),
    ):
        alone = rotate_in_time(bare[..., channels], axis.double(), channels.stop - channels.start)
        assert torch.equal(position, alone)
    back = turn(placed, *turn_in_time_and_space(-frame, -row, -column, geometry, bare.device))
    assert torch.allclose(back, bare, atol=1e-6)
