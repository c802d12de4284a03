"""Directed Forcing against a plain, slow reading of the paper (loops, float64), and by hand."""

import json
import math

import pytest
import torch
from keepsake.kv_policies import (
    Bank,
    BankPlan,
    Chunk,
    DeCoPrune,
    DirectedForcing,
    Forward,
    FullKV,
    Geometry,
    HeadTable,
    KVPolicy,
    SinkWindow,
    Storage,
    Take,
    View,
)
from keepsake.kv_policies.selection.frame_choice import choose_frames
from keepsake.kv_policies.selection.frame_scores import frames_of, z_score
from keepsake.kv_policies.selection.masked_head import MaskedHead

from ... import fake

GRID, HEADS, DIM = (2, 3), 3, 4
T = GRID[0] * GRID[1]
GEOMETRY = Geometry(
    layers=2, heads=HEADS, head_dim=DIM, grid=GRID, chunk_frames=2, temporal_channels=2
)
TAKE = Take(40, 0, (1.0, 0.9, 0.8, 0.0), 0)
TABLE = HeadTable("test", "x0_drift", ((0.0, 0.5, 1.0), (1.0, 0.25, 0.0)))


def chunk_at(frame):
    """A forward of a chunk of two frames."""
    return Forward.of(Chunk(1, frame, 2))


def bank_of(frames, dropped=(), heads=None, seed=0):
    """A bank with `frames` history frames and a chunk of two in work, random keys and values;
    `dropped` tokens are pruned.
    """
    bank = Bank(
        GEOMETRY,
        BankPlan(frames + 2, frames + 2, heads),
        Storage(),
        torch.float32,
        torch.device("cpu"),
    )
    random = torch.Generator().manual_seed(seed)
    for number, chunk in enumerate([Chunk(0, 0, frames), Chunk(1, frames, 2)]):
        bank.reserve(chunk.span)
        for layer in range(2):
            shape = (1, bank.length - bank.committed, len(bank.heads[layer]), DIM)
            bank.write(
                layer, torch.randn(shape, generator=random), torch.randn(shape, generator=random)
            )
        if number == 0:
            bank.commit()
            token = bank.frame[: bank.length] * T + bank.cell[: bank.length]
            bank.keep((~torch.isin(token, torch.tensor(dropped, dtype=torch.long))).nonzero()[:, 0])
    return bank


