"""Held in fewer bits: which rows, how exactly, and in how many bytes."""

import pytest
import torch
from keepsake.kv_policies import (
    Bank,
    BankPlan,
    Chunk,
    DeCoPrune,
    FlashForward,
    FullKV,
    Geometry,
    Hierarchical,
    KVMemoryError,
    KVPolicy,
    KVStorage,
    RollingSink,
    SinkWindow,
    Storage,
    Take,
)
from keepsake.kv_policies.storage.coded import FORMATS
from keepsake.kv_policies.storage.coded_bank import CodedBankPages
from keepsake.kv_policies.storage.coded_keys import GROUP
from keepsake.rollout.timeline import PromptStart

from ... import fake
from ...cases import RETENTION_CASES

GEOMETRY = Geometry(layers=2, heads=2, head_dim=8, grid=(3, 5), chunk_frames=2, temporal_channels=4)
STEP = {
    "fp8": 1 / 16,
    "int8": 1 / 255,
    "int4": 1 / 15,
}  # of the range, from one number to the next where they lie furthest apart
RANGE = 8  # of the random numbers in `put`
TAKE = Take(12, 0, (1.0, 0.8, 0.5, 0.0), 1)


def pair(storage, frames=40, plan=None):
    """The same bank in full precision and in fewer bits."""
    plan = plan or BankPlan(frames, frames)
    return [
        Bank(GEOMETRY, plan, held, torch.float32, torch.device("cpu"))
        for held in (Storage(), storage)
    ]


def put(banks, chunk, seed):
    """A chunk's rows into both banks."""
    for bank in banks:
        bank.reserve(chunk.span)
    for layer in range(2):
        k, v = (
            torch.randn(
                1,
                chunk.frames * 15,
                2,
                8,
                generator=torch.Generator().manual_seed(10 * seed + layer + side),
            )
            for side in (0, 5)
        )
        for bank in banks:
            bank.write(layer, k, v)


def check(banks, dtype, packed=0):
    """Rows are called the same, full ones are equal, and coded ones as near as their step says,
    once more for each time that groups were filled up.
    """
    full, coded = banks
    assert (full.length, full.committed) == (coded.length, coded.committed)
    for name in ("frame", "cell", "position"):
        assert torch.equal(getattr(full, name)[: full.length], getattr(coded, name)[: full.length])
    edge = coded.store.layout.sink, coded.store.layout.coded_end
    for layer in range(2):
        for exact, near in zip(full.read(layer), coded.read(layer)):
            assert torch.equal(exact[:, : edge[0]], near[:, : edge[0]]) and torch.equal(
                exact[:, edge[1] :], near[:, edge[1] :]
            )
            assert torch.allclose(
                exact, near, rtol=0, atol=(1 + packed) * (STEP[dtype] * RANGE / 2 + 1e-2)
            )
    return coded.store.coded_rows


@pytest.mark.parametrize("dtype", FORMATS)
def test_numbers_come_back_within_half_a_step(dtype):
    x = torch.linspace(0, 1, 4096).view(-1, 2)
    back = FORMATS[dtype].decode(FORMATS[dtype].encode(x))
    assert (back - x).abs().max() <= STEP[dtype] / 2 + 1e-6
    assert torch.equal(back[0, :1], x[0, :1]) and torch.equal(
        back[-1, 1:], x[-1, 1:]
    )  # the ends are met


