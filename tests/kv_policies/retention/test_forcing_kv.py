"""Forcing-KV: heads that hold few frames, and a bank of patches for the others. Two layers of two
heads, six tokens a frame, two frames a chunk.
"""

import json

import pytest
import torch
from keepsake.kv_policies import ForcingKV, HeadMap, KVPolicy, Take
from keepsake.kv_policies.retention.forcing_kv import likeness_of_patches, patches_of
from keepsake.rollout.timeline import PromptStart

from ... import fake

MAP = HeadMap("fake", 2, ((1,), (0,)))  # layer 0 is never told apart, whatever the map says


def tokens_of(retention, frames=12, **options):
    """By chunk and bank: each latent frame that is held after it, and how many tokens of it."""
    seen = []

    def look(session, chunk):
        held = [
            bank.frame[: bank.committed].unique(return_counts=True) for bank in fake.banks(session)
        ]
        seen.append([dict(zip(f.tolist(), n.tolist())) for f, n in held])

    fake.take(KVPolicy(retention), frames, 2, on_chunk=look, **options)
    return seen


def test_static_heads_hold_the_sink_and_the_latest_frame():
    """Layer 0 as well; dynamic heads from chunk 2 on also four of the twelve patches of the frame
    before the chunk and the chunk's first one.
    """
    seen = tokens_of(ForcingKV(head_map=MAP))
    for chunk in range(1, 5):
        end = 2 * chunk + 2
        of_layer_0, static, dynamic = seen[chunk]
        assert of_layer_0 == static == {0: 6, end - 1: 6}
        assert dynamic.pop(0) == dynamic.pop(end - 1) == 6
        assert sum(dynamic.values()) == (4 if chunk >= 2 else 0)
        assert dynamic.keys() <= {end - 3, end - 2}


def test_until_the_switch_all_heads_hold_the_same():
    seen = tokens_of(ForcingKV(head_map=MAP, ar_start=2, dynamic_frames=3, bank_share=0))
    assert seen[1] == [{0: 6, 1: 6, 2: 6, 3: 6}] * 3
    assert seen[2] == [{0: 6, 3: 6, 4: 6, 5: 6}, {0: 6, 5: 6}, {0: 6, 3: 6, 4: 6, 5: 6}]


def test_a_cut_begins_anew():
    seen = tokens_of(ForcingKV(head_map=MAP), 14, starts=(PromptStart(6, "cut"),))
    assert seen[3] == [{6: 6, 7: 6}] * 3
    assert sum(seen[4][2].values()) == 12 and sum(seen[5][2].values()) == 16


def test_the_patches_that_change_most_stay():
    """Two frames of three patches of two tokens, and the frame after them: patch 1 of the first
    frame turns by 90 degrees in both tokens, patch 2 of the second one in one of them.
    """
    key = torch.zeros(3, 3, 2, 2)
    key[..., 0] = 1.0
    key[1:, 1] = torch.tensor([0.0, 1.0])
    key[2, 2, 0] = torch.tensor([0.0, 1.0])
    likeness = likeness_of_patches(key.view(18, 1, 2), 2, 3)
    assert likeness.tolist() == [1, 0, 1, 1, 1, 0.5]


def test_the_heads_of_the_deciding_layer_count_as_one_vector():
    """Of two heads one stays and one turns by 90 degrees: cosine 0.5, not 0 or 1."""
    key = torch.zeros(2, 2, 2)
    key[..., 0] = 1.0
    key[1, 1] = torch.tensor([0.0, 1.0])
    assert likeness_of_patches(key, 1, 1).tolist() == pytest.approx([0.5])


@pytest.mark.parametrize("static", [((), ()), ((0, 1), (0, 1))], ids=["none", "all"])
def test_a_map_of_one_kind_of_heads_works(static):
    seen = tokens_of(ForcingKV(head_map=HeadMap("fake", 2, static)))
    assert seen[4][1] == {0: 6, 9: 6}


def test_a_frame_is_cut_into_the_nearest_number_of_patches():
    assert [patches_of(6, tokens) for tokens in (1560, 6, 32, 4, 25, 13)] == [6, 6, 8, 4, 5, 1]
    trace = fake.take(KVPolicy(ForcingKV(head_map=MAP, patches=4)))[1]
    assert trace.notes == [
        "Forcing-KV cut each latent frame into 3 patches: its 6 tokens cannot be shared out among "
        "4 evenly."
    ]


@pytest.mark.parametrize("container", ["object", "list"])
def test_the_published_containers_of_head_maps_load(container):
    """A made-up map of two layers, as the published files write theirs: an object whose `profile`
    is no model's name, or the list of layers alone.
    """
    layers = [
        {"layer_idx": 0, "static_head": [1], "dynamic_head": [0, 2]},
        {"layer_idx": 1, "static_head": [0, 2], "dynamic_head": [1]},
    ]
    content = {
        "format": "forcingkv_offline_head_custom2",
        "profile": "some_naive_sink_3_thr08",
        "num_layers": 2,
        "num_heads": 3,
        "description": "how they were told apart",
        "layers": layers,
    }
    text = json.dumps(content if container == "object" else layers)
    head_map = HeadMap.from_json(text, "heads.json")
    assert head_map == HeadMap("heads.json", 3, ((1,), (0, 2)))


def test_what_cannot_work_is_refused_in_a_sentence():
    with pytest.raises(ValueError, match="needs a head map. Connect Load Head Map"):
        ForcingKV()
    with pytest.raises(ValueError, match="static_frames is 0. Use at least 1"):
        ForcingKV(head_map=MAP, static_frames=0)
    with pytest.raises(ValueError, match="bank_share is 1.5. Use a number from 0 to 1"):
        ForcingKV(head_map=MAP, bank_share=1.5)
    with pytest.raises(ValueError, match="this model has 3 layers of 2"):
        ForcingKV(head_map=MAP).check(fake.geometry(layers=3), Take(8, 0, (1.0, 0.0), 1))