def frames_by_the_book(policy, layer, q, bank):
    """{(query frame, head): history frames read}, in loops; ties go to the earlier frame."""
    k = bank.read(layer)[0][0, : bank.committed].double()
    frame, cell = bank.frame[: bank.committed].tolist(), bank.cell[: bank.committed].tolist()
    history, h = sorted(set(frame)), GRID[0]

    def descriptors(tokens, cells):
        """One per token row that has tokens: half the mean, half the largest."""
        rows = [[t for t, c in zip(tokens, cells) if c // GRID[1] == row] for row in range(h)]
        return [
            0.5 * torch.stack(row).mean(0) + 0.5 * torch.stack(row).amax(0) for row in rows if row
        ]

    def z(values):
        mean = sum(values) / len(values)
        std = math.sqrt(sum((v - mean) ** 2 for v in values) / len(values))
        return [(v - mean) / (std + 1e-8) for v in values]

    out = {}
    for i, head in enumerate(bank.heads[layer]):
        mine = {f: [k[row, i] for row in range(len(frame)) if frame[row] == f] for f in history}
        cells = {f: [cell[row] for row in range(len(frame)) if frame[row] == f] for f in history}
        mean_at = {
            c: torch.stack([k[row, i] for row in range(len(frame)) if cell[row] == c]).mean(0)
            for c in set(cell)
        }
        diversity = z(
            [
                -sum(
                    float(torch.cosine_similarity(t, mean_at[c], dim=0))
                    for t, c in zip(mine[f], cells[f])
                )
                / len(mine[f])
                for f in history
            ]
        )
        for f in range(2):
            mine_q = descriptors(list(q[0, f * T : (f + 1) * T, i].double()), range(T))
            affinity = []
            for j in history:
                pairs = [
                    float(a @ b) / math.sqrt(DIM)
                    for a in mine_q
                    for b in descriptors(mine[j], cells[j])
                ]
                affinity.append(sum(pairs) / len(pairs))
            w = policy.attention_weight
            score = [w * a + (1 - w) * d for a, d in zip(z(affinity), diversity)]
            budget = policy.uniform_budget
            if policy.head_table:
                every = [s for row in policy.head_table.scores for s in row]
                share = (policy.head_table.scores[layer][head] - min(every)) / (
                    max(every) - min(every) + 1e-8
                )
                budget = round(
                    policy.budget_min
                    + share**policy.gamma * (policy.budget_max - policy.budget_min)
                )
            budget = max(budget, 3)
            if budget >= len(history) + 2:
                out[f, i] = history
                continue
            order = sorted(range(len(history)), key=lambda j: (-score[j], j))
            sinks = [j for j in order if history[j] < 3][:1]
            rest = [j for j in order if history[j] >= 3][: budget - 2 - len(sinks)]
            out[f, i] = sorted(history[j] for j in sinks + rest)
    return out


def read_by_the_book(policy, layer, q, bank):
    out = torch.zeros(1, 2 * T, len(bank.heads[layer]), DIM, dtype=torch.float64)
    frame = bank.frame[: bank.length]
    for (f, i), frames in frames_by_the_book(policy, layer, q, bank).items():
        rows = (
            torch.isin(frame, torch.tensor(frames)) | (torch.arange(bank.length) >= bank.committed)
        ).nonzero()[:, 0]
        k, v = (u[0, rows, i].double() for u in bank.read(layer))
        weight = (q[0, f * T : (f + 1) * T, i].double() @ k.T / math.sqrt(DIM)).softmax(-1)
        out[0, f * T : (f + 1) * T, i] = weight @ v
    return out.flatten(2)


def read(policy, layer, q, bank):
    run = policy.start(GEOMETRY, TAKE, None)
    return run.read(layer, chunk_at(int(bank.frame[bank.committed])), q, View(bank), fake.attention)


def queries(heads=HEADS, seed=7):
    return torch.randn((1, 2 * T, heads, DIM), generator=torch.Generator().manual_seed(seed))


PRUNED = [
    *range(3 * T, 4 * T),
    *range(4 * T + 1, 6 * T),
    0,
    40,
    50,
    61,
]  # frame 3 is gone, frame 4 is one token


@pytest.mark.parametrize("dropped", [(), PRUNED], ids=["whole", "pruned"])
@pytest.mark.parametrize("table", [None, TABLE], ids=["uniform", "table"])
@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("seed", range(4))
def test_the_fast_reading_equals_the_book(dropped, table, layer, seed):
    policy = DirectedForcing(
        budget_min=2, budget_max=9, uniform_budget=5, active_from=1, head_table=table
    )  # 2: the chunk alone, so 3 are read
    bank, q = bank_of(13, dropped, seed=seed), queries(seed=seed + 50)
    assert torch.allclose(
        read(policy, layer, q, bank).double(), read_by_the_book(policy, layer, q, bank), atol=1e-6
    )


def test_a_bank_with_some_heads_takes_their_rows_of_the_table():
    policy = DirectedForcing(budget_min=3, budget_max=9, active_from=1, head_table=TABLE)
    bank, q = bank_of(13, heads=((0, 2), (1,))), queries(2)
    assert torch.allclose(
        read(policy, 0, q, bank).double(), read_by_the_book(policy, 0, q, bank), atol=1e-6
    )


def test_budgets_by_hand():
    assert TABLE.budgets(2.0, 4, 12) == [
        [4, 6, 12],
        [12, 4, 4],
    ]  # .25 -> 4 + 8 / 16 = 4.5, to the even number
    assert HeadTable("m", "x0_drift", ((3.0, 3.0),)).budgets(2.0, 4, 12) == [[4, 4]]


def test_z_scores_of_one_frame_are_zero():
    assert z_score(torch.tensor([[5.0]]), -1).tolist() == [[0.0]]
    assert z_score(torch.tensor([1.0, 3.0]), 0).tolist() == pytest.approx([-1, 1])


def test_choosing_by_hand():
    scores = torch.tensor([[[0.0, 2.0, 1.0, 5.0, 5.0, 7.0, 5.0]]])
    assert choose_frames(scores, 3, 3).tolist() == [
        [[1, 3, 5]]
    ]  # the best sink, then 7 and the earlier of the fives
    assert choose_frames(scores, 3, 1).tolist() == [[[1]]]
    assert choose_frames(scores, 0, 2).tolist() == [[[3, 5]]]  # no sink in reach
    assert choose_frames(scores, 3, 9).tolist() == [[[1, 3, 4, 5, 6]]]


@pytest.mark.parametrize(
    "policy",
    [DirectedForcing(active_from=16), DirectedForcing(uniform_budget=15, active_from=1)],
    ids=["not yet full", "all in budget"],
)
def test_reading_everything_is_bit_equal_to_the_dense_path(policy):
    bank, q = bank_of(13), queries()
    assert torch.equal(read(policy, 0, q, bank), fake.attention(q, *bank.read(0)))


def test_a_head_that_reads_everything_is_bit_equal_beside_heads_that_do_not():
    policy = DirectedForcing(budget_min=3, budget_max=15, active_from=1, head_table=TABLE)
    bank, q = bank_of(13), queries()
    out, dense = (
        u.unflatten(-1, (HEADS, DIM))
        for u in (read(policy, 0, q, bank), fake.attention(q, *bank.read(0)))
    )
    assert torch.equal(out[:, :, 2], dense[:, :, 2]) and not torch.allclose(
        out[:, :, 0], dense[:, :, 0]
    )


def test_selection_begins_when_no_further_chunk_fits():
    """Chunks of 2 and a sink of 3 in a window of 12: the sink and 4 chunks are 11 frames."""

    def selects(frames, retention):
        full = retention.full_frames(GEOMETRY)
        run = DirectedForcing(uniform_budget=4).start(GEOMETRY, TAKE, full)
        run.read(0, chunk_at(frames), queries(), View(bank_of(frames)), fake.attention)
        return bool(run.frames_in_reach)

    assert [selects(frames, SinkWindow(3, 12)) for frames in (8, 9, 10)] == [False, True, True]
    assert [selects(frames, FullKV()) for frames in (17, 18)] == [False, True]


@pytest.mark.parametrize("most, read", [(9, 3 + 4 + 9 + 9 + 3 + 3), (30, 3 + 10 + 15 + 15 + 5 + 3)])
def test_the_notes_tell_how_much_was_read(most, read):
    """Of 15 frames, by six heads; a head reads no more than there are."""
    run = DirectedForcing(budget_min=3, budget_max=most, active_from=1, head_table=TABLE).start(
        GEOMETRY, TAKE, None
    )
    for layer in (0, 1):
        run.read(layer, chunk_at(13), queries(), View(bank_of(13)), fake.attention)
    assert f"the mean head read {read / 90:.0%} of them" in run.notes[0]
    assert run.state()["frames_read"] == read


def test_a_later_chunk_and_a_compaction_are_seen_afresh():
    policy = DirectedForcing(uniform_budget=4, active_from=1)
    run, bank, q = policy.start(GEOMETRY, TAKE, None), bank_of(13), queries()
    run.read(0, chunk_at(13), q, View(bank), fake.attention)
    bank.keep(torch.cat([torch.arange(4 * T), torch.arange(8 * T, 15 * T)]))
    assert torch.allclose(
        run.read(0, chunk_at(13), q, View(bank), fake.attention).double(),
        read_by_the_book(policy, 0, q, bank),
        atol=1e-6,
    )


@pytest.mark.parametrize(
    "retention", [FullKV(), SinkWindow(2, 8, "shifted"), DeCoPrune(mode="target_keep")], ids=repr
)
def test_a_take_runs_with_every_retention_and_repeats(retention):
    policy = KVPolicy(retention, DirectedForcing(uniform_budget=4, active_from=6))
    first, trace, _ = fake.take(policy, 16, 2)
    assert torch.equal(first, fake.take(policy, 16, 2)[0]) and torch.isfinite(first).all()
    assert not torch.equal(first, fake.take(KVPolicy(retention), 16, 2)[0])
    assert any("ragged attention by" in note for note in trace.notes)


def test_a_budget_that_leaves_no_history_is_refused():
    with pytest.raises(
        ValueError,
        match="uniform_budget is 3 latent frames and a chunk has 3, .* Use a uniform_budget of at "
        "least 4",
    ):
        DirectedForcing(uniform_budget=3).check(fake.geometry(chunk_frames=3), TAKE)
    for wrong in (
        dict(attention_weight=float("nan")),
        dict(attention_weight=1.1),
        dict(gamma=-1.0),
    ):
        with pytest.raises(ValueError, match="Use a lambda of 0 to 1 and a gamma of at least 0"):
            DirectedForcing(**wrong)
    with pytest.raises(ValueError, match="budget_min is 9 and budget_max 8"):
        DirectedForcing(budget_min=9, budget_max=8)


def test_a_table_that_does_not_fit_is_refused_with_both_shapes():
    with pytest.raises(
        ValueError, match="'test' is for 2 layers of 3 heads, and this model has 2 layers of 2"
    ):
        DirectedForcing(head_table=TABLE).check(fake.geometry(), TAKE)


def test_a_table_reads_what_it_writes_and_the_bare_list():
    assert HeadTable.from_json(TABLE.to_json(), "f") == TABLE
    assert HeadTable.from_json(json.dumps(TABLE.scores), "f.json") == HeadTable(
        "f.json", "unknown", TABLE.scores
    )


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "[[]]",
        "[[1], [1, 2]]",
        '{"scores": [["x"]]}',
        "[[NaN]]",
        "[1, 2]",
        '{"no": 1}',
        "{}",
        100_000 * "[",
        f"[[1{400 * '0'}]]",
    ],
    ids=lambda text: text[:20],
)
def test_a_broken_table_is_refused_in_words(text):
    with pytest.raises(ValueError, match="'t.json' is not a head table"):
        HeadTable.from_json(text, "t.json")


def test_a_masked_head_says_nothing():
    q, bank = queries(), bank_of(5)
    out = (
        MaskedHead(1, 2)
        .start(GEOMETRY, TAKE, None)
        .read(1, chunk_at(5), q, View(bank), fake.attention)
        .unflatten(-1, (HEADS, DIM))
    )
    dense = fake.attention(q, *bank.read(1)).unflatten(-1, (HEADS, DIM))
    assert out[:, :, 2].abs().max() == 0 and torch.equal(out[:, :, :2], dense[:, :, :2])
    assert torch.equal(
        MaskedHead(1, 2)
        .start(GEOMETRY, TAKE, None)
        .read(0, chunk_at(5), q, View(bank), fake.attention),
        fake.attention(q, *bank.read(0)),
    )


def test_the_sink_frames_are_the_first_of_the_shot():
    bank = bank_of(5)
    assert frames_of(View(bank), bank.committed, GEOMETRY, 0).sinks == 3
    bank.frame.add_(7)  # the history begins where its shot does
    assert frames_of(View(bank), bank.committed, GEOMETRY, 7).sinks == 3
