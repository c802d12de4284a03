"""What a latent frame is worth to a query frame: how strongly it is attended to, and how much its
keys differ (Focused Forcing, arXiv 2605.18346).

A frame is described by its token rows: each by half its mean and half its largest values, the frame
by their mean. Attention is the mean of q . k over all pairs of a query's and a key frame's rows,
which is the product of the means.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from ..cache.view import View
from ..take import Geometry

ANCHOR_FRAMES = 3  # first latent frames of a shot, of which one is always read
HEADS_AT_ONCE = 8  # whose keys are held in fp32 while they are summed up
EPSILON = 1e-8


class Frames(NamedTuple):
    """The first S rows of a view as J frames. A frame is its surviving tokens, whose rows follow
    each other. Tensors are long, on the device.
    """

    counts: list[int]  # tokens of each frame
    sinks: int  # how many of the first frames are sink frames
    numbers: Tensor  # [J] latent frame of each
    starts: Tensor  # [J] first row of each
    lengths: Tensor  # [J] rows of each
    cell: Tensor  # [S] of each row
    cell_order: Tensor  # [S] rows sorted by cell
    cell_lengths: Tensor  # [T] rows of each cell
    row_lengths: Tensor  # [J * h] tokens of each token row of each frame


def frames_of(view: View, rows: int, geometry: Geometry, shot: int) -> Frames:
    """The first `rows` rows of a view as frames. Sink frames are the first ones from latent frame
    `shot` on that are history.
    """
    h, w = geometry.grid
    frame = view.frame[:rows]
    cell = view.cell[:rows]
    numbers, index, counts = torch.unique_consecutive(
        frame, return_inverse=True, return_counts=True
    )
    history_frames = int(index[view.history_rows - 1]) + 1 if view.history_rows else 0
    parts = (
        numbers,
        counts.cumsum(0) - counts,
        counts,
        cell,
        cell.argsort(stable=True),
        torch.bincount(cell, minlength=h * w),
        torch.bincount(index * h + cell // w, minlength=len(numbers) * h),
    )
    return Frames(
        counts.tolist(),
        int((numbers[:history_frames] < shot + ANCHOR_FRAMES).sum()),
        *(part.to(view.device) for part in parts),
    )


class KeyStatistics(NamedTuple):
    """What a layer's keys say about each frame."""

    descriptor: Tensor  # [J, H, D] fp32, mean over the frame's token rows
    diversity: Tensor  # [J, H] fp32


def key_statistics(k: Tensor, frames: Frames, grid_rows: int) -> KeyStatistics:
    """Descriptor and diversity of each frame from keys `[S, H, D]`.

    Diversity is minus the mean cosine between a frame's keys and the mean key at the same cell.
    """
    filled = frames.row_lengths > 0
    rows_of_frame = filled.view(-1, grid_rows, 1).sum(1, keepdim=True)
    descriptors = []
    diversities = []
    for part in k.split(HEADS_AT_ONCE, 1):
        part = part.float()
        mean = torch.segment_reduce(part, "mean", lengths=frames.row_lengths, unsafe=True)
        largest = torch.segment_reduce(part, "max", lengths=frames.row_lengths, unsafe=True)
        rows = torch.where(filled[:, None, None], 0.5 * mean + 0.5 * largest, 0.0)
        descriptors.append(rows.unflatten(0, (-1, grid_rows)).sum(1) / rows_of_frame)
        mean_at_cell = torch.segment_reduce(
            part[frames.cell_order], "mean", lengths=frames.cell_lengths, unsafe=True
        )
        cosine = torch.cosine_similarity(part, mean_at_cell[frames.cell], dim=-1)
        alike = torch.segment_reduce(cosine, "mean", lengths=frames.lengths, unsafe=True)
        diversities.append(-alike)
    return KeyStatistics(torch.cat(descriptors, 1), torch.cat(diversities, 1))


def attention_scores(q: Tensor, keys: KeyStatistics, grid: tuple[int, int]) -> Tensor:
    """How strongly each query frame attends to each frame: `[F, H, J]`; queries `[N, H, D]`."""
    rows = q.unflatten(0, (-1, *grid))
    descriptor = (0.5 * rows.mean(2, dtype=torch.float32) + 0.5 * rows.amax(2).float()).mean(1)
    return torch.einsum("fhd,jhd->fhj", descriptor, keys.descriptor) * q.shape[-1] ** -0.5


def frame_scores(q: Tensor, keys: KeyStatistics, grid: tuple[int, int], weight: float) -> Tensor:
    """weight z(attention) + (1 - weight) z(diversity) of each frame, for each query frame and head:
    `[F, H, J]`; queries `[N, H, D]`. z-scores are over all frames.
    """
    attention = attention_scores(q, keys, grid)
    return weight * z_score(attention, -1) + (1 - weight) * z_score(keys.diversity, 0).T


def joint_scores(q: Tensor, keys: KeyStatistics, grid: tuple[int, int], weight: float) -> Tensor:
    """The same where the F query frames are the last ones of the J: z-scores are over all frames
    but the query frame itself, which is not chosen but always read.
    """
    attention = attention_scores(q, keys, grid)
    queries, _, frames = attention.shape
    own = torch.arange(frames - queries, frames, device=q.device)
    others = (torch.arange(frames, device=q.device) != own[:, None])[:, None]  # [F, 1, J]
    diversity = keys.diversity.T.expand_as(attention)
    attention = z_score_among(attention, others)
    return weight * attention + (1 - weight) * z_score_among(diversity, others)


def z_score(values: Tensor, dim: int) -> Tensor:
    """Deviations from the mean in population standard deviations."""
    mean = values.mean(dim, keepdim=True)
    return (values - mean) / (values.std(dim, correction=0, keepdim=True) + EPSILON)


def z_score_among(values: Tensor, counted: Tensor) -> Tensor:
    """The same over the last dimension, with mean and deviation of the `counted` values alone."""
    number = counted.sum(-1, keepdim=True)
    mean = torch.where(counted, values, 0.0).sum(-1, keepdim=True) / number
    square = torch.where(counted, (values - mean) ** 2, 0.0).sum(-1, keepdim=True) / number
    return (values - mean) / (square.sqrt() + EPSILON)