@pytest.mark.parametrize("dtype", FORMATS)
def test_what_has_left_the_latest_chunks_is_coded_and_the_sink_is_not(dtype):
    banks = pair(KVStorage(dtype, full_chunks=2, sink_frames=3))
    for index in range(9):
        put(banks, Chunk(index, 2 * index, 2), index)
        check(banks, dtype)
        for bank in banks:
            bank.commit()
        assert check(banks, dtype) == 15 * max(0, 2 * index + 2 - 4 - 3) // 32 * 32  # whole groups
    assert banks[1].store.layout.sink == 3 * 15


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("seed", range(6))
def test_any_rows_may_be_dropped_at_any_time(dtype, seed, monkeypatch):
    packs, fill_groups = [], CodedBankPages.fill_groups
    monkeypatch.setattr(
        CodedBankPages, "fill_groups", lambda pages: packs.append(1) or fill_groups(pages)
    )
    random = torch.Generator().manual_seed(seed)
    banks = pair(
        KVStorage(dtype, full_chunks=1 + seed % 3, sink_frames=seed % 4), plan=BankPlan(4, 60)
    )
    for index in range(20):
        kept = torch.rand(banks[0].length, generator=random) < (0.3 if index == 11 else 0.9)
        for bank in banks:
            bank.keep(kept.nonzero()[:, 0])
        check(banks, dtype, sum(packs))
        put(banks, Chunk(index, 2 * index, 2), index)
        after = int(torch.randint(0, banks[0].committed + 1, (1,), generator=random))
        kept = torch.rand(banks[0].length - after, generator=random) < 0.9
        kept[banks[0].committed - after :] = True
        for bank in banks:
            bank.keep(after + kept.nonzero()[:, 0], first_kept=after)
        check(banks, dtype, sum(packs))
        for bank in banks:
            bank.commit()
        check(banks, dtype, sum(packs))
    assert {len(pages.keys.scale) for pages in banks[1].pages} == {
        -(-banks[1].capacity // GROUP)
    }  # as the estimate has it


def test_filling_up_groups_leaves_whole_ones_as_they_are():
    _, bank = pair(KVStorage("int4", full_chunks=1, sink_frames=0))
    for index in range(7):
        put([bank], Chunk(index, 2 * index, 2), index)
        bank.commit()
    whole = bank.read(0)[0][:, :64].clone()
    bank.keep(torch.cat([torch.arange(64), torch.arange(64, bank.length, 3)]))
    near, groups = bank.read(0)[0].clone(), bank.store.layout.groups
    fewest = -(-groups.tokens // GROUP)
    assert groups.sizes[:2].tolist() == [GROUP, GROUP] and len(groups) > fewest
    bank.store.fill_groups()
    assert len(groups) == fewest and torch.equal(bank.read(0)[0][:, :64], whole)
    assert torch.allclose(bank.read(0)[0], near, rtol=0, atol=STEP["int4"] * RANGE / 2 + 1e-2)


def test_coded_keys_can_be_turned_once():
    banks = pair(KVStorage("int8", full_chunks=1, sink_frames=1))
    for index in range(5):
        put(banks, Chunk(index, 2 * index, 2), index)
        for bank in banks:
            bank.commit()
    for bank in banks:
        bank.move(bank.position[: bank.committed] / 2)
    assert check(banks, "int8") == 7 * 15 // 32 * 32
    for bank in banks:
        bank.hold(15)
        bank.move(torch.full((15,), 3.0, dtype=torch.float64))
        bank.move(torch.full((15,), 5.0, dtype=torch.float64))
    check(banks, "int8")


@pytest.mark.parametrize("dtype", FORMATS)
def test_a_bank_is_saved_and_restored_to_the_last_bit(dtype):
    storage = KVStorage(dtype, full_chunks=1, sink_frames=1)
    (_, bank), (_, again) = pair(storage), pair(storage)
    for index in range(6):
        put([bank], Chunk(index, 2 * index, 2), index)
        bank.commit()
    bank.keep(torch.arange(0, bank.length, 2))
    again.restore(bank.state())
    for index in range(6, 9):
        for layer in range(2):
            for old, new in zip(bank.read(layer), again.read(layer)):
                assert torch.equal(old, new)
        put([bank, again], Chunk(index, 2 * index, 2), index)
        for each in (bank, again):
            each.commit()
    layout, other = bank.store.layout, again.store.layout
    assert (layout.sink, layout.coded_end) == (other.sink, other.coded_end)
    assert bank.store.coded_rows > 64
    broken = bank.state()
    broken["layers"][1]["groups"] += 1
    with pytest.raises(KVMemoryError):
        pair(storage)[1].restore(broken)


@pytest.mark.parametrize("dtype, share", [("fp8", 0.55), ("int8", 0.55), ("int4", 0.32)])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_bytes_are_as_promised_scales_included(dtype, share, head_dim):
    """Everything that is held for a token that is coded, against its keys and values in bf16."""
    geometry = Geometry(4, 2, head_dim, (4, 8), 3, 4)
    long, longer = (
        Bank(
            geometry,
            BankPlan(frames, frames),
            KVStorage(dtype),
            torch.bfloat16,
            torch.device("meta"),
        )
        for frames in (90, 190)
    )
    buffer = (
        2 * 100 * 32 * 2 * head_dim * 2
    )  # one layer's, in bf16: it is there once for all layers
    assert longer.nbytes() - long.nbytes() - buffer <= share * 100 * geometry.bytes_per_frame(2)
    assert long.store.coded_row_bytes / geometry.layers <= share * 2 * 2 * head_dim * 2


@pytest.mark.parametrize("retention", RETENTION_CASES, ids=repr)
def test_a_take_in_8_bits_is_near_the_one_in_full(retention):
    if retention.moving_frames(TAKE) > 3 or retention.rewrites:
        pytest.skip("refused: it turns keys again and again, or computes rows anew")
    if retention.splits_heads:
        pytest.skip("refused: it tells heads apart in mid-take")
    if any(plan.by_layer for plan in retention.banks(fake.geometry(), TAKE)):
        pytest.skip("refused: each layer holds other tokens")
    full, trace, _ = fake.take(KVPolicy(retention), 20)
    near, less, _ = fake.take(
        KVPolicy(retention, storage=KVStorage("int8", full_chunks=1, sink_frames=1)), 20
    )
    assert torch.equal(full[:, :, :8], near[:, :, :8])  # nothing coded was read yet
    assert (
        full - near
    ).abs().mean() < 0.1 * full.abs().mean()  # tokens that score nearly alike may change places
    assert type(retention) is not FullKV or not torch.equal(full, near)
    if not retention.by_content:
        assert [row.kept_tokens for row in trace.rows] == [row.kept_tokens for row in less.rows]


@pytest.mark.parametrize(
    "retention", [FullKV(), SinkWindow(2, 8), SinkWindow(1, 8, "shifted")], ids=repr
)
@pytest.mark.parametrize(
    "start",
    [PromptStart(10, "cut"), PromptStart(10, "recache", recache_frames=8)],
    ids=lambda start: start.mode,
)
def test_coded_rows_can_be_forgotten_and_run_again(start, retention):
    full, trace, _ = fake.take(KVPolicy(retention), 20, starts=[start])
    near, less, _ = fake.take(
        KVPolicy(retention, storage=KVStorage("int8", full_chunks=1, sink_frames=1)),
        20,
        starts=[start],
    )
    assert (full - near).abs().mean() < 0.1 * full.abs().mean()
    assert [row.kept_tokens for row in trace.rows] == [row.kept_tokens for row in less.rows]


def test_the_models_dtype_is_the_plain_storage():
    bank = Bank(GEOMETRY, BankPlan(4, 4), KVStorage("model"), torch.float32, torch.device("cpu"))
    put([bank], Chunk(0, 0, 2), 1)
    assert (
        bank.read(1)[0].data_ptr() == bank.pages[1].k.data_ptr()
        and bank.nbytes() == pair(Storage(), 4)[0].nbytes()
    )
    assert torch.equal(fake.take(KVPolicy(storage=KVStorage("model")))[0], fake.take(KVPolicy())[0])


@pytest.mark.parametrize(
    "policy, sentence",
    [
        (
            KVPolicy(DeCoPrune(reindex="periodic"), storage=KVStorage()),
            "turns the keys of 12 latent frames again and again",
        ),
        (
            KVPolicy(SinkWindow(4, 8, "shifted"), storage=KVStorage(sink_frames=3)),
            "use sink_frames of at least 4",
        ),
        (
            KVPolicy(RollingSink(7), storage=KVStorage("fp8")),
            "Rolling Sink computes rows of its history from other rows, and fp8 would round",
        ),
        (KVPolicy(schedule=Hierarchical(), storage=KVStorage()), "has short caches of its own"),
        (
            KVPolicy(schedule=FlashForward(), storage=KVStorage("int4")),
            "has short caches of its own",
        ),
    ],
)
def test_what_cannot_be_held_so_is_refused(policy, sentence):
    with pytest.raises(ValueError, match=sentence):
        policy.check(fake.geometry(), TAKE)
    KVPolicy(FullKV(), storage=KVStorage()).check(fake.geometry(), TAKE)


def test_wrong_numbers_are_refused():
    for wrong, sentence in (
        (dict(dtype="int2"), "Use one of: model, fp8, int8, int4"),
        (dict(full_chunks=0), "Use at least 1 and 0"),
    ):
        with pytest.raises(ValueError, match=sentence):
            KVStorage(**wrong)
