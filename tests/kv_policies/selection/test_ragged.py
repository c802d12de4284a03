"""Ragged attention: every backend of this machine equals a plain float64 loop over the pairs."""

import inspect

import pytest
import torch
from keepsake.kv_policies.selection import ragged
from keepsake.kv_policies.selection.ragged import BACKENDS, ReadGroup, choose, ragged_attention
from torch.nn.functional import scaled_dot_product_attention

FRAMES, TOKENS, HEADS, CHANNELS, ROWS = (
    3,
    4,
    5,
    8,
    30,
)  # latent frames of the chunk, tokens of each, heads, their channels, rows of the bank
pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
HERE = [name for name, backend in BACKENDS.items() if backend.available(torch.zeros(1, 1, 1, 8))]


def rows_of(seed=0, dtype=torch.float32, device="cpu"):
    """Random queries, keys, values, and an output full of sevens."""
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (
        torch.randn(1, rows, HEADS, CHANNELS, generator=generator).to(device, dtype)
        for rows in (FRAMES * TOKENS, ROWS, ROWS)
    )
    return q, k, v, torch.full_like(q, 7.0)


def random_groups(seed):
    """Twelve of the fifteen (frame, head) pairs in groups of 1, 5, 2 and 4, which read 1 to ROWS
    rows; the third group one row.
    """
    generator = torch.Generator().manual_seed(seed)
    pairs = torch.randperm(FRAMES * HEADS, generator=generator)[:12]
    groups = []
    for number, dealt in enumerate(pairs.split([1, 5, 2, 4])):
        read = 1 if number == 2 else int(torch.randint(1, ROWS + 1, (), generator=generator))
        keys = torch.stack([torch.randperm(ROWS, generator=generator)[:read] for _ in dealt])
        counted = (
            torch.randint(1, read + 1, (len(dealt),), generator=generator) if number % 2 else None
        )
        groups.append(
            ReadGroup(
                (dealt // HEADS * TOKENS)[:, None] + torch.arange(TOKENS),
                dealt % HEADS,
                keys,
                counted,
            )
        )
    return groups


def on(device, groups):
    return [ReadGroup(*(x if x is None else x.to(device) for x in group)) for group in groups]


def reference(q, k, v, groups, out):
    """What `ragged_attention` promises, pair by pair in float64."""
    out = out.double()
    for group in groups:
        for pair, head in enumerate(group.heads.tolist()):
            keys = group.keys[pair][: None if group.lengths is None else int(group.lengths[pair])]
            scores = (
                q[0, group.queries[pair], head].double()
                @ k[0, keys, head].double().T
                / q.shape[3] ** 0.5
            )
            out[0, group.queries[pair], head] = scores.softmax(-1) @ v[0, keys, head].double()
    return out


def read(q, k, v, groups, out, backend="auto"):
    ragged_attention(q, k, v, groups, out, backend)
    return out


@pytest.mark.parametrize("backend", HERE)
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(
    "dtype, tolerance", [(torch.float32, 1e-6), (torch.bfloat16, 2e-2)], ids=["fp32", "bf16"]
)
def test_random_groups_equal_the_loop(backend, seed, dtype, tolerance):
    *qkv, out = rows_of(seed, dtype)
    groups = random_groups(seed)
    expected = reference(*qkv, groups, out)
    assert torch.allclose(
        read(*qkv, groups, out, backend).double(), expected, rtol=0, atol=tolerance
    )
    assert (expected == 7).all(-1).sum() == 3 * TOKENS and torch.equal(
        out == 7, expected == 7
    )  # the pairs in no group


@pytest.mark.skipif(not torch.cuda.is_available(), reason="NOT TESTED HERE: needs a CUDA device")
@pytest.mark.parametrize("backend", BACKENDS)
def test_on_cuda_random_groups_equal_the_loop_without_a_wait(backend):
    if not BACKENDS[backend].available(rows_of(0, torch.bfloat16, "cuda")[0]):
        pytest.skip(f"NOT TESTED HERE: {backend} needs {BACKENDS[backend].needs}")
    for seed in range(8):
        *qkv, out = rows_of(seed, torch.bfloat16, "cuda")
        groups = on("cuda", random_groups(seed))
        expected = reference(*qkv, groups, out)
        torch.cuda.set_sync_debug_mode("default" if backend == "torch nested" else "error")
        try:
            read(*qkv, groups, out, backend)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert torch.allclose(out.double(), expected, rtol=0, atol=2e-2)


@pytest.mark.parametrize("backend", HERE)
def test_queries_that_tell_nothing_apart_read_the_mean_of_their_own_rows(backend):
    """Row r of head h holds 10 r + h. Frame 0: five heads read rows 1 and 3; frame 1: one head
    reads row 2 alone, one reads 0 to 2.
    """
    q, out = torch.zeros(1, 12, 5, 8), torch.full((1, 12, 5, 8), 7.0)
    v = (
        (10.0 * torch.arange(ROWS)[:, None] + torch.arange(5))[None, ..., None]
        .expand(1, ROWS, 5, 8)
        .contiguous()
    )
    frame = torch.arange(TOKENS)
    groups = [
        ReadGroup(frame.expand(5, 4), torch.arange(5), torch.tensor([[1, 3]]).expand(5, 2)),
        ReadGroup(frame[None] + 4, torch.tensor([2]), torch.tensor([[2]])),
        ReadGroup(frame[None] + 4, torch.tensor([4]), torch.tensor([[2, 0, 1]])),
        ReadGroup(
            torch.tensor([[9]]),
            torch.tensor([0]),
            torch.tensor([[0, 5, 29, 29]]),
            torch.tensor([2]),
        ),
    ]  # one query row
    read(q, torch.randn(1, ROWS, 5, 8), v, groups, out, backend)
    expected = torch.full((12, 5), 7.0)
    expected[:4] = torch.tensor([20.0, 21, 22, 23, 24])
    expected[4:8, 2], expected[4:8, 4], expected[9, 0] = 22.0, 14.0, 25.0
    assert torch.allclose(out, expected[None, ..., None].expand_as(out), rtol=0, atol=1e-5)


@pytest.mark.parametrize("backend", HERE)
def test_all_heads_reading_all_rows_is_dense_attention(backend):
    q, k, v, out = rows_of()
    group = ReadGroup(
        torch.arange(12).expand(5, 12), torch.arange(5), torch.arange(ROWS).expand(5, ROWS)
    )
    dense = scaled_dot_product_attention(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    ).transpose(1, 2)
    assert torch.allclose(read(q, k, v, [group], out, backend), dense, rtol=0, atol=1e-6)


@pytest.mark.parametrize("backend", HERE)
def test_rows_beyond_the_lengths_do_not_count(backend):
    q, k, v, out = rows_of()
    groups = [
        ReadGroup(
            torch.arange(12).expand(2, 12),
            torch.tensor([0, 3]),
            torch.arange(ROWS).expand(2, ROWS),
            torch.tensor([6, 1]),
        )
    ]
    expected = reference(q, k, v, groups, out)
    k[:, 6:], v[:, 6:] = 1e30, -1e30
    assert torch.allclose(read(q, k, v, groups, out, backend).double(), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("backend", HERE)
def test_pairs_without_rows_get_zeros_and_no_pairs_write_nothing(backend):
    q, k, v, out = rows_of()
    assert (read(q, k, v, [], out, backend) == 7).all()
    groups = [
        ReadGroup(
            torch.arange(4).expand(pairs, 4),
            torch.arange(pairs),
            torch.zeros(pairs, rows, dtype=torch.long),
        )
        for pairs, rows in ((0, 3), (2, 0))
    ]
    read(q, k, v, groups, out, backend)
    assert (out[:, :4, :2] == 0).all() and (out[:, 4:] == 7).all() and (out[:, :, 2:] == 7).all()


@pytest.mark.parametrize("backend", HERE)
@pytest.mark.parametrize("limit", [1, 3000, 10**9])
def test_a_call_gathers_no_more_than_the_bound(backend, limit, monkeypatch):
    """A pair with n query rows and R key rows gathers 2 (n + R) * 8 channels * 4 bytes; at 3000
    bytes some calls take several pairs.
    """
    *qkv, out = rows_of(1)
    groups, gathered = random_groups(1), []

    def spied(q, k, v, mask=None):
        gathered.append(sum(x.values().nbytes if x.is_nested else x.nbytes for x in (q, q, k, v)))
        return scaled_dot_product_attention(q, k, v, mask)

    monkeypatch.setattr(ragged, "CPU_GATHER_BYTES", limit)
    monkeypatch.setattr(ragged, "scaled_dot_product_attention", spied)
    expected = reference(*qkv, groups, out)
    assert torch.allclose(read(*qkv, groups, out, backend).double(), expected, rtol=0, atol=1e-6)
    of_a_pair = [2 * (TOKENS + group.keys.shape[1]) * CHANNELS * 4 for group in groups]
    assert sum(gathered) == sum(size * len(group.heads) for size, group in zip(of_a_pair, groups))
    assert max(gathered) <= max(limit, *of_a_pair)
    if limit == 1:
        assert len(gathered) == 12  # one pair a call
    if limit == 10**9:
        assert len(gathered) == (
            4 if backend == "sdpa" else 3
        )  # a call for each group; both with lengths apart, the rest at once


def test_nothing_waits_for_the_device():
    """Tensors without values: whatever asks for one raises."""
    q, k, v, out = (x.to("meta") for x in rows_of())
    read(q, k, v, on("meta", random_groups(0)), out)
    seen = []

    def kernel(q, k, v, starts_q, starts_k, most_q, most_k):
        seen.append((q.shape, k.shape, v.shape, starts_q.shape, starts_k.shape, most_q, most_k))
        return torch.empty_like(q)

    groups = [
        ReadGroup(
            *(
                torch.zeros(shape, dtype=torch.long)
                for shape in ((pairs, 4), (pairs,), (pairs, rows))
            )
        )
        for pairs, rows in ((3, 6), (2, 9))
    ]
    ragged._packed(kernel, q, k, v, on("meta", groups), out)
    assert seen == [
        ((20, 1, 8), (36, 1, 8), (36, 1, 8), (6,), (6,), 4, 9)
    ]  # 5 pairs of 4 queries; 3 * 6 + 2 * 9 keys


def test_sequences_start_where_the_one_before_ends():
    starts = ragged._starts([torch.zeros(3, 6), torch.zeros(2, 9)])
    assert starts.tolist() == [0, 6, 12, 18, 27, 36] and starts.dtype == torch.int32


def test_the_first_backend_that_works_is_chosen(monkeypatch):
    q = rows_of()[0]
    assert choose(q) == "sdpa" and choose(q, "torch nested") == "torch nested"
    for better in ("torch varlen", "flash-attn"):
        monkeypatch.setitem(BACKENDS, better, BACKENDS[better]._replace(available=lambda q: True))
        assert choose(q) == better and choose(q, "sdpa") == "sdpa"


@pytest.mark.parametrize(
    "backend, reason",
    [
        ("flash-attn", "the package flash-attn, and 16-bit"),
        ("flash", "none of that name"),
        ("torch varlen", "torch 2.10 or newer, and 16-bit"),
    ],
)
def test_a_backend_that_cannot_work_is_refused_in_words(backend, reason):
    *qkv, out = rows_of()
    with pytest.raises(
        ValueError,
        match=f"backend is '{backend}'.*float32 queries of 8 channels on cpu.*{reason}.*Use one "
        "of: auto, sdpa",
    ):
        ragged_attention(*qkv, random_groups(0), out, backend)
    assert (out == 7).all()


@pytest.mark.skipif(
    ragged._torch_varlen() is None,
    reason="NOT TESTED HERE: torch.nn.attention.varlen came with torch 2.10",
)
def test_torchs_varlen_kernel_takes_what_is_passed():
    assert list(inspect.signature(ragged._torch_varlen()).parameters)[:7] == [
        "query",
        "key",
        "value",
        "cu_seq_q",
        "cu_seq_k",
        "max_q",
        "max_k",
    ]
