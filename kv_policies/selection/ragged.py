"""Attention in which every pair of query rows and a head reads key rows of its own: one function,
several kernels behind it.

Pairs that read equally many rows form a group. A group's rows are gathered and attended to
together, so that calls are counted by budgets, never by pairs. Sizes are read from shapes: nothing
here waits for the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

# Bytes gathered for one call, its output included; a group that needs more is split over its pairs.
GATHER_BYTES = 512 * 2**20
# On the CPU. glibc maps fresh pages for every tensor of 32 MiB or more, and gathering then takes 4
# times as long.
CPU_GATHER_BYTES = 64 * 2**20


class ReadGroup(NamedTuple):
    """Pairs of query rows and a head that read equally many key rows. The tensors lie on q's
    device.
    """

    queries: Tensor  # long [G, n], rows of q
    heads: Tensor  # long [G]
    keys: Tensor  # long [G, R], rows of k and v; beyond `lengths` any valid row
    lengths: Tensor | None = None  # long [G], how many of the R rows count, at least 1; None: all


class Backend(NamedTuple):
    needs: str  # ends the sentence "It needs ..."
    available: Callable[[Tensor], bool]  # for such queries, here
    attend: Callable[[Tensor, Tensor, Tensor, list[ReadGroup], Tensor], None]


def ragged_attention(
    q: Tensor, k: Tensor, v: Tensor, groups: list[ReadGroup], out: Tensor, backend: str = "auto"
):
    """Attention of q `[1, N, H, D]` over k and v `[1, S, H, D]`, written in place into the
    contiguous `out` `[1, N, H, D]`.

    What no group names stays as it is in `out`; pairs that read nothing (R 0) get zeros. For
    `backend` see `choose`.
    """
    BACKENDS[choose(q, backend)].attend(q, k, v, groups, out)


def choose(q: Tensor, backend: str = "auto") -> str:
    """The name of the backend for such queries: with "auto" the first that is available. ValueError
    when the one asked for is not.
    """
    available = [name for name, candidate in BACKENDS.items() if candidate.available(q)]
    if backend == "auto":
        return available[0]
    if backend in available:
        return backend
    reason = "There is none of that name"
    if backend in BACKENDS:
        reason = f"It needs {BACKENDS[backend].needs}"
    raise ValueError(
        f"The ragged attention backend is '{backend}', for {q.dtype} queries of {q.shape[3]} "
        f"channels on {q.device}. {reason}. Use one of: auto, {', '.join(available)}."
    )


def _index(rows: Tensor, heads: Tensor, x: Tensor) -> Tensor:
    """Where rows `[G, n]` of heads `[G]` lie when x `[1, S, H, D]` is seen as `[S * H, D]`."""
    return rows * x.shape[2] + heads[:, None]


def _gather(x: Tensor, index: Tensor) -> Tensor:
    """Rows of one head each, index's shape and D. In 16 bit on the CPU `index_select` takes half
    the time of x[0, rows, heads].
    """
    return x.flatten(0, 2).index_select(0, index.flatten()).view(*index.shape, x.shape[3])


def _parts(groups: list[ReadGroup], q: Tensor) -> Iterator[tuple[ReadGroup, float]]:
    """The groups, in pieces where one would gather more than a call may, and the share of a call
    that each piece takes.
    """
    limit = CPU_GATHER_BYTES if q.device.type == "cpu" else GATHER_BYTES
    row_bytes = q.shape[3] * q.element_size()
    for group in groups:
        rows = group.queries.shape[1] + group.keys.shape[1]
        pair_share = 2 * rows * row_bytes / limit  # queries and output, keys and values
        step = max(1, int(1 / pair_share))
        for first in range(0, len(group.heads), step):
            part = ReadGroup(*(x if x is None else x[first : first + step] for x in group))
            yield part, pair_share * len(part.heads)


def _bucketed(q: Tensor, k: Tensor, v: Tensor, groups: list[ReadGroup], out: Tensor):
    """SDPA, group by group: q `[G, 1, n, D]`, k and v `[G, 1, R, D]`. Any device, any dtype."""
    flat = out.view(-1, out.shape[3])
    for part, _ in _parts(groups, q):
        queries = _index(part.queries, part.heads, q)
        keys = _index(part.keys, part.heads, k)
        mask = None
        if part.lengths is not None:
            place = torch.arange(part.keys.shape[1], device=q.device)
            mask = (place < part.lengths[:, None])[:, None, None]
        gathered = _gather(q, queries), _gather(k, keys), _gather(v, keys)
        read = scaled_dot_product_attention(*(x[:, None] for x in gathered), mask)
        flat.index_copy_(0, queries.flatten(), read.flatten(0, 2))


def _packed(
    kernel: Callable[..., Tensor],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    groups: list[ReadGroup],
    out: Tensor,
):
    """A varlen kernel on all groups at once: each pair is a sequence of one head, whatever it
    reads.

    Groups with `lengths` go to SDPA: flash-attn 2 has no argument for them, and leaving out the
    rows that do not count would wait for the device. So do groups that read nothing, since kernels
    differ in what they return for those.
    """

    def suits(group: ReadGroup) -> bool:
        return group.lengths is None and group.keys.shape[1] > 0

    _bucketed(q, k, v, [group for group in groups if not suits(group)], out)
    flat = out.view(-1, out.shape[3])
    for call in _calls([group for group in groups if suits(group)], q):
        queries = torch.cat([_index(part.queries, part.heads, q).flatten() for part in call])
        keys = torch.cat([_index(part.keys, part.heads, k).flatten() for part in call])
        read = kernel(
            _gather(q, queries)[:, None],
            _gather(k, keys)[:, None],
            _gather(v, keys)[:, None],
            _starts([part.queries for part in call]),
            _starts([part.keys for part in call]),
            max(part.queries.shape[1] for part in call),
            max(part.keys.shape[1] for part in call),
        )
        flat.index_copy_(0, queries, read[:, 0])


def _calls(groups: list[ReadGroup], q: Tensor) -> list[list[ReadGroup]]:
    """The groups, in pieces, as calls that gather no more than they may."""
    calls: list[list[ReadGroup]] = []
    room = 0.0
    for part, share in _parts(groups, q):
        if share > room:
            calls.append([])
            room = 1.0
        calls[-1].append(part)
        room -= share
    return calls


def _starts(rows: list[Tensor]) -> Tensor:
    """Where each sequence starts when the rows `[G, n]` of every part lie one after another, and
    the end: int32 `[pairs + 1]`.
    """
    lengths = torch.cat(
        [
            torch.full((len(part),), part.shape[1], dtype=torch.int32, device=part.device)
            for part in rows
        ]
    )
    return pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))


def _nested(
    q: Tensor, k: Tensor, v: Tensor, starts_q: Tensor, starts_k: Tensor, most_q: int, most_k: int
) -> Tensor:
    """SDPA on jagged tensors. With both bounds of the lengths given, torch does not read them from
    the device.
    """

    def jagged(x: Tensor, starts: Tensor, most: int) -> Tensor:
        nested = torch.nested.nested_tensor_from_jagged(x, starts, min_seqlen=1, max_seqlen=most)
        return nested.transpose(1, 2)

    q = jagged(q, starts_q, most_q)
    k = jagged(k, starts_k, most_k)
    v = jagged(v, starts_k, most_k)
    return scaled_dot_product_attention(q, k, v).transpose(1, 2).values()


@cache
def _flash_attn() -> Callable[..., Tensor] | None:
    try:
        from flash_attn import flash_attn_varlen_func
    except ImportError:  # not installed, or built for another torch
        return None
    return flash_attn_varlen_func


@cache
def _torch_varlen() -> Callable[..., Tensor] | None:
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    return varlen_attn


def _suits_flash(q: Tensor) -> bool:
    return (
        q.is_cuda
        and q.dtype in (torch.float16, torch.bfloat16)
        and q.shape[3] % 8 == 0
        and q.shape[3] <= 256
        and torch.cuda.get_device_capability(q.device) >= (8, 0)
    )


FLASH = (
    "16-bit queries whose channels are a multiple of 8 and at most 256, on a CUDA device of "
    "compute capability 8.0 or newer"
)
BACKENDS = {  # in order of preference
    "flash-attn": Backend(
        f"the package flash-attn, and {FLASH}",
        lambda q: _suits_flash(q) and _flash_attn() is not None,
        lambda *read: _packed(_flash_attn(), *read),
    ),
    "torch varlen": Backend(
        f"torch 2.10 or newer, and {FLASH}",
        lambda q: _suits_flash(q) and _torch_varlen() is not None,
        lambda *read: _packed(_torch_varlen(), *read),
    ),
    "sdpa": Backend("nothing more", lambda q: True, _bucketed),
    # To be measured, never chosen by itself: on the CPU it takes three times as long as SDPA and
    # holds every score.
    "torch nested": Backend(
        "torch 2.9 or newer",
        lambda q: torch.__version__ >= (2, 9),
        lambda *read: _packed(_nested, *read),
    ),
}
