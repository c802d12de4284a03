"""Pictures of a take's frames in which the tokens are lit that were in memory: at the take's end,
chunk by chunk, and as data for the page's memory map.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as functional
from torch import Tensor

from ...rollout.chunk_row import ChunkRow
from ...rollout.stats import KVStats, counted
from ...rollout.timeline import latent_frame_of
from .plots import save_preview

SHEET_FRAMES = 64  # small pictures of a take, evenly spread over its latent frames
SHEET_COLUMNS = 8
GROUPS_SHOWN = 4  # more head groups, such as one for each layer, are shown together
PAGE_WIDTH = 256  # pixels: of a small picture on the page
FILM_WIDTH = 128  # pixels: of a small picture in the film
STRIP_HEIGHT = 12  # pixels: of a row under the film's pictures, its black line included
LINE_HEIGHT = 3
KEPT_COLOUR = (0.30, 0.61, 0.91)
READ_COLOUR = (0.95, 0.95, 0.95)
UNLIT = 0.12  # brightness of a frame of which nothing is in memory
ASPECT_TOLERANCE = 0.05
TOKEN_CELLS = 2  # latent cells that a token covers in each direction


def require_frames_of(images: Tensor, stats: KVStats):
    """Raise ValueError where images `[N, H, W, 3]` are not the frames of the take of `stats`."""
    takes = len(stats.memory_maps)
    needed = takes * stats.pixel_frames
    if len(images) != needed:
        raise ValueError(
            f"The memory map got {len(images)} images, and the stats are of {needed} frames "
            f"({counted(takes, 'take')} of {stats.pixel_frames}). Connect all decoded frames of "
            "the take that these stats belong to."
        )
    latent_height, latent_width = stats.latent_size
    height, width = images.shape[1:3]
    if abs(height / latent_height * latent_width / width - 1) > ASPECT_TOLERANCE:
        raise ValueError(
            f"The memory map got images of {width}x{height}, and the stats are of a take whose "
            f"latent is {latent_width}x{latent_height}: the proportions differ. Connect the "
            "decoded frames of the take that these stats belong to."
        )


def light(pictures: Tensor, kept: Tensor, stats: KVStats, dropped_brightness: float) -> Tensor:
    """Show dropped tokens dim and grey.

    `pictures` are `[n, H, W, 3]`, `kept` `[n, h, w]` is the share of heads and layers that hold a
    token: 1 leaves it as it is, 0 makes it grey at `dropped_brightness`, the rest is in between.
    """
    latent_height, latent_width = stats.latent_size
    cells = kept.repeat_interleave(TOKEN_CELLS, 1).repeat_interleave(TOKEN_CELLS, 2)
    cells = cells[:, None, :latent_height, :latent_width]  # an odd size ends in half a token
    pixels = functional.interpolate(cells, pictures.shape[1:3], mode="nearest")
    lit = pixels[:, 0, ..., None].to(pictures)
    dim = (pictures.mean(-1, keepdim=True) * dropped_brightness).expand_as(pictures)
    return torch.lerp(dim, pictures, lit)


def light_kept_tokens(images: Tensor, stats: KVStats, dropped_brightness: float) -> Tensor:
    """All frames `[N, H, W, 3]`, lit where the take's last chunk could still read them."""
    require_frames_of(images, stats)
    out = torch.empty_like(images)
    for item, memory_map in enumerate(stats.memory_maps):
        kept = memory_map.at(stats.rows_of(item)[-1])
        for number in range(stats.pixel_frames):  # one frame at a time: a long take is large
            place = item * stats.pixel_frames + number
            latent = latent_frame_of(number, stats.temporal_compression)
            lit = light(images[place][None], kept[latent][None], stats, dropped_brightness)
            out[place] = lit[0]
    return out


def film_of_memory(images: Tensor, stats: KVStats, dropped_brightness: float) -> Tensor:
    """A picture for each chunk, `[chunks, H, W, 3]`, of what was in memory when it was made; takes
    of a batch one after another.

    Above, small pictures of the frames made so far. Below, a row for each head group, or one for
    all of many, with all latent frames from left to right, bright where the frame is in memory.
    Where the policy reads only a part of what it keeps, a white row below: how many heads read each
    frame.
    """
    require_frames_of(images, stats)
    takes = [
        torch.stack(list(_film_of_item(images, stats, item, dropped_brightness)))
        for item in range(len(stats.memory_maps))
    ]
    return torch.cat(takes)


