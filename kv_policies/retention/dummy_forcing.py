"""Heads that look at the chunk in work hold one frame, the others what each of them looks at, told
apart once in the take itself (Dummy Forcing, `csguoh/DummyForcing`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..cache.bank import Bank
from ..cache.cache import KVCache
from ..state import State, count_of, counts_of, part_of
from ..take import BankPlan, Chunk, Geometry, Take
from .retention import Retention, RetentionRun
from .token_prune import unit_of

KINDS = MIDDLE, FIRST, LAST = range(3)  # of heads, and the numbers of their banks
Kinds = list[list[int]]  # by layer and head


@dataclass(frozen=True, kw_only=True)
class DummyForcing(Retention):
    """Up to chunk `ar_start` (counted from 0; frame-wise models count 3 frames as one) every head
    holds the first and the latest `local_frames` latent frames of the shot. Then heads are told
    apart by that chunk's clean pass, see `kinds_of`, once in a take:

    - *first* heads hold the first frame,
    - *middle* heads the latest `local_frames`,
    - *last* ones, the dummies, the latest frame: `num_dummy` heads, or with 0 the share
      `dummy_share` of all.

    A cut leaves the kinds as they are. A recache in one forward reads nothing but its own frames,
    and the first of them takes the first frame's place.
    """

    num_dummy: int = 0
    dummy_share: float = 0.5
    ar_start: int = 1
    local_frames: int = 3

    whole_frames: ClassVar[bool] = True
    splits_heads: ClassVar[bool] = True
    open_share: ClassVar[str] = "of the heads that are no dummies, from no middle one to all"

    def __post_init__(self):
        for name, least in (("num_dummy", 0), ("ar_start", 1), ("local_frames", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}. Use at least {least}.")
        if not 0 <= self.dummy_share <= 1:
            raise ValueError(f"dummy_share is {self.dummy_share}. Use a number from 0 to 1.")

    def check(self, geometry: Geometry, take: Take):
        heads = geometry.layers * geometry.heads
        if self.num_dummy > heads:
            raise ValueError(
                f"num_dummy is {self.num_dummy}, and this model has {heads} heads. Use at most "
                f"{heads}, or 0 for the share dummy_share of them."
            )

    def dummies(self, geometry: Geometry) -> int:
        """How many heads are dummies."""
        heads = geometry.layers * geometry.heads
        return self.num_dummy or round(self.dummy_share * heads)

    def banks(self, geometry: Geometry, take: Take) -> list[BankPlan]:
        """As long as no head is told apart, the first bank has them all."""
        frames = 1 + self.local_frames + geometry.chunk_frames
        frames = min(take.total_frames, frames)
        none = BankPlan(frames, frames, ((),) * geometry.layers)
        return [BankPlan(frames, frames), none, none]

    def split_banks(self, geometry: Geometry, take: Take, kinds: Kinds) -> list[BankPlan]:
        """The banks once heads are told apart."""
        plans = []
        for kind, held in enumerate((self.local_frames, 1, 1)):
            frames = min(take.total_frames, held + geometry.chunk_frames)
            heads = tuple(
                tuple(head for head, other in enumerate(layer) if other == kind) for layer in kinds
            )
            plans.append(BankPlan(frames, frames, heads))
        return plans

    def full_frames(self, geometry: Geometry) -> int | None:
        return self.local_frames + geometry.chunk_frames

    @property
    def by_content(self) -> bool:
        return True

    def at_share(self, share: float) -> Retention:
        return AtShare(**vars(self), share=share)

    @property
    def decisive(self) -> tuple[str, ...]:
        return "num_dummy", "dummy_share", "ar_start", "local_frames"

    def grain(self, geometry: Geometry, lengths: set[int]) -> int:
        return geometry.tokens_per_frame

    def start(self, geometry: Geometry, take: Take) -> RetentionRun:
        return DummyForcingRun(self, geometry, take)


@dataclass(frozen=True, kw_only=True)
class AtShare(DummyForcing):
    """For the dry run: of the heads that are no dummies, `share` are middle ones."""

    share: float

    def start(self, geometry: Geometry, take: Take) -> RetentionRun:
        return AtShareRun(self, geometry, take)


class DummyForcingRun(RetentionRun):
    needs_queries = True

    def __init__(self, policy: DummyForcing, geometry: Geometry, take: Take):
        self.policy = policy
        self.geometry = geometry
        self.take = take
        block = unit_of(geometry) * geometry.chunk_frames
        # Latent frames of a shot after which heads are told apart.
        self.dense_frames = (policy.ar_start + 1) * block
        self.first_frames = 1 if policy.ar_start == 1 else block  # that count as the first ones
        self.first_frame = 0  # which all heads hold, then the first ones alone
        self.masses: dict[int, Tensor] = {}  # by layer, see `first_and_middle_mass`
        self.kinds: Kinds = []  # empty: not told apart yet

    @property
    def notes(self) -> tuple[str, ...]:
        if not self.kinds:
            return (
                f"Dummy Forcing told no heads apart: that begins after {self.dense_frames} latent "
                "frames of a shot.",
            )
        flat = sum(self.kinds, [])
        first, middle, last = (flat.count(kind) for kind in (FIRST, MIDDLE, LAST))
        return (
            f"Dummy Forcing: of {len(flat)} heads {first} hold the first latent frame, {middle} "
            f"the latest {self.policy.local_frames}, and {last} the latest one.",
        )

    # What stays.

    def begin_shot(self, cache: KVCache, chunk: Chunk):
        super().begin_shot(cache, chunk)
        self.first_frame = chunk.start_frame

    def begin_chunk(self, cache: KVCache, chunk: Chunk):
        for kind, bank in enumerate(cache.banks):
            frame = bank.frame[: bank.length]
            bank.keep(self._is_kept(kind, frame, chunk.start_frame).nonzero()[:, 0])

    def _is_kept(self, kind: int, frame: Tensor, end: int) -> Tensor:
        """Which rows of the latent frames `frame` stay in a bank once frames up to `end` are
        history.
        """
        is_first, is_local = frame == self.first_frame, frame >= end - self.policy.local_frames
        if not self.kinds:
            return is_first | is_local
        return (is_local, is_first, frame >= end - 1)[kind]

    # Which head is of which kind.

    def observe(self, layer: int, chunk: Chunk, step: int, q: Tensor, bank: Bank):
        if self.kinds or step < self.take.steps or not self._is_due(chunk):
            return
        tokens = self.geometry.tokens_per_frame
        if bank.committed < 2 * tokens:  # nothing lies between the first frame and the chunk
            return
        first = min(self.first_frames * tokens, bank.committed - tokens)
        generator = torch.Generator().manual_seed((self.take.seed + layer) % 2**64)
        drawn = max(1, self.first_frames * tokens // 3)
        rows = torch.randint(q.shape[1], (drawn,), generator=generator).to(q.device)
        k, _ = bank.read(layer)
        self.masses[layer] = first_and_middle_mass(q[0, rows], k[0], first, q.shape[1])

    def _is_due(self, chunk: Chunk) -> bool:
        return chunk.end_frame - chunk.cue.shot >= self.dense_frames

    def after_clean(self, cache: KVCache, chunk: Chunk, x0: Tensor):
        if self.kinds or not self._is_due(chunk):
            return
        self.kinds = self.decided_kinds()
        if not self.kinds:
            return
        self.masses = {}
        frame = cache.banks[0].frame[: cache.banks[0].length]
        rows = [self._is_kept(kind, frame, chunk.end_frame).nonzero()[:, 0] for kind in KINDS]
        cache.split(self._split_banks(), rows)

    def decided_kinds(self) -> Kinds:
        """Empty: not all layers have been seen."""
        if len(self.masses) < self.geometry.layers:
            return []
        masses = torch.stack([self.masses[layer] for layer in range(self.geometry.layers)])
        return kinds_of(masses.cpu(), self.policy.dummies(self.geometry)).tolist()

    def _split_banks(self) -> list[BankPlan]:
        return self.policy.split_banks(self.geometry, self.take, self.kinds)

    def begin_recache(self, cache: KVCache, frames: range) -> list[Tensor] | None:
        if not self.kinds:
            return None
        cache.clear()
        self.first_frame = frames.start
        tokens = self.geometry.tokens_per_frame
        ids = torch.arange(frames.start * tokens, frames.stop * tokens)
        return [ids[self._is_kept(kind, ids // tokens, frames.stop)] for kind in KINDS]

    # Saved and restored.

    def state(self) -> State:
        return {"kinds": [list(layer) for layer in self.kinds], "first_frame": self.first_frame}

    def restore(self, state: State):
        self.first_frame = count_of(state, "first_frame", self.take.total_frames)
        layers = part_of(state, "kinds", list)
        self.kinds = [
            counts_of({"kinds": kinds}, "kinds", LAST, self.geometry.heads) for kinds in layers
        ]
        if self.kinds:
            counts_of({"kinds": [0] * len(self.kinds)}, "kinds", 0, self.geometry.layers)

    def split_again(self, cache: KVCache):
        if self.kinds:
            cache.split(self._split_banks(), [torch.empty(0, dtype=torch.long)] * len(KINDS))


class AtShareRun(DummyForcingRun):
    def decided_kinds(self) -> Kinds:
        """Heads of one kind lie together, so that rows of a layer take the most they can."""
        layers, heads = self.geometry.layers, self.geometry.heads
        last = self.policy.dummies(self.geometry)
        middle = round(self.policy.share * (layers * heads - last))
        kinds = [MIDDLE] * middle + [FIRST] * (layers * heads - last - middle) + [LAST] * last
        return [kinds[layer * heads : (layer + 1) * heads] for layer in range(layers)]


def first_and_middle_mass(q: Tensor, k: Tensor, first: int, own: int) -> Tensor:
    """Attention mass of each head on the `first` rows, and on those between them and the last `own`
    ones: means over the queries, fp32 `[H, 2]`. Queries `[R, H, D]`, keys `[S, H, D]`.
    """
    masses = []
    for head in range(q.shape[1]):  # one at a time: R x S weights of all heads may not fit
        logits = q[:, head].float() @ k[:, head].float().T * q.shape[-1] ** -0.5
        weight = logits.softmax(-1)
        parts = weight[:, :first], weight[:, first : len(k) - own]
        masses.append(torch.stack([part.sum(-1).mean() for part in parts]))
    return torch.stack(masses)


def kinds_of(masses: Tensor, dummies: int) -> Tensor:
    """The kind of each head, long `[L, H]`. Both masses `[L, H, 2]` are divided by their sums over
    all heads. The `dummies` heads whose larger one is smallest are LAST, of the others those that
    look more at the middle MIDDLE.
    """
    first, middle = (masses / masses.sum((0, 1))).flatten(0, 1).unbind(-1)
    kinds = torch.where(first < middle, MIDDLE, FIRST)
    kinds[torch.maximum(first, middle).argsort(stable=True)[:dummies]] = LAST
    return kinds.view(masses.shape[:2])
