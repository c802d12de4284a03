"""The plan of a take inside ComfyUI."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ...kv_policies import State
from ...rollout.estimate import Estimate, estimate, peaks
from ...rollout.take_plan import TakePlan
from ..forward.prompts import Prompts
from .sampling_call import SamplingCall

# Share of the tokens whose keeping depends on the picture that is expected to stay, where nothing
# is known: the takes of DeCoPrune's paper keep 14.6 % (arXiv 2609.39096).
EXPECTED_SHARE = 0.15


@dataclass(frozen=True, kw_only=True, eq=False)
class HostPlan:
    """A take's plan with what only the host knows of it."""

    call: SamplingCall
    take_plan: TakePlan
    prefix: Tensor | None  # [B, C, P, 2h, 2w], raw latents
    prompts: Prompts
    temporal_compression: int
    notes: tuple[str, ...]
    first_sigmas: Tensor | None  # of the first new chunk, where the model makes it in more steps
    lanes: dict[str, torch.device]  # of each of the schedule's lanes; empty: all on one device
    stream_names: dict[Hashable, str]  # where a memory is kept or continued, see `stream_names`
    about: State  # likewise, see `describe_take`

    @cached_property
    def estimate(self) -> Estimate:
        """From one dry run for each share that is needed; made once."""
        return estimate(self.take_plan)

    @property
    def take_bytes(self) -> int:
        """Peak bytes of the take on its busiest device, without weights and activations."""
        last = self.estimate.least[-1]
        return (
            self._busiest_device_bytes()
            + last.device_copied_bytes
            + max(chunk.row.feature_bytes for chunk in self.estimate.least)
            + last.latent_bytes
            + self._expected_extra_bytes()
        )

    def _busiest_device_bytes(self) -> int:
        """Least bytes of the cache on the device that holds most of it."""
        by_device = Counter()
        for lane, nbytes in self.estimate.lane_bytes.items():
            by_device[self.lanes.get(lane)] += nbytes
        return max(by_device.values())

    def _expected_extra_bytes(self) -> int:
        """Bytes expected beyond the least, where what stays depends on the picture."""
        least, most = self.estimate.needed
        if self.estimate.expected:
            return peaks(self.estimate.expected).needed - least
        return int(EXPECTED_SHARE * (most - least))

    def shape_to_load(self, model, latent_shape: tuple[int, ...], cache: bool = True) -> list[int]:
        """A latent shape whose memory, by the host's own estimate, is that of the largest
        forward and, with `cache`, of what the take holds.

        The host's estimate is linear in frames and knows no other unit, so bytes are stated as
        frames.
        """
        shape = [1, latent_shape[1], 1, *latent_shape[3:]]
        frame_bytes = model.model.memory_required(shape)
        held_bytes = self.take_bytes if cache else 0
        shape[2] = self.take_plan.frames_at_once + math.ceil(held_bytes / frame_bytes)
        return shape
