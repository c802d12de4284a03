"""What holds for every schedule."""

import pytest
import torch
from keepsake.kv_policies import KVPolicy

from ... import fake
from ...cases import SCHEDULE_CASES


@pytest.mark.parametrize("schedule", SCHEDULE_CASES, ids=repr)
@pytest.mark.parametrize("chunk_frames", [1, 2, 3])
def test_a_take_is_repeatable_and_streams_do_not_disturb_each_other(schedule, chunk_frames):
    policy = KVPolicy(schedule=schedule)
    alone, *_ = fake.take(policy, 10, chunk_frames)
    again, *_ = fake.take(policy, 10, chunk_frames)
    beside, trace, _ = fake.take(policy, 10, chunk_frames, streams=("positive", "negative"))
    assert alone.shape[2] == 10 and torch.isfinite(alone).all()
    assert torch.equal(alone, again) and torch.equal(alone, beside) and trace.streams == 2


@pytest.mark.parametrize("schedule", SCHEDULE_CASES, ids=repr)
def test_given_frames_come_out_as_they_went_in(schedule):
    prefix = fake.noise_of(3, seed=9)
    out, *_ = fake.take(KVPolicy(schedule=schedule), 10, 2, prefix)
    assert torch.equal(out[:, :, :3], prefix)
