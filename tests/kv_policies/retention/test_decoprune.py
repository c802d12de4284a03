"""DeCoPrune by hand: a scripted model whose early prediction is wrong at exactly the named tokens.
Six tokens a frame.
"""

import math

import pytest
import torch
from keepsake.kv_policies import Chunk, DeCoPrune, FullKV, KVMemoryError, KVPolicy, Take
from keepsake.kv_policies.retention.reindex import virtual_frames
from keepsake.rollout.chunks import plan_chunks
from keepsake.rollout.loop import run
from keepsake.rollout.rollout import Model, Rollout
from keepsake.rollout.session import Session
from keepsake.rollout.timeline import PromptStart
from keepsake.rollout.trace import Trace

from ... import fake

T = 6
SIGMAS = (1.0, 0.95, 0.9, 0.8, 0.0)


class Script:
    """Makes all-zero latents; at sigma .9 the named tokens are wrong by `error`, or by their own
    where `wrong` tells it, as a mean square.
    """

    def __init__(self, session, wrong, error, on_keys):
        self.session, self.wrong, self.error, self.on_keys, self.calls, self.histories = (
            session,
            wrong,
            error,
            on_keys,
            [],
            {},
        )

    def forward(self, forward, x, sigma):
        chunk, rows = forward.chunk, x.shape[2] * T
        token = torch.arange(chunk.start_frame * T, chunk.end_frame * T, dtype=torch.float64)
        self.calls.append((chunk.start_frame, round(float(sigma), 2)))
        for layer in range(fake.LAYERS):
            k = (token + 1000 * layer)[None, :, None, None].expand(1, rows, fake.HEADS, fake.DIM)
            self.session.attend(
                forward, ["positive"], layer, k, self.on_keys(token, k), -k, fake.attention
            )
        if sigma == 1:
            bank = fake.bank(self.session)
            self.histories[chunk.index] = (
                bank.frame[: bank.committed] * T + bank.cell[: bank.committed]
            ).tolist()
            for layer in range(fake.LAYERS):
                assert (
                    -bank.read(layer)[1][0, : bank.committed, 0, 0] - 1000 * layer
                ).tolist() == self.histories[chunk.index]
        return chunk

    def predict(self, forward, x, sigma):
        chunk, x0 = self.forward(forward, x, sigma), torch.zeros_like(x)
        if round(float(sigma), 2) == 0.9:
            for token in self.wrong:
                frame, cell = divmod(token, T)
                if chunk.start_frame <= frame < chunk.end_frame:
                    row, column = divmod(cell, 3)
                    error = self.wrong[token] if isinstance(self.wrong, dict) else self.error
                    x0[
                        :,
                        :,
                        frame - chunk.start_frame,
                        2 * row : 2 * row + 2,
                        2 * column : 2 * column + 2,
                    ] = error**0.5
        return x0


def script(
    policy,
    frames,
    chunk_frames,
    wrong=(),
    error=0.2,
    given=0,
    sigmas=SIGMAS,
    on_chunk=lambda session, chunk: None,
    on_keys=lambda token, k: k,
):
    """Run a scripted take; which tokens each generated chunk could read, every forward, and the
    trace.
    """
    session = Session(
        KVPolicy(policy),
        fake.geometry(chunk_frames),
        Take(frames, given, sigmas, seed=3),
        torch.float64,
        torch.device("cpu"),
    )
    fake_model, trace = Script(session, wrong, error, on_keys), Trace()
    model = Model(
        fake_model.predict, fake_model.forward, lambda number, step, like: torch.zeros_like(like)
    )
    prefix = torch.zeros_like(fake.noise_of(given)) if given else None
    rollout = Rollout(
        chunks=plan_chunks(frames, chunk_frames, given),
        sigmas=torch.tensor(sigmas, dtype=torch.float64),
        noise=fake.noise_of(frames) * 0,
        prefix=prefix,
        model=model,
        session=session,
        trace=trace,
    )
    for chunk, _ in run(rollout):
        on_chunk(session, chunk)
    return fake_model, trace


def tokens(*frames):
    return [frame * T + cell for frame in frames for cell in range(T)]


def test_a_chunk_is_pruned_once_two_newer_ones_stand_whole():
    fake_model, _ = script(DeCoPrune(), 12, 2, wrong=[13, 17, 18, 25, 30])
    assert fake_model.histories == {
        0: [],
        1: tokens(0, 1),
        2: tokens(0, 1, 2, 3),
        3: tokens(0, 1, 2, 3, 4, 5),
        4: [*tokens(0, 1), 13, 17, 18, *tokens(4, 5, 6, 7)],
        5: [*tokens(0, 1), 13, 17, 18, 25, 30, *tokens(6, 7, 8, 9)],
    }


