"""The take's frames with the tokens lit that were in memory: at its end, chunk by chunk, and for
the page to scrub through.
"""

import torch
import torch.nn.functional as functional
from torch import Tensor

from ...rollout.stats import KVStats, counted
from ...rollout.timeline import latent_frame_of
from .plots import save_preview

SHEET_FRAMES, SHEET_COLUMNS = 64, 8  # of a take's small pictures, which are spread over it
PAGE_WIDTH, FILM_WIDTH = 256, 128  # of one small picture, in pixels: on the page, in the animation
STRIP = 12  # height of the animation's rows under the pictures
KEPT, READ, UNLIT = (0.30, 0.61, 0.91), (0.95, 0.95, 0.95), 0.12


def require_frames_of(images: Tensor, stats: KVStats):
    """ValueError where images `[N, H, W, 3]` are not the frames that the stats are of."""
    needed = len(stats.memory_maps) * stats.pixel_frames
    if len(images) != needed:
        raise ValueError(
            f"The memory map got {len(images)} images, and the stats are of {needed} frames "
            f"({counted(len(stats.memory_maps), 'take')} of {stats.pixel_frames}). Connect all "
            "decoded frames of the take that these stats belong to."
        )
    height, width = stats.latent_size
    if abs(images.shape[1] / height * width / images.shape[2] - 1) > 0.05:
        raise ValueError(
            f"The memory map got images of {images.shape[2]}x{images.shape[1]}, and the stats are "
            "of a take whose latent is "
            f"{width}x{height}: the proportions differ. Connect the decoded frames of the take "
            "that these stats belong to."
        )


def light(pictures: Tensor, kept: Tensor, stats: KVStats, dropped_brightness: float) -> Tensor:
    """Pictures `[n, H, W, 3]` with dropped tokens dim and grey, by the share kept of each, `[n, h,
    w]`; between 0 and 1 they are in between.
    """
    height, width = stats.latent_size
    lit = kept.repeat_interleave(2, 1).repeat_interleave(2, 2)[:, None, :height, :width]
    lit = functional.interpolate(lit, pictures.shape[1:3], mode="nearest")[:, 0, ..., None].to(
        pictures
    )
    return torch.lerp(
        (pictures.mean(-1, keepdim=True) * dropped_brightness).expand_as(pictures), pictures, lit
    )


def light_kept_tokens(images: Tensor, stats: KVStats, dropped_brightness: float) -> Tensor:
    """All frames, lit where the take's last chunk could still read them."""
    require_frames_of(images, stats)
    out = torch.empty_like(images)
    for item, kept in enumerate(stats.memory_maps):
        kept = kept.at(stats.rows_of(item)[-1])
        for i in range(stats.pixel_frames):  # one frame at a time: a long take is large
            place, latent = (
                item * stats.pixel_frames + i,
                latent_frame_of(i, stats.temporal_compression),
            )
            out[place] = light(images[place][None], kept[latent][None], stats, dropped_brightness)[
                0
            ]
    return out


def film_of_memory(images: Tensor, stats: KVStats, dropped_brightness: float) -> Tensor:
    """One picture for each chunk, takes one after another: what was in memory when it was made.
    `[chunks, H, W, 3]`.

    Above, small pictures of the frames made so far; below, a row for each head group, all latent
    frames from left to right, bright where the frame is in memory; then, where the policy reads a
    part only, a white row: how many heads read each frame.
    """
    require_frames_of(images, stats)
    return torch.cat(
        [
            torch.stack(list(_film(images, stats, item, dropped_brightness)))
            for item in range(len(stats.memory_maps))
        ]
    )


