"""A take's estimate beside the memory of the device that it runs on, in numbers and in words."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property

from ...rollout.estimate import FORGOTTEN, KEPT, Estimate, PeakBytes, longest, peaks
from ...rollout.setup import Setup
from ...rollout.stats import counted

LONGEST = 2400  # latent frames, ten minutes: no longer take is looked for


@dataclass(frozen=True)
class Outlook:
    """All of it in bytes."""

    setup: Setup
    estimate: Estimate
    temporal_compression: int
    activations: int  # the host's own estimate for a forward of one prompt
    weights: int  # of the model, those still to be loaded
    free: int
    total: int
    # that a take can have: all of it, since weights can be offloaded; of main memory what is free
    most: int
    ram: int  # free main memory, for what is held there by choice

    @property
    def needed(self) -> tuple[int, int]:
        """On the device, cache, copies, the take's latents and activations: at least, and at most."""
        return tuple(size + self.activations for size in self.estimate.needed)

    @property
    def expected(self) -> PeakBytes | None:
        """Between these, where a share of what stays is known."""
        told = self.estimate.expected and peaks(self.estimate.expected)
        return told and told._replace(needed=told.needed + self.activations)

    @property
    def offloads(self) -> bool:
        """Whether unloading weights makes room."""
        return self.most == self.total

    @property
    def room(self) -> int:
        """For cache and copies, once the weights are loaded; 0 when they do not fit beside a
        forward.
        """
        return max(0, min(self.free - self.weights, self.most) - self.activations)

    @cached_property
    def longest(self) -> dict[str, tuple[int, int]]:
        """Latent frames of the longest take that surely fits, and of the longest that can when few
        tokens stay: beside the weights in what is "free", and alone in the "total" that a take can
        have.
        """
        at_best = self._longest(FORGOTTEN)
        surely = self._longest(KEPT) if self.setup.policy.retention.by_content else at_best
        return {where: (surely[where], frames) for where, frames in at_best.items()}

    @cached_property
    def expected_longest(self) -> dict[str, int] | None:
        return self._longest(self.setup.share) if self.expected else None

    def _longest(self, share: float) -> dict[str, int]:
        rooms = {"free": self.room, "total": self.most - self.activations}
        found = {
            room: longest(self.setup, room, LONGEST, self.ram, share)
            for room in set(rooms.values())
        }
        return {where: found[room] for where, room in rooms.items()}

    def line(self) -> str:
        """The plan in one line."""
        take, made, expected = (
            self.setup.take,
            len(self.setup.made),
            self.expected or PeakBytes(0, 0, 0),
        )
        return (
            f"{counted(take.total_frames, 'latent frame')} in "
            f"{counted(len(self.setup.chunks), 'chunk')}"
            f"{f' ({made} made before)' if made else ''}, "
            f"{counted(self.setup.streams, 'prompt stream')}: the KV cache takes "
            f"{span(self.estimate.allocated, expected.allocated)}{self._in_ram()}, with copies, "
            "latents and a chunk's activations "
            f"{span(self.needed, expected.needed)}; the device has {size(self.free)} free of "
            f"{size(self.total)}, and {size(self.weights)} of "
            "weights are to be loaded"
        )

    def _in_ram(self) -> str:
        return (
            f", {span(self.estimate.host)} of it in main memory, which has {size(self.ram)} free; "
            "on the device"
            if self.estimate.host[1]
            else ""
        )

    def report(self) -> str:
        """The estimate in words, for a node or a terminal."""
        last, latents = self.estimate.least[-1].row, self.setup.latent_bytes
        banks = ", ".join(
            f"{name} {size(nbytes)}"
            for name, nbytes in zip(self.estimate.bank_names, last.bank_bytes)
        )
        lanes = ", ".join(
            f"{name} {size(nbytes)}" for name, nbytes in self.estimate.lane_bytes.items()
        )
        peak = max(range(len(self.estimate.most)), key=lambda i: self.estimate.most[i].nbytes)
        lines = [
            self.line(),
            f"peak - {span(self.needed)} from chunk {peak + 1} of {len(self.setup.chunks)} on: "
            "buffers and rows held twice while they "
            f"move {span(tuple(needed - latents for needed in self.estimate.needed))}, all "
            f"latents of the take {size(latents)}, "
            f"activations {size(self.activations)}",
            f"buffers by memory - {lanes}",
            f"history at the last chunk - {banks}",
        ]
        if self.estimate.least is not self.estimate.most:
            share = (
                f"; {self.setup.share:.1%} of it is expected to stay, as in the earlier take"
                if self.expected
                else ""
            )
            lines.append(
                "what stays depends on the picture: from nothing that is scored to all of it"
                + share
            )
        places = {
            "free": "in what is free, beside the weights",
            "total": "on the whole device, with all weights offloaded",
        }
        told = [
            f"longest take {places[where]} - "
            f"{self._length(*frames, self.expected_longest and self.expected_longest[where])}"
            for where, frames in self.longest.items()
            if where == "free" or self.offloads
        ]
        return "\n".join([*lines, f"this take {self._verdict()}", *told])

    def _verdict(self) -> str:
        if self.estimate.host[0] > self.ram:
            return "does not fit in main memory: the sampler would refuse it"
        if self.needed[0] > self.most:
            return "does not fit on this device: the sampler would refuse it"
        if self.needed[1] <= self.most:
            beside = self.needed[1] <= self.room + self.activations
            return (
                "fits beside the weights"
                if beside
                else "fits when the host unloads other models or weights"
            )
        if self.expected is None:
            return "fits if the picture is predictable enough"
        return f"fits if the picture is {'as predictable as' if self.expected.needed <= self.most else 'more predictable than'} before"

    def _length(self, surely: int, at_best: int, expected: int | None) -> str:
        def told(frames: int) -> str:
            pixels = 1 + self.temporal_compression * (frames - 1)
            return (
                "none"
                if not frames
                else f"{frames} latent frames ({pixels} pixel frames)"
                + (", and longer" if frames == LONGEST else "")
            )

        if surely == at_best:
            return told(surely)
        return (
            f"surely {told(surely)}, "
            + ("" if expected is None else f"as expected {told(expected)}, ")
            + f"at best {told(at_best)}"
        )

    def _expected_dict(self) -> dict | None:
        """What is expected of the take, and by chunk."""
        if not self.expected:
            return None
        chunks = [
            {
                "bank_tokens": need.row.bank_tokens,
                "bank_bytes": need.row.bank_bytes,
                "allocated_bytes": need.row.allocated_bytes,
                "host_bytes": need.host_bytes,
                "needed_bytes": need.nbytes + self.activations,
            }
            for need in self.estimate.expected
        ]
        return {
            "share": self.setup.share,
            "allocated_bytes": self.expected.allocated,
            "needed_bytes": self.expected.needed,
            "host_bytes": self.expected.host,
            "longest_frames": self.expected_longest,
            "chunks": chunks,
        }

    def to_dict(self) -> dict:
        chunks = [
            {
                "index": least.row.index,
                "start_frame": least.row.start_frame,
                "frames": least.row.frames,
                "given": least.row.given,
                "bank_tokens": least.row.bank_tokens,
                "bank_bytes": least.row.bank_bytes,
                "most_bank_bytes": most.row.bank_bytes,
                "allocated_bytes": [least.row.allocated_bytes, most.row.allocated_bytes],
                "host_bytes": [least.host_bytes, most.host_bytes],
                "needed_bytes": [least.nbytes + self.activations, most.nbytes + self.activations],
            }
            for least, most in zip(self.estimate.least, self.estimate.most)
        ]
        return {
            "policy": self.setup.policy.describe(),
            "frames": self.setup.take.total_frames,
            "given_frames": self.setup.take.given_frames,
            "streams": self.setup.streams,
            "dtype": str(self.setup.dtype).removeprefix("torch."),
            "bank_names": self.estimate.bank_names,
            "lane_bytes": self.estimate.lane_bytes,
            "allocated_bytes": self.estimate.allocated,
            "needed_bytes": self.needed,
            "host_bytes": self.estimate.host,
            "free_host_bytes": self.ram,
            "activation_bytes": self.activations,
            "latent_bytes": self.setup.latent_bytes,
            "weight_bytes_to_load": self.weights,
            "free_bytes": self.free,
            "total_bytes": self.total,
            "longest_frames": {where: frames[1] for where, frames in self.longest.items()},
            "surely_longest_frames": {where: frames[0] for where, frames in self.longest.items()},
            "expected": self._expected_dict(),
            "chunks": chunks,
        }

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=1)


def size(nbytes: int) -> str:
    return f"{nbytes / 2**30:,.2f} GiB" if nbytes >= 2**30 else f"{nbytes / 2**20:,.1f} MiB"


def span(sizes: tuple[int, int], expected: int = 0) -> str:
    """At least and at most, in words, and what is expected, if that is known."""
    return (
        size(sizes[0])
        if sizes[0] == sizes[1]
        else f"{size(sizes[0])} to {size(sizes[1])}"
        + (f" (expected {size(expected)})" if expected else "")
    )
