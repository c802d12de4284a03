"""The budget of a take: its estimate beside the memory that the device has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import comfy.model_management
import torch

from ...rollout.estimate import FORGOTTEN, KEPT, Estimate, PeakBytes, longest_take, peaks
from ...rollout.take_plan import TakePlan

LENGTH_LIMIT = 2400  # latent frames, ten minutes: no longer take is looked for
MARGIN = 0.05  # share of free main memory that is left to everything else on the machine
# How often a sampling call holds the latents of the whole take: noise, start latent, the mixture
# of both, and the output.
LATENT_COPIES = 4


def token_bytes(batch: int, channels: int) -> int:
    """Bytes of latents on the device for one token: `LATENT_COPIES` times 2x2 fp32 numbers in each
    channel of each batch item.
    """
    return LATENT_COPIES * batch * channels * 2 * 2 * 4


def activation_bytes(model, plan: TakePlan, latent_size: tuple[int, int]) -> int:
    """The host's own estimate for one forward of one prompt; `latent_size` is (height, width)."""
    channels = model.get_model_object("latent_format").latent_channels
    frames = plan.frames_at_once
    return int(model.model.memory_required([1, channels, frames, *latent_size]))


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What a take needs and what its device has, in bytes."""

    plan: TakePlan
    estimate: Estimate
    temporal_compression: int
    activation_bytes: int
    weight_bytes: int  # of the model's weights, those still to be loaded
    free_bytes: int  # of the device, now
    total_bytes: int  # of the device
    # What a take can have at most: the whole device, since weights can be offloaded; where the
    # device's memory is the main memory, what is free of it.
    usable_bytes: int
    main_bytes: int  # free main memory, for a history that KV Storage puts there

    @property
    def needed(self) -> tuple[int, int]:
        """At least and at most on the device: caches, copies, the take's latents, activations."""
        least, most = self.estimate.needed
        return least + self.activation_bytes, most + self.activation_bytes

    @property
    def expected(self) -> PeakBytes | None:
        """The same peaks as expected, where the plan has a share of what stays."""
        if not self.estimate.expected:
            return None
        expected = peaks(self.estimate.expected)
        return expected._replace(needed=expected.needed + self.activation_bytes)

    @property
    def offloads(self) -> bool:
        """Whether unloading weights makes room."""
        return self.usable_bytes == self.total_bytes

    @property
    def room(self) -> int:
        """Left for caches, copies and latents beside loaded weights and a forward; at least 0."""
        beside_weights = min(self.free_bytes - self.weight_bytes, self.usable_bytes)
        return max(0, beside_weights - self.activation_bytes)

    @property
    def most_room(self) -> int:
        """The same with all weights offloaded."""
        return self.usable_bytes - self.activation_bytes

    @cached_property
    def longest(self) -> dict[str, tuple[int, int]]:
        """Latent frames of the longest take that surely fits, and of the longest that fits if as
        few tokens stay as possible: "free" beside the weights, "total" with weights offloaded.
        """
        at_best = self._longest_by_place(FORGOTTEN)
        surely = self._longest_by_place(KEPT) if self.plan.policy.retention.by_content else at_best
        return {where: (surely[where], frames) for where, frames in at_best.items()}

    @cached_property
    def expected_longest(self) -> dict[str, int] | None:
        return self._longest_by_place(self.plan.share) if self.expected else None

    def _longest_by_place(self, share: float) -> dict[str, int]:
        rooms = {"free": self.room, "total": self.most_room}
        frames = {
            room: longest_take(self.plan, room, LENGTH_LIMIT, self.main_bytes, share)
            for room in set(rooms.values())
        }
        return {where: frames[room] for where, room in rooms.items()}


def budget_of(
    model,
    plan: TakePlan,
    estimate: Estimate,
    latent_size: tuple[int, int],
    temporal_compression: int,
    lanes: Mapping[str, torch.device] = {},
) -> Budget:
    """The budget of a take on the devices of a host's MODEL, as they are now.

    `latent_size` is (height, width); the memory of the devices in `lanes` is added up.
    """
    activations = activation_bytes(model, plan, latent_size)
    weights = 0
    if model.load_device != model.offload_device:
        weights = max(0, model.model_size() - model.loaded_size())
    management = comfy.model_management
    devices = {model.load_device, *lanes.values()}
    free = sum(management.get_free_memory(device) for device in devices)
    total = usable = sum(management.get_total_memory(device) for device in devices)
    main = management.get_free_memory(torch.device("cpu"))
    if model.load_device.type in ("cpu", "mps"):  # main memory: nothing to offload into
        usable = max(0, int(free * (1 - MARGIN)) - weights)
        main = max(0, main - activations - estimate.needed[0])
    return Budget(
        plan=plan,
        estimate=estimate,
        temporal_compression=temporal_compression,
        activation_bytes=activations,
        weight_bytes=weights,
        free_bytes=free,
        total_bytes=total,
        usable_bytes=usable,
        main_bytes=main,
    )