def _film(images: Tensor, stats: KVStats, item: int, dropped_brightness: float):
    frames, pictures = _small_pictures(images, stats, item, FILM_WIDTH)
    rows, total = stats.rows_of(item), stats.frames
    reading = any(row.reads for row in rows)
    for row in rows:
        kept, made = stats.memory_maps[item].at(row), row.start_frame + row.frames
        shown = torch.zeros_like(pictures)
        count = sum(frame < made for frame in frames)
        shown[:count] = light(pictures[:count], kept[frames[:count]], stats, dropped_brightness)
        strips = [
            (KEPT, share)
            for share in stats.memory_maps[item].by_group(row).flatten(2).float().mean(2)
        ]
        if reading:
            strips.append((READ, torch.tensor(row.reads)))
        sheet = _sheet(shown)
        yield torch.cat(
            [
                sheet,
                *(
                    _strip(share, colour, total, sheet.shape[1]).to(sheet)
                    for colour, share in strips
                ),
            ]
        )


def _strip(share: Tensor, colour: tuple, total: int, width: int) -> Tensor:
    """A row `[STRIP, width, 3]` of the shares of the first frames of so many; a black line above
    it, and nothing where none is made.
    """
    bright = torch.zeros(total)
    bright[: len(share)] = UNLIT + (1 - UNLIT) * share
    row = functional.interpolate(bright[None, None], width, mode="nearest")[
        0, 0, None, :, None
    ] * torch.tensor(colour)
    return torch.cat([row.new_zeros(3, width, 3), row.expand(STRIP - 3, -1, -1)])


def _small_pictures(
    images: Tensor, stats: KVStats, item: int, width: int
) -> tuple[list[int], Tensor]:
    """Latent frames spread over a take, and a picture of each `[n, H, width, 3]`."""
    frames = sorted(
        {round(i * (stats.frames - 1) / (SHEET_FRAMES - 1)) for i in range(SHEET_FRAMES)}
    )
    height = 2 * round(
        width * images.shape[1] / images.shape[2] / 2
    )  # video codecs want even sizes
    pictures = [
        images[item * stats.pixel_frames + frame * stats.temporal_compression].movedim(-1, 0)[None]
        for frame in frames
    ]
    return frames, torch.cat(
        [functional.interpolate(picture, (height, width), mode="area") for picture in pictures]
    ).movedim(1, -1)


def _sheet(pictures: Tensor) -> Tensor:
    """Pictures `[n, H, W, C]` in rows of SHEET_COLUMNS, as one; the rest is black."""
    rows = -(-len(pictures) // SHEET_COLUMNS)
    sheet = pictures.new_zeros(rows * SHEET_COLUMNS, *pictures.shape[1:])
    sheet[: len(pictures)] = pictures
    return sheet.unflatten(0, (rows, SHEET_COLUMNS)).movedim(1, 2).flatten(2, 3).flatten(0, 1)


def memory_map_preview(images: Tensor, stats: KVStats, dropped_brightness: float, node) -> dict:
    """What the page scrubs through, of the first take: small pictures of `frames` as a temp image
    with `columns` in each of its `rows`; beside it `tokens`, another, in which each token is a
    pixel, the head groups of a picture one below the other: 256 red + green is the number of the
    last chunk that could read it, plus one. And the same for every latent frame, as `dropped`: see
    `MemoryMap.dropped`.
    """
    frames, pictures = _small_pictures(images, stats, 0, PAGE_WIDTH)
    rows, kept = stats.rows_of(0), stats.memory_maps[0]
    number = _sheet((kept.held_until[:, frames].movedim(0, 1).flatten(1, 2) + 1)[..., None])
    tokens = torch.cat([number // 256, number % 256, torch.zeros_like(number)], -1)
    height, width = stats.latent_size
    return {
        "sheet": save_preview(_sheet(pictures)[None], node)[0],
        "tokens": save_preview((tokens[None] + 0.5) / 255, node)[0],
        "rows": -(-len(frames) // SHEET_COLUMNS),
        "columns": SHEET_COLUMNS,
        "frames": frames,
        "aspect": images.shape[2] / images.shape[1],
        "grid": stats.geometry.grid,
        "latent_size": (height, width),
        "dropped_brightness": dropped_brightness,
        "head_group_shares": kept.shares,
        "chunks": [(row.index, row.start_frame, row.frames) for row in rows],
        "dropped": kept.dropped(rows[-1]),
        "reads": [row.reads for row in rows],
        "kept_by_frame": stats.to_dict()["kept_by_frame"][0],
    }
