"""What a change of prompts does to the memory, on the fake transformer: chunks of two frames, six
tokens a frame.
"""

import pytest
import torch
from keepsake.kv_policies import (
    CleanPass,
    DeepForcing,
    DeepSink,
    FlashForward,
    Hierarchical,
    InfinityRope,
    KVPolicy,
    KVStorage,
    SinkWindow,
    Storage,
)
from keepsake.kv_policies.cache.rope import frequencies_of, turn, turn_in_time
from keepsake.rollout import rollout
from keepsake.rollout.chunks import plan_chunks
from keepsake.rollout.recache import frames_together, planned_reruns
from keepsake.rollout.timeline import PromptStart, plan_prompts

from .. import fake
from ..cases import RETENTION_CASES

FORGETTING = [case for case in RETENTION_CASES if case.cut_forgets]
ONE_STEP = (1.0, 0.0)  # no re-noising, whose draws are numbered by generated chunk


@pytest.fixture
def recached(monkeypatch):
    """What stood before and after each recache: (frames run again, what was before, what was after)
    of each bank.
    """
    seen, real = [], rollout.recache

    def state(session):
        return [
            (
                bank.token_ids(),
                bank.position[..., : bank.length].clone(),
                [side.clone() for layer in range(fake.LAYERS) for side in bank.read(layer)],
            )
            for stream in session.streams
            for bank in fake.banks(session, stream)
        ]

    def spy(session, *args):
        before = state(session)
        frames = real(session, *args)
        seen.extend((frames, *pair) for pair in zip(before, state(session)))
        return frames

    monkeypatch.setattr(rollout, "recache", spy)
    return seen


@pytest.mark.parametrize("retention", RETENTION_CASES, ids=repr)
def test_a_recache_leaves_every_token_where_it_was(retention, recached):
    """Reports 37 and 46: sinks survive, and what is run again is so under the new prompt."""
    _, trace, transformer = fake.take(
        KVPolicy(retention), 12, starts=[PromptStart(8, "recache", recache_frames=8)]
    )
    again = [read for read in transformer.reads if read[1] == 1 and read[0] < 8]
    assert recached and [read[0] for read in again] == list(recached[0][0])[::2]
    for frames, before, after in recached:
        assert torch.equal(before[0], after[0]) and torch.equal(before[1], after[1])
        old = before[0] < frames.start * 6
        for k, now in zip(before[2], after[2]):
            assert torch.equal(k[:, old], now[:, old]) and (
                k[:, ~old].numel() == 0 or not torch.equal(k[:, ~old], now[:, ~old])
            )
        assert frames.start >= retention.sink(fake.geometry())
    assert f"latent frames {recached[0][0].start} to 7 were run again" in " ".join(trace.notes)


@pytest.mark.parametrize(
    "retention",
    [RETENTION_CASES[0], SinkWindow(2, 12), SinkWindow(0, 8), SinkWindow(1, 10, "shifted")],
    ids=repr,
)
def test_a_recache_under_the_same_words_gives_the_same_memory(retention, recached):
    takes = [
        fake.take(KVPolicy(retention), 12, starts=starts, words=0.0)[0]
        for starts in ([PromptStart(8, "recache")], [])
    ]
    ((frames, before, after),) = recached
    assert (
        len(frames) >= 4
        and all(torch.equal(a, b) for a, b in zip(before[2], after[2]))
        and torch.equal(*takes)
    )


@pytest.mark.parametrize(
    "retention", [case for case in RETENTION_CASES if not case.splits_heads], ids=repr
)
@pytest.mark.parametrize("frames", [4, 8])
def test_a_recache_together_leaves_every_token_where_it_was(retention, frames, recached):
    """8 frames reach back to the take's first one, and a sink is written anew; 4 do not."""
    _, trace, transformer = fake.take(
        KVPolicy(retention),
        12,
        starts=[PromptStart(8, "recache", recache_frames=frames)],
        together=True,
    )
    again = {frames for frames, _, _ in recached}
    assert len(again) == 1
    (span,) = again
    assert (span.start, len(span), 0.0) in transformer.calls  # one forward of all
    for _, before, after in recached:
        assert torch.equal(before[0], after[0]) and torch.equal(before[1], after[1])
        old = before[0] < span.start * 6
        for k, now in zip(before[2], after[2]):
            assert torch.equal(k[:, old], now[:, old])
            assert not k[:, ~old].numel() or not torch.equal(k[:, ~old], now[:, ~old])
    look = f"latent frames {span.start} to 7 were run again in one forward under the new prompt"
    assert look in " ".join(trace.notes)


