"""MemRoPE: hand cases of what enters the running means, and where they stand."""

import pytest
import torch
from keepsake.kv_policies import KVPolicy, MemRope, Take

from ... import fake
from .numbered import bare_keys, history, rotated

SMALL = MemRope(window_frames=8, sink_frames=1)  # sink 1, means 2, latest 3, chunk 2


def test_frames_that_leave_enter_a_slow_and_a_fast_mean():
    """First frames 3 and 4, whose mean is 3.5, then 5 and 6: 5.5 by a hundredth and by a tenth."""
    seen = history(SMALL, 12, 2)
    assert {start: values for start, (values, *_) in seen.items() if start < 8} == {
        0: [],
        2: [0, 1],
        4: [0, 1, 2, 3],
        6: [0, 1, 2, 3, 4, 5],
    }
    assert seen[8][0] == [0, 3.5, 3.5, 5, 6, 7]
    assert seen[10][0] == pytest.approx([0, 0.99 * 3.5 + 0.055, 0.9 * 3.5 + 0.55, 7, 8, 9])


def test_all_stand_in_a_row_before_the_chunk():
    for start, (values, positions, _) in history(SMALL, 16, 2).items():
        assert positions == list(range(start - len(values), start))


@pytest.mark.parametrize("adaptive", [False, True])
def test_a_mean_of_equal_bare_keys_is_that_key_wherever_it_stands(adaptive):
    retention = MemRope(window_frames=8, sink_frames=1, adaptive=adaptive)
    *_, state = history(retention, 16, 2)[14]
    cell, position = state["cell"], state["position"]
    expected = rotated(bare_keys(cell, cell), position, cell, fake.geometry(2))
    for layer in state["layers"]:
        assert torch.allclose(layer["k"], expected, atol=1e-5)


def test_where_it_moves_the_fast_mean_takes_up_five_times_as_much_and_elsewhere_a_tenth():
    """Only cell 2 has a key, which grows by frame; values are the frames' numbers."""

    def bare(frame, cell):
        k = torch.where(cell == 2, frame + 1.0, 0.0)
        return k[None, :, None, None].expand(1, -1, fake.HEADS, fake.DIM)

    retention = MemRope(window_frames=8, sink_frames=1, adaptive=True)
    *_, state = history(retention, 12, 2, bare)[10]
    slow, fast = state["layers"][0]["v"][0, 6:18, 0, 0].view(2, 6)
    assert slow.tolist() == pytest.approx([0.99 * 3.5 + 0.055] * 6)
    expected = [0.99 * 3.5 + 0.055] * 6
    expected[2] = 0.5 * 3.5 + 0.5 * 5.5
    assert fast.tolist() == pytest.approx(expected)


def test_the_means_count_as_no_token_of_the_take():
    _, trace, _ = fake.take(KVPolicy(SMALL), 12)
    row = trace.rows[-1]
    (kept,) = trace.memory_maps[0].by_group(row).flatten(2).all(-1).tolist()
    assert [frame for frame, is_kept in enumerate(kept) if is_kept] == [0, 7, 8, 9, 10, 11]
    assert row.kept_tokens == 6 * 6 * fake.LAYERS * fake.HEADS  # they are held all the same


def test_a_window_as_long_as_the_take_equals_keeping_everything():
    take = KVPolicy(MemRope(window_frames=8))
    assert torch.equal(fake.take(take)[0], fake.take(KVPolicy())[0])


def test_what_it_cannot_do_is_refused_in_words():
    take = Take(9, 0, (1.0, 0.0), 0)
    with pytest.raises(ValueError, match="are 8 latent frames. Use window_frames of at least 8"):
        MemRope(window_frames=7).check(fake.geometry(3), take)
    with pytest.raises(ValueError, match="one place in the picture cannot be turned"):
        MemRope().check(fake.geometry(3, spatial_angles=()), take)
    for wrong in (
        dict(sink_frames=10),
        dict(alpha_long=1.5),
        dict(alpha_short=float("nan")),
        dict(alpha_short=0.3, adaptive=True),
    ):
        with pytest.raises(ValueError, match="Use|use"):
            MemRope(**wrong)
