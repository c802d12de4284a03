"""Attention in which every pair of query rows and a head reads key rows of its own: one door,
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

GATHER_BYTES = (
    512 * 2**20
)  # gathered for one call, its output included; a group that needs more is split over its pairs
CPU_GATHER_BYTES = (
    64 * 2**20
)  # glibc maps fresh pages for every tensor of 32 MiB or more: gathering then takes 4 times as long


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
    available = [name for name, known in BACKENDS.items() if known.available(q)]
    if backend == "auto":
        return available[0]
    if backend not in available:
        reason = (
            f"It needs {BACKENDS[backend].needs}"
            if backend in BACKENDS
            else "There is none of that name"
        )
        raise ValueError(
            f"The ragged attention backend is '{backend}', for {q.dtype} queries of {q.shape[3]} "
            f"channels on {q.device}. "
            f"{reason}. Use one of: auto, {', '.join(available)}."
        )
    return backend


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
    for group in groups:
        share = (
            2
            * (group.queries.shape[1] + group.keys.shape[1])
            * q.shape[3]
            * q.element_size()
            / limit
        )  # of one pair
        step = max(1, int(1 / share))
        for first in range(0, len(group.heads), step):
            part = ReadGroup(*(x if x is None else x[first : first + step] for x in group))
            yield part, share * len(part.heads)


def _bucketed(q: Tensor, k: Tensor, v: Tensor, groups: list[ReadGroup], out: Tensor):
    """SDPA, group by group: q `[G, 1, n, D]`, k and v `[G, 1, R, D]`. Any device, any dtype."""
    for part, _ in _parts(groups, q):
        to, of, mask = _index(part.queries, part.heads, q), _index(part.keys, part.heads, k), None
        if part.lengths is not None:
            mask = (torch.arange(part.keys.shape[1], device=q.device) < part.lengths[:, None])[
                :, None, None
            ]
        read = scaled_dot_product_attention(
            _gather(q, to)[:, None], _gather(k, of)[:, None], _gather(v, of)[:, None], mask
        )
        out.view(-1, out.shape[3]).index_copy_(0, to.flatten(), read.flatten(0, 2))


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
    rows that do not count would wait for the device. So do groups that read nothing, since not
    every kernel says what it makes of those.
    """
    whole = [group for group in groups if group.lengths is None and group.keys.shape[1]]
    _bucketed(
        q,
        k,
        v,
        [group for group in groups if group.lengths is not None or not group.keys.shape[1]],
        out,
    )
    calls, room = [], 0.0
    for part, share in _parts(whole, q):
        if share > room:
            calls.append([])
            room = 1.0
        calls[-1].append(part)
        room -= share
    for call in calls:
        to = torch.cat([_index(part.queries, part.heads, q).flatten() for part in call])
        of = torch.cat([_index(part.keys, part.heads, k).flatten() for part in call])
        starts_q, starts_k = (
            _starts([part.queries for part in call]),
            _starts([part.keys for part in call]),
        )
        most_q, most_k = (
            max(part.queries.shape[1] for part in call),
            max(part.keys.shape[1] for part in call),
        )
        read = kernel(
            _gather(q, to)[:, None],
            _gather(k, of)[:, None],
            _gather(v, of)[:, None],
            starts_q,
            starts_k,
            most_q,
            most_k,
        )
        out.view(-1, out.shape[3]).index_copy_(0, to, read[:, 0])


def _starts(rows: list[Tensor]) -> Tensor:
    """Where each sequence starts when the rows `[G, n]` of every part lie one after another, and
    the end: int32 `[pairs + 1]`.
    """
    lengths = [
        torch.full((len(each),), each.shape[1], dtype=torch.int32, device=each.device)
        for each in rows
    ]
    return pad(torch.cat(lengths).cumsum(0, dtype=torch.int32), (1, 0))


def _nested(
    q: Tensor, k: Tensor, v: Tensor, starts_q: Tensor, starts_k: Tensor, most_q: int, most_k: int
) -> Tensor:
    """SDPA on jagged tensors. With both bounds of the lengths given, torch does not read them from
    the device.
    """
    q, k, v = (
        torch.nested.nested_tensor_from_jagged(x, starts, min_seqlen=1, max_seqlen=most).transpose(
            1, 2
        )
        for x, starts, most in ((q, starts_q, most_q), (k, starts_k, most_k), (v, starts_k, most_k))
    )
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


FLASH = "16-bit queries whose channels are a multiple of 8 and at most 256, on a CUDA device of compute capability 8.0 or newer"
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