@pytest.mark.parametrize(
    "retention, cuts",
    [
        (DeepSink(2, 6), []),
        (DeepForcing(2, 6, 4, 6), []),
        (InfinityRope(8, 2, 12), [PromptStart(4, "cut")]),
    ],
    ids=repr,
)
def test_a_sink_that_ran_again_turns_from_its_new_keys(retention, cuts, monkeypatch):
    """It had been held where it still stands. Turned back, its keys after the next chunk are those
    of the recache.
    """
    after_recache, real = [], rollout.recache

    def sink_keys(session):
        bank = fake.bank(session)
        rows = slice(0, 12)
        position = bank.columns.of_first_layer("position")[rows]
        back = turn_in_time(-position, frequencies_of(bank.geometry), bank.device)
        return [turn(bank.read(layer, rows)[0], *back) for layer in range(fake.LAYERS)]

    def spy(session, *args):
        frames = real(session, *args)
        after_recache.extend(sink_keys(session))
        return frames

    def compare(session, chunk):
        if chunk.start_frame == 8:
            for now, then in zip(sink_keys(session), after_recache, strict=True):
                assert torch.allclose(now, then, atol=1e-5)

    monkeypatch.setattr(rollout, "recache", spy)
    starts = [*cuts, PromptStart(8, "recache", recache_frames=8)]
    fake.take(KVPolicy(retention), 10, starts=starts, together=True, on_chunk=compare)
    assert after_recache


def test_a_recache_together_equals_a_take_whose_past_was_one_given_chunk():
    """All frames read each other, as those of one chunk do: here six, under the same words."""
    seen = []

    def watch(session, forward, x, sigma):
        (bank,) = fake.banks(session, "positive")
        if forward.chunk.start_frame == 6 and not seen:
            seen.append([side[:, :36].clone() for side in bank.read(1)])

    starts = [PromptStart(6, "recache", recache_frames=6)]
    options = dict(sigmas=ONE_STEP, words=0.0, on_forward=watch)
    result, *_ = fake.take(KVPolicy(SinkWindow(2, 12)), 8, starts=starts, together=True, **options)
    together = seen.pop()
    fake.take(KVPolicy(), 8, 6, prefix=result[:, :, :6], **options)
    for ours, expected in zip(together, seen.pop()):
        assert torch.allclose(ours, expected, atol=1e-12)


@pytest.mark.parametrize("storage", [KVStorage("model", device="cpu"), KVStorage("fp8")], ids=repr)
def test_a_recache_together_needs_no_more_room_than_a_chunk(storage):
    """Storages with room for one chunk in work. In main memory it is the same take."""
    takes = [
        fake.take(
            KVPolicy(SinkWindow(2, 8), storage=s),
            14,
            starts=[PromptStart(6, "recache"), PromptStart(10, "recache")],
            together=True,
        )[0]
        for s in (Storage(), storage)
    ]
    if storage.device == "cpu":
        assert torch.equal(*takes)
    assert torch.isfinite(takes[1]).all()


def test_a_recache_equals_a_take_whose_latest_chunks_were_given_under_the_new_prompt():
    result, *_ = fake.take(
        KVPolicy(), 8, sigmas=ONE_STEP, starts=[PromptStart(6, "recache", recache_frames=4)]
    )
    reference, *_ = fake.take(
        KVPolicy(), 8, prefix=result[:, :, :6], sigmas=ONE_STEP, starts=[PromptStart(2)]
    )
    swapped, *_ = fake.take(KVPolicy(), 8, sigmas=ONE_STEP, starts=[PromptStart(6)])
    assert torch.equal(result[:, :, :6], swapped[:, :, :6])
    assert torch.equal(result, reference) and not torch.equal(result, swapped)


def test_a_chunk_is_run_again_at_the_sigma_of_the_clean_pass():
    _, _, transformer = fake.take(
        KVPolicy(schedule=CleanPass(context_noise=0.1)),
        8,
        starts=[PromptStart(4, "recache", recache_frames=4)],
    )
    assert {sigma for *_, sigma in transformer.calls} == {1.0, 0.8, 0.5, 0.1}


def test_what_has_left_the_window_is_not_run_again(recached):
    fake.take(KVPolicy(SinkWindow(0, 4)), 12, starts=[PromptStart(8, "recache", recache_frames=8)])
    assert recached[0][0] == range(4, 8)


def test_of_the_shot_alone_and_past_its_sink_is_run_again():
    chunks, *_ = plan_prompts(
        plan_chunks(14, 2),
        [[PromptStart(0), PromptStart(4, "cut"), PromptStart(10, "recache", recache_frames=12)]],
        4,
    )
    assert planned_reruns(chunks, 2) == {5: chunks[3:5]} and planned_reruns(chunks, 0) == {
        5: chunks[2:5]
    }