def _film_of_item(
    images: Tensor, stats: KVStats, item: int, dropped_brightness: float
) -> Iterator[Tensor]:
    frames, pictures = _small_pictures(images, stats, item, FILM_WIDTH)
    memory_map = stats.memory_maps[item]
    rows = stats.rows_of(item)
    has_reads = any(row.reads for row in rows)
    for row in rows:
        # 1. The frames made so far; the others stay black.
        end = row.start_frame + row.frames
        count = sum(frame < end for frame in frames)
        kept = memory_map.at(row)[frames[:count]]
        shown = torch.zeros_like(pictures)
        shown[:count] = light(pictures[:count], kept, stats, dropped_brightness)
        sheet = _sheet(shown)
        # 2. What each head group held of every frame, and what was read of it.
        width = sheet.shape[1]
        held = memory_map.by_group(row).float()
        if len(held) > GROUPS_SHOWN:
            held = memory_map.at(row)[None]
        strips = [
            _strip(share, KEPT_COLOUR, stats.frames, width) for share in held.flatten(2).mean(2)
        ]
        if has_reads:
            strips.append(_strip(torch.tensor(row.reads), READ_COLOUR, stats.frames, width))
        yield torch.cat([sheet, *(strip.to(sheet) for strip in strips)])


def _strip(shares: Tensor, colour: tuple, frames: int, width: int) -> Tensor:
    """A row `[STRIP_HEIGHT, width, 3]` of a take's `frames`, as bright as `shares` `[n]` of the
    first n says, black behind them; a black line above it.
    """
    bright = torch.zeros(frames)
    bright[: len(shares)] = UNLIT + (1 - UNLIT) * shares
    pixels = functional.interpolate(bright[None, None], width, mode="nearest")
    row = pixels[0, 0, None, :, None] * torch.tensor(colour)
    line = row.new_zeros(LINE_HEIGHT, width, 3)
    return torch.cat([line, row.expand(STRIP_HEIGHT - LINE_HEIGHT, -1, -1)])


def _small_pictures(
    images: Tensor, stats: KVStats, item: int, width: int
) -> tuple[list[int], Tensor]:
    """Latent frames spread over a take, and a small picture of each, `[n, H, width, 3]`."""
    step = (stats.frames - 1) / (SHEET_FRAMES - 1)
    frames = sorted({round(number * step) for number in range(SHEET_FRAMES)})
    # Video codecs want an even height.
    height = 2 * round(width * images.shape[1] / images.shape[2] / 2)
    first = item * stats.pixel_frames
    pictures = []
    for frame in frames:
        image = images[first + frame * stats.temporal_compression].movedim(-1, 0)[None]
        pictures.append(functional.interpolate(image, (height, width), mode="area"))
    return frames, torch.cat(pictures).movedim(1, -1)


def _sheet(pictures: Tensor) -> Tensor:
    """Pictures `[n, H, W, C]` in rows of SHEET_COLUMNS, as one picture; the rest is black."""
    rows = -(-len(pictures) // SHEET_COLUMNS)
    sheet = pictures.new_zeros(rows * SHEET_COLUMNS, *pictures.shape[1:])
    sheet[: len(pictures)] = pictures
    by_row = sheet.unflatten(0, (rows, SHEET_COLUMNS)).movedim(1, 2)  # [rows, H, columns, W, C]
    return by_row.flatten(2, 3).flatten(0, 1)


def memory_map_preview(images: Tensor, stats: KVStats, dropped_brightness: float, node) -> dict:
    """What the page's memory map needs of the first take of a batch.

    `sheet` is a temp image of small pictures of the latent frames `frames`, in `rows` of `columns`
    each. `tokens` is a temp image in which each token is a pixel, the head groups of a picture one
    below the other: 256 red + green is the number of the last chunk that could read the token,
    plus one. `dropped` has the same for every latent frame, see `MemoryMap.dropped`. `chunks` are
    (number, first latent frame, latent frames). `reads` are by chunk the shares of the earlier
    latent frames of which anything was read; None where all that is kept was.
    """
    frames, pictures = _small_pictures(images, stats, 0, PAGE_WIDTH)
    rows = stats.rows_of(0)
    memory_map = stats.memory_maps[0]
    return {
        "sheet": save_preview(_sheet(pictures)[None], node)[0],
        "tokens": save_preview(_numbers_as_pixels(memory_map.held_until[:, frames]), node)[0],
        "rows": -(-len(frames) // SHEET_COLUMNS),
        "columns": SHEET_COLUMNS,
        "frames": frames,
        "aspect": images.shape[2] / images.shape[1],
        "grid": stats.geometry.grid,
        "latent_size": stats.latent_size,
        "dropped_brightness": dropped_brightness,
        "head_group_shares": memory_map.shares,
        "chunks": [(row.index, row.start_frame, row.frames) for row in rows],
        "dropped": memory_map.dropped(rows[-1]),
        "reads": [_frames_read(row) for row in rows],
        "kept_by_frame": stats.to_dict()["kept_by_frame"][0],
    }


def _frames_read(row: ChunkRow) -> dict[int, float] | None:
    return {frame: share for frame, share in enumerate(row.reads) if share} if row.reads else None


def _numbers_as_pixels(held_until: Tensor) -> Tensor:
    """Chunk numbers `[groups, n, h, w]`, each plus one, as a sheet of n pictures, an IMAGE."""
    stacked = held_until.movedim(0, 1).flatten(1, 2) + 1  # [n, groups * h, w]
    number = _sheet(stacked[..., None])
    channels = torch.cat([number // 256, number % 256, torch.zeros_like(number)], -1)
    return (channels[None] + 0.5) / 255  # half a step, so that saving rounds to the number
