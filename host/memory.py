"""What a take needs of its device, and what the device has."""
from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property

import comfy.model_management
import torch

from ..kv_policies import KVPolicy, Take
from ..rollout.chunks import plan_chunks
from ..rollout.estimate import FORGOTTEN, KEPT, Estimate, Setup, estimate, longest
from .backbone import read_geometry, require_wan
from .profiles import ARProfile, profile_of
from .roles import split_roles

LONGEST = 2400                       # latent frames, ten minutes: no longer take is looked for
MARGIN = .05                         # of free main memory, which everything else on the machine uses too


@dataclass(frozen=True)
class Outlook:
    """A take's estimate beside the memory of the device that it runs on, in bytes."""

    setup: Setup
    estimate: Estimate
    temporal_compression: int
    activations: int                 # the host's own estimate for a forward of one prompt
    weights: int                     # of the model, those still to be loaded
    free: int
    total: int
    most: int                        # that a take can have: all of it, since weights can be offloaded; of main memory what is free
    ram: int                         # free main memory, for what is held there by choice

    @property
    def needed(self) -> tuple[int, int]:
        """On the device, cache, copies and activations: at least, and at most."""
        return tuple(size + self.activations for size in self.estimate.needed)

    @property
    def offloads(self) -> bool:
        """Whether unloading weights makes room."""
        return self.most == self.total

    @property
    def room(self) -> int:
        """For cache and copies, once the weights are loaded; 0 when they do not fit beside a forward."""
        return max(0, min(self.free - self.weights, self.most) - self.activations)

    @cached_property
    def longest(self) -> dict[str, tuple[int, int]]:
        """Latent frames of the longest take that surely fits, and of the longest that can when few tokens stay: beside the weights in what is
        "free", and alone in the "total" that a take can have."""
        needs = (KEPT, FORGOTTEN) if self.setup.policy.retention.by_content else (FORGOTTEN,)
        rooms = {"free": self.room, "total": self.most - self.activations}
        found = {room: [longest(self.setup, room, LONGEST, self.ram, latent) for latent in needs] for room in set(rooms.values())}
        return {where: (found[room][0], found[room][-1]) for where, room in rooms.items()}

    def line(self) -> str:
        """The plan in one line."""
        take, made = self.setup.take, len(self.setup.made)
        return (f"{take.total_frames} latent frames in {len(self.setup.chunks)} chunks{f' ({made} made before)' if made else ''}, "
                f"{self.setup.streams} prompt stream(s): the KV cache takes {span(self.estimate.allocated)}{self._in_ram()}, with copies and a chunk's "
                f"activations {span(self.needed)}; the device has {size(self.free)} free of {size(self.total)}, and {size(self.weights)} of weights "
                "are to be loaded")

    def _in_ram(self) -> str:
        return f", {span(self.estimate.host)} of it in main memory, which has {size(self.ram)} free; on the device" if self.estimate.host[1] else ""

    def report(self) -> str:
        """The estimate in words, for a node or a terminal."""
        last = self.estimate.least[-1].row
        banks = ", ".join(f"{name} {size(nbytes)}" for name, nbytes in zip(self.estimate.bank_names, last.bank_bytes))
        lanes = ", ".join(f"{name} {size(nbytes)}" for name, nbytes in self.estimate.lane_bytes.items())
        peak = max(range(len(self.estimate.most)), key=lambda i: self.estimate.most[i].nbytes)
        lines = [self.line(),
                 f"peak - {span(self.needed)} from chunk {peak + 1} of {len(self.setup.chunks)} on: buffers and rows held twice while they "
                 f"move {span(self.estimate.needed)}, activations {size(self.activations)}",
                 f"buffers by memory - {lanes}",
                 f"history at the last chunk - {banks}"]
        if self.estimate.least is not self.estimate.most:
            lines.append("what stays depends on the picture: from nothing that is scored to all of it")
        verdict = ("does not fit in main memory: the sampler would refuse it" if self.estimate.host[0] > self.ram else
                   "fits beside the weights" if self.needed[1] <= self.room + self.activations else
                   "fits when the host unloads other models or weights" if self.needed[1] <= self.most else
                   "fits if the picture is predictable enough" if self.needed[0] <= self.most else "does not fit on this device: the sampler would refuse it")
        places = {"free": "in what is free, beside the weights", "total": "on the whole device, with all weights offloaded"}
        told = [f"longest take {places[where]} - {self._length(*frames)}" for where, frames in self.longest.items() if where == "free" or self.offloads]
        return "\n".join([*lines, f"this take {verdict}", *told])

    def _length(self, surely: int, at_best: int) -> str:
        def told(frames: int) -> str:
            pixels = 1 + self.temporal_compression * (frames - 1)
            return "none" if not frames else f"{frames} latent frames ({pixels} pixel frames)" + (", and longer" if frames == LONGEST else "")

        return told(surely) if surely == at_best else f"surely {told(surely)}, at best {told(at_best)}"

    def to_dict(self) -> dict:
        chunks = [{"index": least.row.index, "start_frame": least.row.start_frame, "frames": least.row.frames, "given": least.row.given,
                   "bank_tokens": least.row.bank_tokens, "bank_bytes": least.row.bank_bytes, "most_bank_bytes": most.row.bank_bytes,
                   "allocated_bytes": [least.row.allocated_bytes, most.row.allocated_bytes], "host_bytes": [least.host_bytes, most.host_bytes],
                   "needed_bytes": [least.nbytes + self.activations, most.nbytes + self.activations]}
                  for least, most in zip(self.estimate.least, self.estimate.most)]
        return {"policy": self.setup.policy.describe(), "frames": self.setup.take.total_frames, "given_frames": self.setup.take.given_frames,
                "streams": self.setup.streams, "dtype": str(self.setup.dtype).removeprefix("torch."), "bank_names": self.estimate.bank_names,
                "lane_bytes": self.estimate.lane_bytes, "allocated_bytes": self.estimate.allocated, "needed_bytes": self.needed,
                "host_bytes": self.estimate.host, "free_host_bytes": self.ram,
                "activation_bytes": self.activations, "weight_bytes_to_load": self.weights, "free_bytes": self.free, "total_bytes": self.total,
                "longest_frames": {where: frames[1] for where, frames in self.longest.items()},
                "surely_longest_frames": {where: frames[0] for where, frames in self.longest.items()}, "chunks": chunks}

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=1)