@pytest.mark.parametrize("frames, first", [(5, 3), (6, 2), (12, 2)])
def test_together_it_reaches_back_over_the_sink_where_it_reaches_the_shots_first_frame(
    frames, first
):
    starts = [PromptStart(0), PromptStart(4, "cut"), PromptStart(10, "recache", 0, frames)]
    chunks, *_ = plan_prompts(plan_chunks(14, 2), [starts], 4, recache_together=True)
    assert planned_reruns(chunks, 2) == {5: chunks[first:5]}
    assert frames_together(chunks, 2) == 2 * (5 - first)


def test_given_frames_are_run_again_as_well():
    prefix = fake.noise_of(4, seed=9)
    _, trace, transformer = fake.take(
        KVPolicy(), 8, prefix=prefix, starts=[PromptStart(4, "recache", recache_frames=3)]
    )
    assert (
        2,
        1,
        [0, 1],
    ) in transformer.reads and "latent frames 2 to 3 were run again" in trace.notes[0]


def test_a_reset_keeps_the_prompt_in_force():
    """Reports 39 and 40: after a reset the first, or the previous, prompt comes back."""
    for mode in ("swap", "recache", "cut"):
        _, _, transformer = fake.take(
            KVPolicy(), 12, starts=[PromptStart(4, mode), PromptStart(8, mode)]
        )
        assert [prompt for start, prompt, _ in transformer.reads if start >= 8] == [2] * 7


def test_a_blended_transition_recaches_once(recached):
    """Report 38."""
    _, _, transformer = fake.take(KVPolicy(), 14, starts=[PromptStart(4, "recache", blend=6)])
    assert len(recached) == 1 and list(recached[0][0]) == list(range(8))
    assert {prompt for start, prompt, _ in transformer.reads if start == 0} == {
        0,
        3,
    }  # never under a mixed prompt


@pytest.mark.parametrize(
    "policy",
    [KVPolicy(case) for case in FORGETTING] + [KVPolicy(schedule=Hierarchical(6))],
    ids=repr,
)
def test_after_a_cut_nothing_of_the_earlier_shot_is_read(policy):
    _, trace, transformer = fake.take(policy, 12, starts=[PromptStart(6, "cut")])
    later = [frames for start, _, frames in transformer.reads if start >= 6]
    assert any(later) and min(frame for frames in later for frame in frames) >= 6
    assert all(row.kept_tokens <= row.full_tokens for row in trace.rows)


@pytest.mark.parametrize("retention", FORGETTING, ids=repr)
def test_a_shot_after_a_cut_remembers_as_a_take_of_its_own(retention):
    """The sink is pinned to the new shot's first frames."""
    names = {}

    def look(session, chunk):
        banks = fake.banks(session)
        names.setdefault(len(banks), []).append(
            (chunk.start_frame, [bank.token_ids().tolist() for bank in banks])
        )

    fake.take(KVPolicy(retention), 16, on_chunk=look, starts=[PromptStart(6, "cut")], words=0.0)
    (with_cut,) = names.values()
    held = {
        start: [[name - 36 for name in bank] for bank in banks]
        for start, banks in with_cut
        if start >= 6
    }
    if type(retention).__name__ in ("SinkWindow", "FullKV") or retention.rewrites:
        names.clear()
        fake.take(KVPolicy(retention), 10, on_chunk=look)
        (alone,) = names.values()
        assert held == {start + 6: banks for start, banks in alone}
    else:  # scores depend on the noise: the sink is whole, the rest no more than it may be
        sink = range(6 * retention.sink(fake.geometry()))
        assert all(set(sink) <= set(banks[0]) for banks in held.values())


def test_latents_are_held_for_a_recache_and_no_longer():
    held = []
    fake.take(
        KVPolicy(),
        14,
        starts=[PromptStart(8, "recache", recache_frames=4)],
        on_chunk=lambda session, _: held.append(sorted(session.latents)),
    )
    assert held == [[], [], [2], [2, 3], [], [], []]


def test_flash_forwards_anchor_blocks_belong_to_one_prompt():
    policy = KVPolicy(
        schedule=FlashForward(
            anchor_stride=2, block_anchors=3, anchor_window=2, planner_history=2, stage_history=1
        )
    )
    _, _, transformer = fake.take(policy, 12, starts=[PromptStart(4)])
    assert all(prompt == (start >= 4) for start, prompt, _ in transformer.reads)
    assert (0, 2, 1.0) in transformer.calls and (
        4,
        3,
        1.0,
    ) in transformer.calls  # anchors 0 2 | 4 6 8 | 10
