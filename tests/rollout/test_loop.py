"""The chunk loop: the plan, the rules, and what is left when it ends early."""

import gc

import pytest
import torch
from keepsake.kv_policies import Chunk, CleanPass, Forward, FullKV, KVPolicy, SinkWindow
from keepsake.rollout.chunks import plan_chunks

from .. import fake


def live_tensors() -> int:
    gc.collect()
    return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())


def test_a_take_is_cut_into_chunks_and_the_last_one_may_be_short():
    assert plan_chunks(7, 3) == [Chunk(0, 0, 3), Chunk(1, 3, 3), Chunk(2, 6, 1)]


def test_a_prefix_has_chunks_of_its_own():
    assert plan_chunks(8, 3, given_frames=1) == [
        Chunk(0, 0, 1, True),
        Chunk(1, 1, 3),
        Chunk(2, 4, 3),
        Chunk(3, 7, 1),
    ]
    assert plan_chunks(9, 3, given_frames=5) == [
        Chunk(0, 0, 3, True),
        Chunk(1, 3, 2, True),
        Chunk(2, 5, 3),
        Chunk(3, 8, 1),
    ]


def test_81_frames_in_chunks_of_3_with_4_steps_take_134_forwards():
    _, _, transformer = fake.take(KVPolicy(), 81, 3, sigmas=(1.0, 0.9, 0.8, 0.5, 0.0))
    assert len(transformer.calls) == 134


def test_each_chunk_is_denoised_and_then_written_clean():
    _, _, transformer = fake.take(KVPolicy(), 5, 2)
    assert transformer.calls == [
        (0, 2, 1.0),
        (0, 2, 0.8),
        (0, 2, 0.5),
        (0, 2, 0.0),
        (2, 2, 1.0),
        (2, 2, 0.8),
        (2, 2, 0.5),
        (2, 2, 0.0),
        (4, 1, 1.0),
        (4, 1, 0.8),
        (4, 1, 0.5),
    ]


def test_the_sigma_of_the_clean_pass_is_the_schedules():
    _, _, transformer = fake.take(KVPolicy(schedule=CleanPass(context_noise=0.1)), 4, 2)
    assert (0, 2, 0.1) in transformer.calls and (0, 2, 0.0) not in transformer.calls


def test_given_chunks_enter_by_clean_passes_and_come_out_as_they_were():
    prefix = fake.noise_of(3, seed=9)
    out, trace, transformer = fake.take(KVPolicy(), 7, 2, prefix)
    assert transformer.calls[:2] == [(0, 2, 0.0), (2, 1, 0.0)]
    assert torch.equal(out[:, :, :3], prefix)
    assert [row.given for row in trace.rows] == [True, True, False, False]


def test_progress_counts_each_step_and_each_given_chunk_once():
    calls = []
    fake.take(KVPolicy(), 7, 2, fake.noise_of(3, seed=9), on_step=lambda *step: calls.append(step))
    assert len(calls) == CleanPass().reports(plan_chunks(7, 2, 3), 3, range(4)) == 2 + 2 * 3


def test_cached_history_equals_attention_over_the_whole_past():
    """The last chunk's prediction, against one block-causal forward over all frames without a
    cache.
    """
    prefix, seen = fake.noise_of(4, seed=5), {}
    fake.take(
        KVPolicy(),
        6,
        2,
        prefix,
        sigmas=(1e-9, 0.0),
        on_step=lambda chunk, step, x0, x: seen.update(x0=x0, x=x),
    )

    class WithoutCache:
        streams = {}
        chunk_of_row = torch.arange(6).repeat_interleave(6) // 2

        def attend(self, forward, streams, layer, q, k, v, attention):
            later = self.chunk_of_row[:, None] < self.chunk_of_row[None]
            score = (torch.einsum("bnhd,bshd->bhns", q, k) * q.shape[-1] ** -0.5).masked_fill(
                later, float("-inf")
            )
            return torch.einsum("bhns,bshd->bnhd", score.softmax(-1), v).flatten(2)

    plain = fake.FakeTransformer(WithoutCache())(
        Forward.of(Chunk(0, 0, 6)), torch.cat([prefix, seen["x"]], 2), 0.0
    )
    assert torch.allclose(seen["x0"], plain[:, :, 4:], atol=1e-6)


@pytest.mark.parametrize(
    "retention", [FullKV(), SinkWindow(2, 6), SinkWindow(2, 6, "shifted")], ids=repr
)
@pytest.mark.parametrize("at", [0, 4, 7])
def test_an_error_in_mid_take_leaves_no_tensor_and_the_next_run_is_equal(retention, at):
    policy, whole = KVPolicy(retention), fake.take(KVPolicy(retention))[0]
    before = live_tensors()
    calls = []

    def stop(chunk, step, x0, x):
        calls.append(step)
        if len(calls) > at:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        fake.take(policy, on_step=stop)
    assert live_tensors() == before
    assert torch.equal(fake.take(policy)[0], whole)


def test_a_caller_that_stops_early_frees_the_caches():
    sessions = []

    def stop(session, chunk):
        sessions.append(session)
        raise InterruptedError

    with pytest.raises(InterruptedError):
        fake.take(KVPolicy(), on_chunk=stop)
    gc.collect()
    assert not sessions[0].streams


def test_a_stream_that_misses_the_clean_pass_is_an_error():
    streams = ["positive", "negative"]

    def leave(session, forward, x, sigma):
        if float(sigma) == 0.5:  # the last step before it
            streams.remove("negative")

    with pytest.raises(RuntimeError, match="took part in denoising and not in the clean pass"):
        fake.take(KVPolicy(), streams=streams, on_forward=leave)


def test_policies_do_not_touch_the_global_random_numbers():
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    fake.take(KVPolicy(SinkWindow(2, 6)))
    assert torch.rand(1) == expected
