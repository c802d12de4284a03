"""Heads that look at the latest frames hold only those, the others also a bank of patches that
changed (Forcing-KV, arXiv 2605.09681).
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..cache.bank import Bank
from ..cache.cache import KVCache
from ..take import BankPlan, Chunk, Geometry, Take
from .head_map import HeadMap
from .retention import Retention, RetentionRun
from .token_prune import unit_of

# The authors' inference configurations, by what they are for.
PRESETS: dict[str, dict] = {
    "custom": {},
    "Self-Forcing, Causal-Forcing, RAVEN": {},
    "LongLive": dict(ar_start=2),
    "Krea Realtime 14B": dict(sink_frames=0, dynamic_frames=3, bank_share=0.0),
}


@dataclass(frozen=True, kw_only=True)
class ForcingKV(Retention):
    """Every head holds the first `sink_frames` and some of the latest frames: static heads of the
    map `static_frames`, dynamic ones `dynamic_frames`. Dynamic heads also hold the bank.

    Bank: of the frames that leave the latest with a chunk (for chunks of 3 and `dynamic_frames` 1:
    the frame before the chunk and its first two), the share `bank_share` of all patches, those that
    are least like the same patch one frame on: mean cosine of their tokens' keys in layer 1, heads
    joined. All layers keep the same patches. Each chunk brings a new bank.

    Up to chunk `ar_start` (counted from 0; frame-wise models count 3 frames as one) no head is
    told from another, and all hold the larger number of frames; in layer 0 it stays so.

    A frame is cut into `patches` runs of tokens, see `patches_of`. Where layer 1 has no dynamic
    head, the first layer that has one decides (ours).

    Bank 0 is that of layer 0, bank 1 that of static heads, bank 2 that of dynamic ones.
    """

    head_map: HeadMap | None = None
    ar_start: int = 1
    sink_frames: int = 1
    static_frames: int = 1
    dynamic_frames: int = 1
    bank_share: float = 0.33
    patches: int = 6
    title: ClassVar = "Forcing-KV"

    def __post_init__(self):
        if self.head_map is None:
            raise ValueError(
                "Forcing-KV needs a head map. Connect Load Head Map, with the authors' file for "
                "this model in models/kv_head_maps, or Profile Heads."
            )
        for name, least in (
            ("ar_start", 0),
            ("sink_frames", 0),
            ("static_frames", 1),
            ("dynamic_frames", 1),
            ("patches", 1),
        ):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}. Use at least {least}.")
        if not 0 <= self.bank_share <= 1:
            raise ValueError(f"bank_share is {self.bank_share}. Use a number from 0 to 1.")

    @property
    def latest_frames(self) -> int:
        """Latest frames that a head holds which is not told from another."""
        return max(self.static_frames, self.dynamic_frames)

    def check(self, geometry: Geometry, take: Take):
        self.head_map.check(geometry)

    def banks(self, geometry: Geometry, take: Take) -> list[BankPlan]:
        layers, chunk = range(geometry.layers), geometry.chunk_frames
        patches = patches_of(self.patches, geometry.tokens_per_frame)
        in_bank = math.ceil(self.bank_patches(chunk, patches) / patches)
        whole = self.sink_frames + self.latest_frames + chunk

        def plan(frames: int, heads: tuple[tuple[int, ...], ...]) -> BankPlan:
            frames = min(take.total_frames, frames)
            return BankPlan(frames, frames, heads)

        return [
            plan(whole, (tuple(range(geometry.heads)), *((),) * (geometry.layers - 1))),
            plan(whole, ((), *self.head_map.static[1:])),
            plan(whole + in_bank, ((), *map(self.head_map.dynamic, layers[1:]))),
        ]

    def bank_patches(self, frames: int, patches: int) -> int:
        """How many patches of so many leaving frames stay."""
        return round(self.bank_share * frames * patches)

    def full_frames(self, geometry: Geometry) -> int | None:
        return self.sink_frames + self.latest_frames + geometry.chunk_frames

    def sink(self, geometry: Geometry) -> int:
        return self.sink_frames

    def grain(self, geometry: Geometry, lengths: set[int]) -> int:
        tokens = geometry.tokens_per_frame
        return tokens // patches_of(self.patches, tokens)

    def start(self, geometry: Geometry, take: Take) -> RetentionRun:
        return ForcingKVRun(self, geometry)


def patches_of(patches: int, tokens: int) -> int:
    """The number of patches nearest to `patches` into which a frame's tokens can be shared out
    evenly, of two the larger: 6 of the 1560 at 832x480, 8 of 32.
    """
    possible = [count for count in range(1, tokens + 1) if tokens % count == 0]
    return min(possible, key=lambda count: (abs(count - patches), -count))


class ForcingKVRun(RetentionRun):
    def __init__(self, policy: ForcingKV, geometry: Geometry):
        self.policy = policy
        self.tokens = geometry.tokens_per_frame
        self.patches = patches_of(policy.patches, self.tokens)
        # Latent frames of a shot after which heads are told apart.
        self.dense_frames = (policy.ar_start + 1) * unit_of(geometry) * geometry.chunk_frames

    @property
    def notes(self) -> tuple[str, ...]:
        asked = self.policy.patches
        if self.patches == asked:
            return ()
        return (
            f"Forcing-KV cut each latent frame into {self.patches} patches: its {self.tokens} "
            f"tokens cannot be shared out among {asked} evenly.",
        )

    def after_clean(self, cache: KVCache, chunk: Chunk, x0: Tensor):
        policy, shot = self.policy, chunk.cue.shot
        of_layer_0, static, dynamic = cache.banks
        is_apart = chunk.end_frame - shot >= self.dense_frames
        has_bank = chunk.start_frame - shot >= self.dense_frames
        for bank, latest in (
            (of_layer_0, policy.latest_frames),
            (static, policy.static_frames if is_apart else policy.latest_frames),
            (dynamic, policy.dynamic_frames if is_apart else policy.latest_frames),
        ):
            frame = bank.frame[: bank.length]
            is_sink = frame < shot + policy.sink_frames
            kept = is_sink | (frame >= chunk.end_frame - latest)
            if bank is dynamic and has_bank:
                kept[self._bank_rows(dynamic, chunk)] = True
            bank.keep(kept.nonzero()[:, 0])

    def _bank_rows(self, bank: Bank, chunk: Chunk) -> Tensor:
        """Rows of the patches that stay, of the frames that leave the latest ones with a chunk."""
        policy = self.policy
        layer = next((layer for layer, heads in enumerate(bank.heads) if heads), None)
        first = max(chunk.start_frame - policy.dynamic_frames, chunk.cue.shot + policy.sink_frames)
        leaving = chunk.end_frame - policy.dynamic_frames - first
        if layer is None or leaving < 1:
            return torch.empty(0, dtype=torch.long)
        rows = bank.rows_of(first, first + leaving)  # and the frame after them
        k, _ = bank.read(layer, rows)
        likeness = likeness_of_patches(k[0], leaving, self.patches).cpu()
        count = policy.bank_patches(leaving, self.patches)
        chosen = likeness.argsort(stable=True)[:count]
        size = self.tokens // self.patches
        return (rows.start + chosen[:, None] * size + torch.arange(size)).flatten()


def likeness_of_patches(k: Tensor, frames: int, patches: int) -> Tensor:
    """How like each patch of the first `frames` is to the same patch one frame on: mean over its
    tokens of the cosine of their keys, fp32 `[frames * patches]`. Keys `[(frames + 1) * T, H, D]`.
    """
    by_patch = k.float().flatten(1).view(frames + 1, patches, -1, k.shape[1] * k.shape[2])
    cosine = torch.cosine_similarity(by_patch[:-1], by_patch[1:], dim=-1)
    return cosine.mean(-1).flatten()
