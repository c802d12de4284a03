"""Attention whose weights have the structure of a Monarch matrix (MonarchRT, arXiv 2602.12271), in
plain torch; and its authors' kernel, where the user has installed it.

One iteration, as they run it without training. Queries and keys are cut into tiles of I rows and J
columns of one latent frame. A query reads a tile in two steps: along the columns of each of its
rows, with the weights that the query at the same column of that row would have (R), and then over
the rows of all tiles (L). So a query of a tile costs I + J products instead of I * J.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.metadata import distribution

import torch
from torch import Tensor

# Bytes that the results of one part of the work take; a part has fewer heads where they need more.
PART_BYTES = 512 * 2**20
# On the CPU, where tensors of 32 MiB or more cost fresh pages, see `ragged`: 12 heads of 21 frames
# of 1560 tokens take 2.5 times as long together as one by one.
CPU_PART_BYTES = 64 * 2**20

Kernel = Callable[..., Tensor]


def monarch_attention(
    q: Tensor, k: Tensor, v: Tensor, grid: tuple[int, int], h_reduce: int
) -> Tensor:
    """Queries `[1, N, H, D]` over keys and values `[1, S, H, D]`, each whole frames of `grid`
    tokens (rows, columns), cut into `h_reduce` tiles of rows: `[1, N, H, D]`.
    """
    q, k, v = (_tiles(x[0], grid, h_reduce) for x in (q, k, v))
    scale = q.shape[-1] ** -0.25  # on both sides, as in the published code
    q, k = q * scale, k * scale
    out = torch.empty_like(q)
    heads = _heads_at_once(k)
    for first in range(0, len(q), heads):
        part = slice(first, first + heads)
        for tile in range(q.shape[1]):
            out[part, tile] = _read_by_tile(q[part, tile], k[part], v[part])
    return _rows(out, grid, h_reduce)[None]


def _tiles(x: Tensor, grid: tuple[int, int], h_reduce: int) -> Tensor:
    """Rows `[S, H, D]` of whole frames as tiles of rows, `[H, F, I, J, D]`."""
    rows, columns = grid
    return x.unflatten(0, (-1, rows // h_reduce, columns)).permute(3, 0, 1, 2, 4)


def _rows(x: Tensor, grid: tuple[int, int], h_reduce: int) -> Tensor:
    """The other way round."""
    return x.permute(1, 2, 3, 0, 4).flatten(0, 2)


def _heads_at_once(k: Tensor) -> int:
    """Heads of keys `[H, F, I, J, D]` whose results fit into one part."""
    heads, tiles, rows, columns, channels = k.shape
    tokens = tiles * rows * columns
    per_head = tokens * (4 * channels * k.element_size() + 8 * columns + 8 * rows)
    limit = CPU_PART_BYTES if k.device.type == "cpu" else PART_BYTES
    return max(1, min(heads, limit // per_head))


def _read_by_tile(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Queries of one tile `[H, I, J, D]` over tiles of keys and values `[H, F, I, J, D]`."""
    # 1. R: row by row, the query at (row, column) over the columns of the same row of each tile.
    scores = (q[:, None] @ k.transpose(-1, -2)).float()  # [H, F, I, J, J]
    total = scores.logsumexp(-1, keepdim=True)
    weights = (scores - total).exp()
    negative_entropy = (weights * (scores - total)).sum(-1)  # [H, F, I, J]
    weights = weights.to(q.dtype)
    mean_k, mean_v = (_by_column(weights @ x) for x in (k, v))  # [H, J, F * I, D]
    # 2. L: each query over these means of its own column, over the rows of all tiles.
    scores = mean_k @ q.permute(0, 2, 3, 1)  # [H, J, F * I, I]
    scores = scores.float() - _by_column(negative_entropy[..., None])
    weights = scores.softmax(-2).to(q.dtype)
    return (weights.transpose(-1, -2) @ mean_v).transpose(1, 2)


def _by_column(x: Tensor) -> Tensor:
    """`[H, F, I, J, C]` as `[H, J, F * I, C]`."""
    return x.permute(0, 3, 1, 2, 4).flatten(2, 3)


@cache
def published_kernel() -> Kernel | None:
    """The authors' Triton kernel, from their package `monarch_rt` in the user's own environment."""
    try:
        distribution("monarch_rt")  # its module is called `wan`, as those of other packages are
        from wan.modules.monarch_attn import monarch_attn
    except Exception:  # not installed; or it asserts a device or a Triton that is not there
        return None
    return monarch_attn


def suits_kernel(q: Tensor) -> bool:
    """Whether the kernel is made for such queries: 16 bit, on a CUDA device, a power of two of
    channels.
    """
    channels = q.shape[3]
    is_power = channels >= 16 and channels & (channels - 1) == 0
    return q.is_cuda and q.dtype in (torch.float16, torch.bfloat16) and is_power


def by_kernel(
    kernel: Kernel, q: Tensor, k: Tensor, v: Tensor, grid: tuple[int, int], h_reduce: int
) -> Tensor:
    """The same as `monarch_attention`, by the authors' kernel."""
    sides = (x.contiguous() for x in (q, k, v))
    return kernel(*sides, f_tied=1, h_reduce=h_reduce, w_reduce=1, h=grid[0], w=grid[1])