def size(nbytes: int) -> str:
    return f"{nbytes / 2 ** 30:,.2f} GiB" if nbytes >= 2 ** 30 else f"{nbytes / 2 ** 20:,.1f} MiB"


def span(sizes: tuple[int, int]) -> str:
    """At least and at most, in words."""
    return size(sizes[0]) if sizes[0] == sizes[1] else f"{size(sizes[0])} to {size(sizes[1])}"


def activation_bytes(model, setup: Setup, latent_size: tuple[int, int]) -> int:
    frames = setup.policy.schedule.frames_at_once(setup.geometry, setup.take)
    return int(model.model.memory_required([1, model.get_model_object("latent_format").latent_channels, frames, *latent_size]))


def outlook(model, setup: Setup, latent_size: tuple[int, int], temporal_compression: int, known: Estimate | None = None,
            lanes: dict | None = None) -> Outlook:
    """`model` is the host's MODEL, `latent_size` height and width of the take's latents; `lanes` gives devices, whose memory is added up."""
    known, activations = known or estimate(setup), activation_bytes(model, setup, latent_size)
    weights = 0 if model.load_device == model.offload_device else model.model_size() - model.loaded_size()
    devices = {model.load_device, *(lanes or {}).values()}
    free, total = (sum(map(function, devices)) for function in (comfy.model_management.get_free_memory, comfy.model_management.get_total_memory))
    ram, most = comfy.model_management.get_free_memory(torch.device("cpu")), total
    if model.load_device.type in ("cpu", "mps"):             # whose memory is the main one: there is nothing to offload into
        ram, most = max(0, ram - activations - known.needed[0]), max(0, int(free * (1 - MARGIN)) - weights)
    return Outlook(setup, known, temporal_compression, activations, max(0, weights), free, total, most, ram)


def outlook_of_inputs(model, latent: dict, *, steps: int, cfg: float, chunk_frames: int, policy: KVPolicy | None, prefix: dict | None,
                      prompts: int) -> Outlook:
    """The outlook of a take from a node's inputs, as the sampler takes them; `prompts` positive ones, and a negative at a `cfg` that is not 1."""
    profile = profile_of(model.model_options) or ARProfile()
    policy, _ = split_roles(policy or profile.policy())
    shape, given = latent["samples"].shape, 0 if prefix is None else prefix["samples"].shape[2]
    if len(shape) != 5 or given >= shape[2]:
        raise ValueError(f"The latent has the shape {list(shape)} and the prefix {given} latent frames. An estimate needs a video latent [B, C, T, H, W] "
                         "that is longer than its prefix.")
    chunk_frames = min(chunk_frames or profile.chunk_frames, shape[2])
    take = Take(shape[2], given, tuple(profile.take_sigmas(model.get_model_object("model_sampling"), steps).tolist()), 0)
    setup = Setup(policy, read_geometry(require_wan(model), *shape[3:], chunk_frames), take, plan_chunks(shape[2], chunk_frames, given),
                  prompts + (cfg != 1), model.model.get_dtype_inference(), on_chunk=comfy.model_management.throw_exception_if_processing_interrupted)
    setup.check()
    return outlook(model, setup, tuple(shape[3:]), profile.temporal_compression)