def test_one_dense_chunk_is_the_papers_text():
    fake_model, _ = script(DeCoPrune(dense_chunks=1), 8, 2, wrong=[13])
    assert fake_model.histories[3] == [*tokens(0, 1), 13, *tokens(4, 5)]


def test_without_a_sink_the_first_chunk_is_pruned_too():
    fake_model, _ = script(DeCoPrune(sink_chunks=0), 8, 2, wrong=[5])
    assert fake_model.histories[3] == [5, *tokens(2, 3, 4, 5)]


def test_frame_wise_models_protect_three_frames_for_a_chunk():
    fake_model, _ = script(DeCoPrune(), 12, 1, wrong=[])
    assert fake_model.histories[11] == tokens(0, 1, 2, 5, 6, 7, 8, 9, 10)


@pytest.mark.parametrize(
    "chunk_frames, last",
    [(3, [*tokens(0, 1, 2), 19, *tokens(6, 7, 8, 9, 10, 11)]), (4, tokens(*range(12)))],
)
def test_other_chunk_sizes_and_a_short_last_chunk(chunk_frames, last):
    fake_model, _ = script(DeCoPrune(), 13, chunk_frames, wrong=[19])
    assert list(fake_model.histories.values())[-1] == last


def test_the_rule_is_strict_and_no_number_keeps():
    exact = torch.tensor(0.25).item()
    fake_model, _ = script(DeCoPrune(gamma=exact), 10, 2, wrong=tokens(2), error=exact)
    assert fake_model.histories[4] == tokens(0, 1, 4, 5, 6, 7)
    fake_model, _ = script(DeCoPrune(gamma=exact), 10, 2, wrong=tokens(2), error=math.nan)
    assert fake_model.histories[4] == tokens(0, 1, 2, 4, 5, 6, 7)


def test_target_keep_keeps_a_share_of_each_chunk_and_the_highest_scores():
    fake_model, _ = script(DeCoPrune(mode="target_keep", target_keep=0.25), 10, 2, wrong=[13, 17])
    assert fake_model.histories[4] == [
        *tokens(0, 1),
        12,
        13,
        17,
        *tokens(4, 5, 6, 7),
    ]  # 3 of 12; of equal ones the first


def test_a_bound_lets_the_lowest_scores_of_the_whole_past_leave_and_never_the_sink():
    def history(most_frames):
        # Four of frame 2 are wrong by more than three of frame 6: with room for 2 + 1 frames, the
        # sink's 12 tokens and six more stay.
        fake_model, _ = script(
            DeCoPrune(gamma=0.01, most_frames=most_frames),
            16,
            2,
            wrong={12: 0.3, 13: 0.3, 15: 0.1, 17: 0.3, 36: 0.2, 37: 0.05, 38: 0.2, 41: 0.02},
        )
        return fake_model.histories[7]

    whole = [12, 13, 15, 17, 36, 37, 38, 41]
    assert history(0) == [*tokens(0, 1), *whole, *tokens(10, 11, 12, 13)]
    assert history(3) == [*tokens(0, 1), 12, 13, 15, 17, 36, 38, *tokens(10, 11, 12, 13)]
    assert history(2) == tokens(0, 1, 10, 11, 12, 13)


@pytest.mark.parametrize(
    "prefix, sigmas",
    [(fake.noise_of(2, seed=9), SIGMAS), (None, (1.0, 0.5, 0.0))],
    ids=["given", "two steps"],
)
def test_a_first_chunk_that_nothing_could_predict_counts_in_the_bound(prefix, sigmas):
    """Without a sink it has no score; it overflowed a bank that was made for the bound."""
    _, trace, _ = fake.take(
        KVPolicy(DeCoPrune(gamma=-1.0, sink_chunks=0, most_frames=1, dense_chunks=1)),
        12,
        2,
        prefix,
        sigmas,
    )
    assert [row.bank_tokens[0] for row in trace.rows[-3:]] == [T + 2 * T] * 3


def test_records_that_do_not_follow_each_other_are_refused():
    """A file that was tampered with; applying them broke with an error of torch's."""

    def record(index):
        return {"chunk": [index, 2 * index, 2, 0], "keep": torch.ones(2 * T, dtype=torch.bool)}

    run = DeCoPrune().start(fake.geometry(2), Take(20, 0, SIGMAS, 0))
    run.restore({**run.state(), "records": [record(3), record(4)]})
    for wrong in ([record(4), record(3)], [record(3), record(3)]):
        with pytest.raises(KVMemoryError, match="to be pruned do not follow each other"):
            run.restore({**run.state(), "records": wrong})


