"""EMA sink: hand cases of what is blended into which sink frame, and where the sink stands."""

import pytest
import torch
from keepsake.kv_policies import EmaSink, KVPolicy, SinkWindow, Take

from ... import fake
from .numbered import bare_keys, history, rotated


def test_a_chunk_that_leaves_is_blended_into_the_sink_frame_by_frame():
    """Half and half: 0, 1, 2 with 3, 4, 5, and those with 6, 7, 8."""
    seen = history(EmaSink(window_frames=9, sink_frames=3, sink_weight=0.5), 15, 3)
    values = {start: values for start, (values, *_) in seen.items()}
    assert values == {
        0: [],
        3: [0, 1, 2],
        6: [0, 1, 2, 3, 4, 5],
        9: [1.5, 2.5, 3.5, 6, 7, 8],
        12: [3.75, 4.75, 5.75, 9, 10, 11],
    }


def test_with_another_number_of_sink_frames_each_has_its_turn():
    """A sink of 2 and chunks of 3: frame 2 goes into the first, 3 into the second, 4, 5 again."""
    seen = history(EmaSink(window_frames=5, sink_frames=2, sink_weight=0.5), 9, 3)
    assert seen[3][0] == [1, 1]
    assert seen[6][0] == [(1 + 4) / 2, ((1 + 3) / 2 + 5) / 2]


def test_all_stand_in_a_row_before_the_chunk():
    for start, (values, positions, _) in history(EmaSink(), 18, 3).items():
        assert positions == list(range(start - len(values), start))


def test_a_blend_of_equal_bare_keys_is_that_key_at_the_sinks_place():
    *_, state = history(EmaSink(sink_weight=0.5), 18, 3)[15]
    cell = state["cell"]
    expected = rotated(bare_keys(cell, cell), state["position"], cell, fake.geometry(3))
    for layer in state["layers"]:
        assert torch.allclose(layer["k"], expected, atol=1e-5)


def test_a_sink_that_takes_up_nothing_is_a_shifted_sink():
    blended, *_ = fake.take(KVPolicy(EmaSink(6, 2, sink_weight=1.0)), 12)
    shifted, *_ = fake.take(KVPolicy(SinkWindow(2, 6, "shifted")), 12)
    assert torch.allclose(blended, shifted, atol=1e-5)


def test_what_it_cannot_do_is_refused_in_words():
    take = Take(9, 0, (1.0, 0.0), 0)
    with pytest.raises(ValueError, match="are 6 latent frames. Use window_frames of at least 6"):
        EmaSink(window_frames=5).check(fake.geometry(3), take)
    for wrong in (dict(sink_frames=0), dict(sink_frames=9), dict(sink_weight=1.1)):
        with pytest.raises(ValueError, match="[Uu]se"):
            EmaSink(**wrong)
