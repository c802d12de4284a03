"""Head-specialised DeCoPrune: two banks of different lengths. Two layers of two heads, six tokens a
frame, two frames a chunk.
"""

import json

import pytest
import torch
from keepsake.kv_policies import (
    BankPlan,
    Chunk,
    DeCoPrune,
    DeCoPruneHS,
    FullKV,
    HeadMap,
    KVCache,
    KVPolicy,
    Storage,
    Take,
)
from keepsake.kv_policies.retention.head_profile import HeadProfile, head_map_of, recent_share
from keepsake.rollout.timeline import PromptStart

from ... import fake

MAP = HeadMap("fake", 2, ((1,), (0,)))  # layer 0 is dynamic whatever the map says


def banks(retention, frames=16, **options):
    """Frames in each bank when each chunk is finished."""
    seen = []

    def look(session, chunk):
        seen.append(
            [sorted(set(bank.frame[: bank.committed].tolist())) for bank in fake.banks(session)]
        )

    out, trace, _ = fake.take(KVPolicy(retention), frames, 2, on_chunk=look, **options)
    return seen, out, trace


def test_static_heads_hold_the_first_and_the_latest_frames():
    seen, _, trace = banks(
        DeCoPruneHS(
            head_map=MAP,
            mode="target_keep",
            target_keep=0.5,
            static_sink_frames=1,
            static_recent_frames=3,
        )
    )
    assert [static for _, static in seen][:3] == [[0, 1], [0, 1, 2, 3], [0, 1, 2, 3, 4, 5]]
    assert seen[5][1] == [0, 7, 8, 9, 10, 11]  # the chunk of frames 10 and 11 read 0, 7, 8, 9
    assert seen[5][0] == list(range(12))
    assert trace.rows[5].bank_tokens == (
        12 + 6 + 6 + 12 + 12,
        6 * 4,
    )  # sink, two halves, the two latest whole


def test_layer_0_is_dynamic_and_the_banks_share_out_all_heads():
    dynamic, static = DeCoPruneHS(head_map=MAP).banks(
        fake.geometry(), Take(16, 0, (1.0, 0.9, 0.8, 0.5, 0.0), 0)
    )
    assert dynamic.heads == ((0, 1), (1,)) and static.heads == ((), (0,))


def test_with_everything_in_reach_it_equals_full_kv():
    expected, *_ = fake.take(KVPolicy(FullKV()), 16, 2)
    _, out, _ = banks(DeCoPruneHS(head_map=MAP, gamma=-1.0, static_recent_frames=16))
    assert torch.allclose(out, expected, atol=1e-12)


def test_a_map_without_static_heads_equals_decoprune():
    _, out, trace = banks(DeCoPruneHS(head_map=HeadMap("fake", 2, ((), ())), mode="target_keep"))
    _, plain, plain_trace = banks(DeCoPrune(mode="target_keep"))
    assert torch.allclose(out, plain, atol=1e-12)
    assert [row.kept_tokens for row in trace.rows] == [row.kept_tokens for row in plain_trace.rows]


def test_after_a_cut_static_heads_hold_the_first_frames_of_the_new_shot():
    seen, *_ = banks(
        DeCoPruneHS(head_map=MAP, static_sink_frames=1, static_recent_frames=2),
        starts=[PromptStart(6, "cut")],
    )
    assert seen[6][1] == [6, 10, 11, 12, 13]


def test_the_longer_of_both_sinks_is_left_alone_by_prompts():
    assert [
        DeCoPruneHS(head_map=MAP, static_sink_frames=frames).sink(fake.geometry(2))
        for frames in (1, 4)
    ] == [2, 4]


def test_static_heads_are_reindexed_too():
    positions = []

    def look(session, chunk):
        positions.append(
            [bank.position[: bank.committed].min().item() for bank in fake.banks(session)]
        )

    fake.take(
        KVPolicy(DeCoPruneHS(head_map=MAP, virtual_length=5, reindex_recent=2)),
        14,
        2,
        fake.noise_of(12, seed=4),
        on_chunk=look,
    )
    assert positions[-1] == [12 - 5, 12 - 5]


