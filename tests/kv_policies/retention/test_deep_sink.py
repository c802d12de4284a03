"""The deep sink, by hand: which frames a chunk reads, and where in time they stand."""

import pytest
from keepsake.kv_policies import DeepSink, KVPolicy, KVStorage, Take
from keepsake.rollout.timeline import PromptStart

from ... import fake
from .test_sink_window import history


def test_the_sink_begins_a_window_before_the_chunk():
    """Right before frame 8 it would stand at 6 and 7: it is a chunk farther back."""
    seen, positions = history(DeepSink(2, 6), 12, 3)
    assert seen == {0: [], 3: [0, 1, 2], 6: [0, 1, 5], 9: [0, 1, 8]}
    assert positions[6] == [0, 1, 5]  # window and chunk are as long as the take so far
    assert positions[9] == [3, 4, 8]


def test_as_published_a_sink_of_14_in_a_window_of_21():
    seen, positions = history(DeepSink(), 30, 3)
    assert seen[18] == positions[18] == list(range(18))
    assert seen[24] == [*range(14), 20, 21, 22, 23]
    assert positions[24] == [*range(3, 17), 20, 21, 22, 23]


def test_it_never_stands_before_its_own_place():
    """Chunks of 4: the first that does not fit begins at frame 4, and 4 - 7 is before frame 0."""
    seen, positions = history(DeepSink(2, 7), 12, 4)
    assert seen[4] == positions[4] == [0, 1, 3]
    assert seen[8] == [0, 1, 7] and positions[8] == [1, 2, 7]


def test_a_new_shot_has_a_sink_of_its_own():
    seen, positions = history(DeepSink(2, 6), 18, 3, starts=[PromptStart(6, "cut")])
    assert seen[6] == [] and seen[15] == [6, 7, 14] and positions[15] == [9, 10, 14]


def test_what_cannot_be_a_window_is_refused_in_words():
    with pytest.raises(ValueError, match="sink_frames is 6 and window_frames 6"):
        DeepSink(6, 6)
    with pytest.raises(ValueError, match="are 5 latent frames. Use window_frames of at least 5"):
        DeepSink(2, 4).check(fake.geometry(3), Take(9, 0, (1.0, 0.0), 0))
    with pytest.raises(ValueError, match="Deep Sink turns the keys of 14 latent frames"):
        KVPolicy(DeepSink(), storage=KVStorage()).check(fake.geometry(3), Take(9, 0, (1.0, 0.0), 0))
