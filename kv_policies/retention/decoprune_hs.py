"""Head-specialised DeCoPrune: heads that look at the latest frames hold only those (arXiv
2609.39096, appendix B).
"""

from dataclasses import dataclass
from typing import ClassVar

from ..cache.cache import KVCache
from ..take import BankPlan, Chunk, Geometry, Take
from .decoprune import DeCoPrune, DeCoPruneRun
from .head_map import HeadMap
from .other_choice import Chooser


@dataclass(frozen=True, kw_only=True)
class DeCoPruneHS(DeCoPrune):
    """Static heads of the map hold the first `static_sink_frames` and the latest
    `static_recent_frames` latent frames, dynamic heads DeCoPrune's tokens.

    In layer 0 all heads are dynamic, whatever the map says. Bank 0 is that of the dynamic heads,
    bank 1 that of the static ones, so there are two attention calls in each layer.
    """

    head_map: HeadMap | None = None
    static_sink_frames: int = 4
    static_recent_frames: int = 4
    title: ClassVar = "DeCoPrune-HS"

    def __post_init__(self):
        super().__post_init__()
        if self.head_map is None:
            raise ValueError(
                "Head-specialised DeCoPrune needs a head map. Connect Profile Heads or Load Head "
                "Map."
            )

    def check(self, geometry: Geometry, take: Take):
        super().check(geometry, take)
        self.head_map.check(geometry)

    def banks(self, geometry: Geometry, take: Take) -> list[BankPlan]:
        (of_all_heads,) = super().banks(geometry, take)
        static_heads = ((), *self.head_map.static[1:])
        dynamic_heads = (
            tuple(range(geometry.heads)),
            *(self.head_map.dynamic(layer) for layer in range(1, geometry.layers)),
        )
        static_frames = min(
            take.total_frames,
            self.static_sink_frames + self.static_recent_frames + geometry.chunk_frames,
        )
        return [
            BankPlan(of_all_heads.frames, of_all_heads.most_frames, dynamic_heads),
            BankPlan(static_frames, static_frames, static_heads),
        ]

    def sink(self, geometry: Geometry) -> int:
        return max(super().sink(geometry), self.static_sink_frames)

    def start(
        self, geometry: Geometry, take: Take, chooser: Chooser | None = None
    ) -> "DeCoPruneHSRun":
        return DeCoPruneHSRun(self, geometry, take, chooser)


class DeCoPruneHSRun(DeCoPruneRun):
    def begin_chunk(self, cache: KVCache, chunk: Chunk):
        static = cache.banks[1]
        frame = static.frame[: static.length]
        is_first = frame < chunk.cue.shot + self.policy.static_sink_frames
        is_recent = frame >= chunk.start_frame - self.policy.static_recent_frames
        static.keep((is_first | is_recent).nonzero()[:, 0])
        super().begin_chunk(cache, chunk)