def test_a_map_that_does_not_fit_is_refused_with_both_shapes():
    with pytest.raises(
        ValueError, match="'fake' is for 2 layers of 2 heads, and this model has 3 layers of 2"
    ):
        DeCoPruneHS(head_map=MAP).check(
            fake.geometry(layers=3), Take(9, 0, (1.0, 0.9, 0.8, 0.5, 0.0), 0)
        )
    with pytest.raises(ValueError, match="needs a head map"):
        DeCoPruneHS()


def test_a_map_reads_what_it_writes_and_the_bare_list():
    assert HeadMap.from_json(MAP.to_json(), "file") == MAP
    saved = json.loads(MAP.to_json())
    assert saved["num_layers"] == 2 and saved["layers"][1] == {
        "layer_idx": 1,
        "static_head": [0],
        "dynamic_head": [1],
    }
    assert HeadMap.from_json(json.dumps(saved["layers"]), "file") == HeadMap("file", 2, MAP.static)


@pytest.mark.parametrize(
    "text, message",
    [
        ("{", "'m.json' is not a head map"),
        ("3", "not a head map"),
        (100_000 * "[", "not a head map"),
        ('{"layers": [{"layer_idx": 0}]}', "not a head map"),
        ("[]", "lists the layers"),
        (
            '[{"layer_idx": 1, "static_head": [], "dynamic_head": [0]}]',
            r"lists the layers \[1\], and should have each of 0 to 0",
        ),
        (
            '{"num_heads": 3, "layers": [{"layer_idx": 0, "static_head": [0], "dynamic_head": [0, '
            "1]}]}",
            r"lists the heads \[0, 0, 1\] in layer 0",
        ),
    ],
    ids=lambda text: text[:20],
)
def test_a_broken_map_is_refused_in_words(text, message):
    with pytest.raises(ValueError, match=message):
        HeadMap.from_json(text, "m.json")


def test_the_share_of_attention_on_the_latest_frames_by_hand():
    k = torch.zeros(1, 4, 2, 1)
    k[0, :, 1, 0] = torch.tensor(
        [0.0, 2.0, 0.0, 0.0]
    ).log1p()  # head 1: weights 1, 3, 1, 1 for a query of one
    q = torch.ones(1, 3, 2, 1)
    recent, context = (
        torch.tensor([False, False, True, False]),
        torch.tensor([False, True, True, False]),
    )
    assert recent_share(q, k, recent, context).tolist() == pytest.approx([0.5, 0.25])


def test_profiling_weighs_the_latest_four_context_frames_against_all_but_the_first_four():
    """Frames 12 and 13 are the chunk in work; where all keys are alike, the share is that of 8 to
    11 in 4 to 11.
    """
    shares, cache = (
        [],
        KVCache(fake.geometry(), [BankPlan(14, 14)], Storage(), torch.float32, torch.device("cpu")),
    )
    for index in range(7):
        cache.reserve(Chunk(index, 2 * index, 2).span)
        cache.banks[0].write(0, *[torch.zeros(1, 12, 2, 8)] * 2)
        if index < 6:
            cache.commit()
    run = HeadProfile(lambda layer, share: shares.append(share.tolist())).start(
        fake.geometry(), Take(14, 0, (1.0, 0.0), 0)
    )
    run.observe(0, Chunk(6, 12, 2), 0, torch.ones(1, 12, 2, 8), cache.banks[0])
    assert shares == [pytest.approx([0.5, 0.5])]


def test_profiling_watches_the_first_step_of_the_last_chunk():
    seen = []
    out, _, transformer = fake.take(
        KVPolicy(HeadProfile(lambda layer, share: seen.append((layer, share)))), 14, 2
    )
    assert [layer for layer, _ in seen] == [0, 1] and all(share.shape == (2,) for _, share in seen)
    assert torch.equal(out, fake.take(KVPolicy(FullKV()), 14, 2)[0])
    with pytest.raises(
        ValueError, match="more than 8 latent frames before its last chunk, and this one has 6"
    ):
        HeadProfile(print).check(fake.geometry(), Take(8, 0, (1.0, 0.0), 0))


def test_heads_are_static_from_the_share_on_but_not_in_layer_0():
    assert head_map_of("m", torch.tensor([[0.9, 0.9], [0.8, 0.79]])) == HeadMap("m", 2, ((), (0,)))
