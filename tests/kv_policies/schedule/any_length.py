"""What every schedule must do at any length of a take."""

import torch
from keepsake.rollout.chunks import plan_chunks

from ... import fake

# latent frames, and how many of them are given
LENGTHS = [(1, 0), (4, 0), (13, 0), (30, 0), (4, 1), (13, 1), (13, 4), (30, 3)]


def check_any_length(policy, frames, chunk_frames, given):
    """A take of any length repeats to the bit, is finite, and reports the steps and rows of its
    chunks.
    """
    prefix = fake.noise_of(given, seed=9) if given else None
    calls = []
    first, trace, _ = fake.take(
        policy, frames, chunk_frames, prefix, on_step=lambda *step: calls.append(step)
    )
    again, *_ = fake.take(policy, frames, chunk_frames, prefix)
    assert torch.equal(first, again)
    assert torch.isfinite(first).all() and first.shape[2] == frames
    chunks = plan_chunks(frames, chunk_frames, given)
    assert len(calls) == policy.schedule.reports(chunks, 3, range(len(chunks)))
    assert [row.start_frame for row in trace.rows] == [chunk.start_frame for chunk in chunks]
    assert all(row.kept_tokens <= row.full_tokens for row in trace.rows)