def test_a_bound_below_the_sink_is_refused():
    with pytest.raises(
        ValueError, match="most_frames is 1, and the first 2 latent frames stay whole"
    ):
        DeCoPrune(most_frames=1).check(fake.geometry(2), Take(9, 0, SIGMAS, 0))


def test_the_spatial_floor():
    fake_model, _ = script(DeCoPrune(min_keep_per_block=1), 10, 2, wrong=[13])
    assert fake_model.histories[4] == [
        *tokens(0, 1),
        13,
        *tokens(4, 5, 6, 7),
    ]  # the other frame's block has nothing above 0


def test_the_spatial_floor_is_a_part_of_the_share():
    """Three of 12 stay: the best of each frame's block, and the next best of all. It was the share
    and, besides, what the floor asked for.
    """
    fake_model, _ = script(
        DeCoPrune(mode="target_keep", target_keep=0.25, min_keep_per_block=1),
        10,
        2,
        wrong={12: 0.5, 14: 0.4, 15: 0.3, 20: 0.1},
    )
    assert fake_model.histories[4] == [*tokens(0, 1), 12, 14, 20, *tokens(4, 5, 6, 7)]


@pytest.mark.parametrize(
    "retention", [DeCoPrune(gamma=-1.0), DeCoPrune(mode="target_keep", target_keep=1.0)], ids=repr
)
@pytest.mark.parametrize("prefix", [None, fake.noise_of(4, seed=9)], ids=["generated", "prefix"])
def test_keeping_everything_equals_full_kv_bit_for_bit(retention, prefix):
    expected, *_ = fake.take(KVPolicy(FullKV()), 20, 2, prefix)
    assert torch.equal(fake.take(KVPolicy(retention), 20, 2, prefix)[0], expected)


def test_gamma_zero_keeps_everything_that_was_not_exactly_right():
    expected, *_ = fake.take(KVPolicy(FullKV()), 20, 2)
    assert torch.equal(fake.take(KVPolicy(DeCoPrune(gamma=0.0)), 20, 2)[0], expected)


def test_a_probe_step_without_news_is_refused():
    with pytest.raises(
        ValueError, match="probe_step is 3, and this take has 4 steps, .* at most 2"
    ):
        DeCoPrune(probe_step=3).check(fake.geometry(), Take(9, 0, SIGMAS, 0))


@pytest.mark.parametrize("sigmas", [(1.0, 0.0), (1.0, 0.8, 0.0)])
def test_with_one_or_two_steps_each_chunk_is_noised_again_and_the_report_says_so(sigmas):
    fake_model, trace = script(DeCoPrune(), 10, 2, wrong=[13], sigmas=sigmas)
    steps = len(sigmas) - 1
    assert [call for call in fake_model.calls if call[0] == 4] == [
        (4, round(sigma, 2)) for sigma in sigmas[:-1]
    ] + [(4, 0.9), (4, 0.0)]
    assert (
        len(fake_model.calls) == 5 * (steps + 1) - 1 + 3
    )  # the first and the last chunk need no probe
    assert fake_model.histories[4] == [*tokens(0, 1), 13, *tokens(4, 5, 6, 7)]
    assert "noised again" in trace.notes[0]


def test_given_chunks_are_probed_and_pruned():
    fake_model, trace = script(DeCoPrune(reindex="off"), 10, 2, wrong=[13], given=8)
    assert fake_model.calls[:7] == [
        (0, 0.0),
        (2, 0.9),
        (2, 0.0),
        (4, 0.9),
        (4, 0.0),
        (6, 0.9),
        (6, 0.0),
    ]
    assert fake_model.histories == {4: [*tokens(0, 1), 13, *tokens(4, 5, 6, 7)]}
    assert trace.notes == [
        "DeCoPrune scored the prediction of step 2 (counted from 0), at sigma 0.900."
    ]


def test_without_a_sink_the_first_given_chunk_is_neither_probed_nor_pruned():
    fake_model, _ = script(DeCoPrune(reindex="off", sink_chunks=0), 10, 2, wrong=[13], given=8)
    assert fake_model.calls[:2] == [(0, 0.0), (2, 0.9)]
    assert fake_model.histories == {4: [*tokens(0, 1), 13, *tokens(4, 5, 6, 7)]}


def test_a_probes_noise_is_drawn_anew_for_each_chunk():
    """By seed + 104729 (c + 1), as the released code's."""
    run, x0 = DeCoPrune().start(fake.geometry(2), Take(20, 8, SIGMAS, 3)), fake.noise_of(2, seed=5)
    probe = run.probe(Chunk(2, 4, 2, given=True), x0)
    noise = torch.randn(x0.shape, generator=torch.Generator().manual_seed(3 + 3 * 104729)).double()
    assert probe.sigma == 0.9 and torch.allclose(probe.x, 0.1 * x0 + 0.9 * noise)


