"""MonarchRT: its attention equals the authors' torch reference, and what it goes with.

`monarch_rt.safetensors` holds what their reference gave for random input; none of their code is
here.
"""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from keepsake.kv_policies import (
    KVPolicy,
    MonarchRT,
    RollingForcing,
    SinkWindow,
    Take,
)
from keepsake.kv_policies.selection import monarch_attention, monarch_rt
from keepsake.kv_policies.words import title_of
from safetensors.torch import load_file

from ... import fake
from ...cases import RETENTION_CASES

AUTHORS = load_file(Path(__file__).parent / "monarch_rt.safetensors")
TAKE = Take(40, 0, (1.0, 0.9, 0.8, 0.0), 0)
CASES = [  # h_reduce, frames of queries and of keys, the grid of a frame, heads, channels
    (1, 3, 7, (4, 6), 2, 8),
    (2, 3, 7, (4, 6), 2, 8),
    (1, 1, 1, (3, 5), 3, 16),
]


def rows_of(seed, queries, keys, grid, heads, channels):
    """Random queries, keys and values of so many frames."""
    random = torch.Generator().manual_seed(seed)
    tokens = grid[0] * grid[1]
    return [
        torch.randn(1, frames * tokens, heads, channels, generator=random)
        for frames in (queries, keys, keys)
    ]


@pytest.mark.parametrize("number", range(len(CASES)))
@pytest.mark.parametrize("part_bytes", [1, 2**29], ids=["head by head", "all heads together"])
def test_it_equals_the_authors_reference(number, part_bytes, monkeypatch):
    monkeypatch.setattr(monarch_attention, "CPU_PART_BYTES", part_bytes)
    h_reduce, queries, keys, grid, *width = CASES[number]
    name = f"h_reduce {h_reduce}, {queries} frames over {keys} of {grid[0]}x{grid[1]}"
    out = monarch_attention.monarch_attention(
        *rows_of(number, queries, keys, grid, *width), grid, h_reduce
    )
    assert (out - AUTHORS[name]).abs().max() < 2e-6


@pytest.mark.parametrize("keys", [2, 5])
@pytest.mark.parametrize("grid, h_reduce", [((6, 1), 1), ((4, 3), 4)], ids=["column", "row"])
def test_a_tile_of_one_column_or_one_row_is_read_by_dense_attention(grid, h_reduce, keys):
    """One column: each row has one token. One row: each query weighs it by itself."""
    q, k, v = rows_of(3, 2, keys, grid, 2, 8)
    out = monarch_attention.monarch_attention(q, k, v, grid, h_reduce)
    assert torch.allclose(out.flatten(2), fake.attention(q, k, v), atol=1e-6)


def test_more_tiles_come_closer_to_dense_attention():
    q, k, v = rows_of(4, 3, 9, (8, 6), 4, 16)
    dense = fake.attention(q, k, v).unflatten(-1, (4, 16))
    apart = [
        float((monarch_attention.monarch_attention(q, k, v, (8, 6), tiles) - dense).norm())
        for tiles in (1, 2, 4, 8)
    ]
    assert apart == sorted(apart, reverse=True) and apart[-1] < apart[0] / 1.2


@pytest.mark.parametrize("retention", RETENTION_CASES, ids=repr)
def test_it_reads_whole_frames_and_refuses_a_retention_that_keeps_parts(retention):
    policy, name = KVPolicy(retention, MonarchRT()), re.escape(title_of(retention))
    if retention.whole_frames:
        policy.check(fake.geometry(3), TAKE)
    else:
        with pytest.raises(ValueError, match=f"whole latent frames, and {name} keeps"):
            policy.check(fake.geometry(3), TAKE)


@pytest.mark.parametrize("retention", [case for case in RETENTION_CASES if case.whole_frames])
def test_retentions_that_say_so_keep_whole_frames(retention):
    """The same in every layer, each frame's tokens in their order."""
    seen = []

    def on_chunk(session, chunk):
        for bank in fake.banks(session):
            tokens = bank.geometry.tokens_per_frame
            rows = torch.arange(bank.committed)
            seen.append(torch.equal(bank.cell[: bank.committed], rows % tokens))
            seen.append(len(bank.frame[: bank.committed].unique()) * tokens == bank.committed)

    fake.take(KVPolicy(retention), 10, 3, on_chunk=on_chunk)
    assert seen and all(seen)


def test_tiles_must_divide_the_rows_of_a_frame():
    geometry = fake.geometry(3, grid=(6, 4))
    KVPolicy(selection=MonarchRT(3)).check(geometry, TAKE)
    with pytest.raises(
        ValueError, match="h_reduce is 4, and a latent frame has 6 rows.*1, 2, 3, 6"
    ):
        KVPolicy(selection=MonarchRT(4)).check(geometry, TAKE)
    with pytest.raises(ValueError, match="h_reduce is 0"):
        MonarchRT(0)


@pytest.mark.parametrize(
    "policy",
    [
        KVPolicy(selection=MonarchRT()),
        KVPolicy(SinkWindow(1, 5, "shifted"), MonarchRT(2)),
        KVPolicy(selection=MonarchRT(), schedule=RollingForcing(9)),
    ],
    ids=repr,
)
def test_a_take_differs_from_dense_reads_and_says_what_attention_was_made_by(policy):
    out, trace, _ = fake.take(policy, 9, 2)
    dense, *_ = fake.take(replace(policy, selection=KVPolicy().selection), 9, 2)
    assert torch.isfinite(out).all() and not torch.equal(out, dense)
    assert trace.notes == ["MonarchRT: attention by plain torch."]


def test_the_authors_kernel_is_used_where_it_can_be_and_given_up_once_it_fails(monkeypatch):
    calls = []

    def kernel(q, k, v, **settings):
        calls.append(settings)
        if len(calls) > 5:
            raise RuntimeError("no such device\nat line 7")
        return monarch_attention.monarch_attention(q, k, v, (2, 3), settings["h_reduce"])

    plain, *_ = fake.take(KVPolicy(selection=MonarchRT(2)), 6, 2)
    monkeypatch.setattr(monarch_rt, "published_kernel", lambda: kernel)
    monkeypatch.setattr(monarch_rt, "suits_kernel", lambda q: True)
    out, trace, _ = fake.take(KVPolicy(selection=MonarchRT(2)), 6, 2)
    assert torch.equal(out, plain) and len(calls) == 6
    assert calls[0] == dict(f_tied=1, h_reduce=2, w_reduce=1, h=2, w=3)
    assert trace.notes == [
        "MonarchRT: attention by the authors' kernel and plain torch. The kernel was given up "
        "after RuntimeError: no such device."
    ]


def test_without_their_package_there_is_no_kernel_and_the_cpu_never_takes_it():
    assert monarch_attention.published_kernel() is None
    assert not monarch_attention.suits_kernel(torch.zeros(1, 4, 2, 64, dtype=torch.bfloat16))
