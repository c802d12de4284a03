"""What a history frame is worth to a query frame: how strongly it is attended to, and how much it
differs (Focused Forcing, arXiv 2605.18346).

A frame is described by its token rows: each by half its mean and half its largest values, the frame
by their mean. Attention is the mean of q . k over all pairs of a query's and a history frame's
rows, which is the product of the means.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from ..cache.view import View
from ..take import Geometry

ANCHOR_FRAMES = 3  # first latent frames, of which one is always read
HEADS_AT_ONCE = 8  # whose keys are held in fp32 while they are summed up
EPSILON = 1e-8


class History(NamedTuple):
    """The history of a view as frames; a frame is its surviving tokens, whose rows follow each
    other. Index tensors on the device.
    """

    counts: list[int]  # tokens of each frame
    sinks: int  # how many of the frames are sink frames
    numbers: Tensor  # [J] latent frame of each
    starts: Tensor  # [J] first row of each frame
    lengths: Tensor  # [J]
    cell: Tensor  # [S] of each row
    cell_order: Tensor  # [S] rows sorted by cell
    cell_lengths: Tensor  # [T] rows of each cell
    row_lengths: Tensor  # [J * h] tokens of each token row of each frame


def history_of(view: View, geometry: Geometry, shot: int) -> History:
    """The history of a view; sink frames are the first ones from latent frame `shot` on."""
    device, (h, w) = view.device, geometry.grid
    frame, cell = view.frame[: view.history_rows], view.cell[: view.history_rows]
    names, index, counts = torch.unique_consecutive(frame, return_inverse=True, return_counts=True)
    row_lengths = torch.bincount(index * h + cell // w, minlength=len(names) * h)
    parts = (
        names,
        counts.cumsum(0) - counts,
        counts,
        cell,
        cell.argsort(stable=True),
        torch.bincount(cell, minlength=h * w),
        row_lengths,
    )
    return History(
        counts.tolist(),
        int((names < shot + ANCHOR_FRAMES).sum()),
        *(part.to(device) for part in parts),
    )


class KeyStatistics(NamedTuple):
    """What a layer's cached keys say about each history frame."""

    descriptor: Tensor  # [J, H, D] fp32, mean over the frame's groups
    diversity: Tensor  # [J, H] fp32, z-scored over frames


def key_statistics(k: Tensor, history: History, grid_rows: int) -> KeyStatistics:
    """Descriptors and diversity of the history frames from cached keys `[S, H, D]`.

    Diversity is minus the mean cosine between a frame's keys and the mean key at the same cell.
    """
    descriptors, diversities = [], []
    for part in k.split(HEADS_AT_ONCE, 1):
        part = part.float()
        mean, largest = (
            torch.segment_reduce(part, how, lengths=history.row_lengths, unsafe=True)
            for how in ("mean", "max")
        )
        filled = (history.row_lengths > 0)[:, None, None]
        groups = torch.where(filled, 0.5 * mean + 0.5 * largest, 0.0).unflatten(0, (-1, grid_rows))
        descriptors.append(groups.sum(1) / filled.view(-1, grid_rows, 1).sum(1, keepdim=True))
        at_cell = torch.segment_reduce(
            part[history.cell_order], "mean", lengths=history.cell_lengths, unsafe=True
        )
        cosine = torch.cosine_similarity(part, at_cell[history.cell], dim=-1)
        diversities.append(
            -torch.segment_reduce(cosine, "mean", lengths=history.lengths, unsafe=True)
        )
    return KeyStatistics(torch.cat(descriptors, 1), z_score(torch.cat(diversities, 1), 0))


def frame_scores(q: Tensor, keys: KeyStatistics, grid: tuple[int, int], weight: float) -> Tensor:
    """weight z(attention) + (1 - weight) z(diversity) of each history frame, for each query frame
    and head: `[F, H, J]`; queries `[N, H, D]`.
    """
    rows = q.unflatten(0, (-1, *grid))
    descriptor = (0.5 * rows.mean(2, dtype=torch.float32) + 0.5 * rows.amax(2).float()).mean(
        1
    )  # [F, H, D]
    attention = torch.einsum("fhd,jhd->fhj", descriptor, keys.descriptor) * q.shape[-1] ** -0.5
    return weight * z_score(attention, -1) + (1 - weight) * keys.diversity.T


def z_score(values: Tensor, dim: int) -> Tensor:
    """Deviations from the mean in population standard deviations."""
    return (values - values.mean(dim, keepdim=True)) / (
        values.std(dim, correction=0, keepdim=True) + EPSILON
    )