def test_a_probe_leaves_no_trace():
    """The same given frames with probes (nothing dropped) and without: caches bit-equal after every
    chunk.
    """

    def caches(retention):
        seen = []

        def keep(session, chunk):
            bank = fake.bank(session)
            seen.append(
                [t[:, : bank.committed].clone() for pages in bank.pages for t in (pages.k, pages.v)]
                + [bank.position[: bank.committed].clone()]
            )

        out, _, transformer = fake.take(
            KVPolicy(retention), 10, 2, fake.noise_of(8, seed=9), on_chunk=keep
        )
        return seen, out, len(transformer.calls)

    probed, out, calls = caches(DeCoPrune(gamma=-1.0, reindex="off"))
    plain, expected, fewer = caches(FullKV())
    assert calls == fewer + 3 and torch.equal(out, expected)
    for a, b in zip(probed, plain, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_a_cut_begins_anew():
    states = []
    fake.take(
        KVPolicy(DeCoPrune()),
        16,
        2,
        sigmas=SIGMAS,
        starts=[PromptStart(8, "cut")],
        on_chunk=lambda session, chunk: states.append(
            session.streams["positive"].retention.state()
        ),
    )
    before, after = states[
        3:5
    ]  # of the last chunk before it, and of the new shot's first one, a sink
    assert before["records"] and not after["records"]
    assert (after["first_chunk"], after["reindexed_at"]) == (4, 8)


def test_both_streams_of_guidance_keep_the_same_tokens():
    seen = []

    def look(session, chunk):
        seen.append(
            [
                fake.bank(session, stream).frame[: fake.bank(session, stream).length].tolist()
                for stream in session.streams
            ]
        )

    fake.take(
        KVPolicy(DeCoPrune(mode="target_keep")),
        16,
        2,
        streams=("positive", "negative"),
        on_chunk=look,
    )
    assert all(positive == negative for positive, negative in seen) and len(seen[-1][0]) < 16 * T


def test_the_reindex_moves_the_keys_of_a_given_history_once():
    policy, before, after = (
        DeCoPrune(mode="target_keep", virtual_length=4, reindex_recent=1),
        {},
        {},
    )

    def look(session, chunk):
        bank = fake.bank(session)
        (before if chunk.end_frame == 12 else after).update(
            frame=bank.frame[: bank.committed].clone(),
            position=bank.position[: bank.committed].clone(),
            k=[pages.k[:, : bank.committed].clone() for pages in bank.pages],
        )

    fake.take(KVPolicy(policy), 16, 2, fake.noise_of(12, seed=9), on_chunk=look)
    assert torch.equal(before["position"], before["frame"].double())
    old = after["frame"] < 12
    assert torch.equal(after["position"][old], virtual_frames(after["frame"][old], 12, 4, 1))
    assert torch.equal(after["position"][~old], after["frame"][~old].double())
    assert after["position"].min() == 8 and old.sum() < 12 * T


def test_a_periodic_reindex_keeps_every_distance_short():
    furthest = []

    def look(session, chunk):
        bank = fake.bank(session)
        furthest.append(float(chunk.end_frame - bank.position[: bank.committed].min()))

    script(
        DeCoPrune(reindex="periodic", virtual_length=10, reindex_recent=4),
        60,
        2,
        wrong=tokens(*range(60)),
        on_chunk=look,
    )
    assert max(furthest) <= 10 + 4 + 4 < 60


@pytest.mark.parametrize(
    "wrong, message",
    [
        (dict(mode="x"), "mode is 'x'"),
        (dict(score="x"), "score is 'x'"),
        (dict(dense_chunks=0), "dense_chunks is 0"),
        (dict(sink_chunks=-1), "sink_chunks is -1"),
        (dict(min_keep_per_block=-1), "min_keep_per_block is -1"),
        (dict(most_frames=-1), "most_frames is -1"),
        (dict(virtual_length=8), "reindex_recent is 8 and virtual_length 8"),
    ],
)
def test_parameters_that_cannot_work_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        DeCoPrune(**wrong)


def test_stats_tell_scores_and_the_memory_map():
    _, trace = script(DeCoPrune(), 12, 2, wrong=[13, 17])
    assert sum(trace.scores["counts"]) == 4 * 12  # the sink and the last chunk are not scored
    kept = trace.memory_maps[0].at(trace.rows[-1])
    assert kept.shape == (12, 2, 3)
    assert (
        kept[2].flatten().tolist() == [0, 1, 0, 0, 0, 1]
        and kept[3].sum() == 0
        and kept[[0, 1, 6, 7, 8, 9, 10, 11]].min() == 1
    )
