"""Keep what changed: once, where generation begins, the blocks of a given history whose keys differ
most from the next frame's (TempDiff, a baseline of DeCoPrune, arXiv 2609.39096, table 1).
"""

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as functional
from torch import Tensor

from ..cache.bank import Bank
from ..cache.cache import KVCache
from ..state import State, count_of, counts_of
from ..take import BankPlan, Chunk, Geometry, Take
from .reindex import Reindex, check_reindex
from .retention import Retention, RetentionRun
from .scores import highest

ROWS, COLUMNS = 6, 13  # blocks of a frame: 5x4 tokens each of the paper's 30x52
KEY_LAYER = 1
# The paper's count, of the blocks between the first and the latest 4 of a minute's latent frames.
PAPER_BLOCKS, PAPER_FRAMES = 1657, 240 - 8
PAPER_SHARE = PAPER_BLOCKS / (PAPER_FRAMES * ROWS * COLUMNS)


class Blocks(NamedTuple):
    """How a frame's tokens fall into at most 6x13 blocks of one size; at the lower and the right
    edge they may be smaller.
    """

    grid: tuple[int, int]  # (h, w) tokens of a frame
    size: tuple[int, int]  # (h, w) tokens of a block

    @classmethod
    def of(cls, grid: tuple[int, int]) -> "Blocks":
        return cls(grid, (-(-grid[0] // ROWS), -(-grid[1] // COLUMNS)))

    @property
    def shape(self) -> tuple[int, int]:
        """Blocks of a frame, down and across."""
        return -(-self.grid[0] // self.size[0]), -(-self.grid[1] // self.size[1])

    @property
    def per_frame(self) -> int:
        return math.prod(self.shape)

    def tokens_in(self, count: int) -> int:
        """Tokens of `count` blocks of mean size."""
        return round(count * math.prod(self.grid) / self.per_frame)

    def means(self, values: Tensor) -> Tensor:
        """Mean of each block, `[n, rows, columns]`, of values of tokens `[n, h, w]`."""
        return functional.avg_pool2d(values, self.size, ceil_mode=True)

    def spread(self, values: Tensor) -> Tensor:
        """For each token the value of its block, `[n, h, w]`, from `[n, rows, columns]`."""
        h, w = self.grid
        by_token = values.repeat_interleave(self.size[0], 1).repeat_interleave(self.size[1], 2)
        return by_token[:, :h, :w]


@dataclass(frozen=True)
class TempDiff(Retention):
    """Hold all given frames until generation begins. There, once, keep the first `sink_frames` and
    the latest `recent_frames` whole and, of the frames between, the blocks whose keys at layer 1
    are least like those of the same tokens one frame on; then re-index. What is made afterwards
    stays whole.

    blocks: how many stay. 0: the paper's 1657 of a minute's 18096, in proportion (9.2 %).
    reindex, virtual_length, reindex_recent: see `reindex.Reindex`.
    """

    blocks: int = 0
    sink_frames: int = 4
    recent_frames: int = 4
    reindex: str = "auto"
    virtual_length: int = 17
    reindex_recent: int = 8
    title: ClassVar = "TempDiff (once)"

    def __post_init__(self):
        check_reindex(self.reindex, self.virtual_length, self.reindex_recent)
        for name, least in (("blocks", 0), ("sink_frames", 0), ("recent_frames", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}. Use at least {least}.")

    def kept_blocks(self, candidates: int) -> int:
        """How many of so many blocks stay."""
        wanted = self.blocks or round(PAPER_SHARE * candidates)
        return min(wanted, candidates)

    def banks(self, geometry: Geometry, take: Take) -> list[BankPlan]:
        """Room for the given frames, all of them, or for what stays of them and the new ones."""
        given, whole = take.given_frames, self.sink_frames + self.recent_frames
        stays = given
        if given > whole:
            blocks = Blocks.of(geometry.grid)
            count = self.kept_blocks((given - whole) * blocks.per_frame)
            stays = whole + math.ceil(blocks.tokens_in(count) / geometry.tokens_per_frame)
        most = max(given, stays + take.total_frames - given)
        return [BankPlan(most, most)]

    def start(self, geometry: Geometry, take: Take) -> RetentionRun:
        return TempDiffRun(self, geometry, take)

    def sink(self, geometry: Geometry) -> int:
        return self.sink_frames

    def moving_frames(self, take: Take) -> int:
        return take.total_frames if self.reindex == "periodic" else 0


class TempDiffRun(RetentionRun):
    def __init__(self, policy: TempDiff, geometry: Geometry, take: Take):
        self.policy = policy
        self.take = take
        self.blocks = Blocks.of(geometry.grid)
        self.reindex = Reindex(
            policy.reindex, policy.virtual_length, policy.reindex_recent, "all", take
        )
        self.chosen: tuple[int, int] | None = None  # blocks that stayed, and of how many

    def begin_shot(self, cache: KVCache, chunk: Chunk):
        super().begin_shot(cache, chunk)
        self.reindex.begin_shot(chunk)

    def begin_chunk(self, cache: KVCache, chunk: Chunk):
        if chunk.start_frame == self.take.given_frames > 0:
            self._choose(cache.banks[0], chunk)
        self.reindex.begin_chunk(cache, chunk)

    def _choose(self, bank: Bank, chunk: Chunk):
        # 1. The frames between the sink and the latest ones, all of them whole.
        first = chunk.cue.shot + self.policy.sink_frames
        last = chunk.start_frame - self.policy.recent_frames - 1
        count = max(0, last + 1 - first) * self.blocks.per_frame
        kept = self.policy.kept_blocks(count)
        self.chosen = kept, count
        if kept == count:
            return

        # 2. Their blocks, the least alike first; of equal ones the earlier.
        likeness = torch.stack(
            [self.blocks.means(key_likeness(bank, frame))[0] for frame in range(first, last + 1)]
        )
        order = likeness.flatten().argsort(stable=True)
        place = torch.empty_like(order)
        place[order] = torch.arange(count)

        # 3. Whole blocks of tokens stay, in that order; where blocks at the edge are smaller, a
        #    part of the last one, so that the count does not depend on the picture.
        of_token = self.blocks.spread(place.view(likeness.shape)).flatten()
        rows = bank.rows_of(first, last)
        keep = torch.ones(bank.length, dtype=torch.bool)
        keep[rows] = highest(-of_token, self.blocks.tokens_in(kept))
        bank.keep(keep.nonzero()[:, 0])

    @property
    def notes(self) -> tuple[str, ...]:
        if not self.take.given_frames:
            return (
                "TempDiff chose nothing, for no frames were given: it chooses once, where given "
                "frames end, and all of this take stayed whole.",
            )
        if self.chosen is None:
            return ()
        kept, count = self.chosen
        return (
            f"TempDiff kept {kept} of {count} blocks of the given frames, beside the first "
            f"{self.policy.sink_frames} and the latest {self.policy.recent_frames} frames.",
        )

    def state(self) -> State:
        return {"reindexed_at": self.reindex.at, "chosen": list(self.chosen or ())}

    def restore(self, state: State):
        self.reindex.at = count_of(state, "reindexed_at", self.take.total_frames)
        chosen = counts_of(state, "chosen", 2**63)
        self.chosen = tuple(counts_of(state, "chosen", 2**63, 2)) if chosen else None


def key_likeness(bank: Bank, frame: int) -> Tensor:
    """Cosine of each token's key, of all heads together, and that of the same cell one frame on, at
    layer 1: fp32 `[1, h, w]` on the CPU. Both frames are whole.
    """
    layer = min(KEY_LAYER, len(bank.heads) - 1)
    k, _ = bank.read(layer, bank.rows_of(frame, frame + 1))
    now, later = k[0].flatten(1).float().chunk(2)
    likeness = functional.cosine_similarity(now, later, dim=-1)
    return likeness.view(1, *bank.geometry.grid).cpu()
