"""What is known of a take before its first forward, and everything that can be wrong with it."""

import math
from collections import Counter
from dataclasses import dataclass
from functools import cached_property

import comfy.model_management
import comfy.model_sampling
import comfy.samplers
import torch
from torch import Tensor

from ...kv_policies import Chunk, Geometry, KVPolicy, Take
from ...rollout.chunks import plan_chunks, plan_piece
from ...rollout.earlier_take import share_in
from ...rollout.estimate import Estimate, estimate, peaks
from ...rollout.memory_file import KVMemory
from ...rollout.setup import Setup
from ...rollout.timeline import prompt_frames
from ..budget.memory import token_bytes
from ..forward.attention import require_patched
from ..forward.conditioning import check_conditioning, check_levels
from ..forward.devices import check_lanes, lanes_of, roles_of_lanes
from ..forward.prompts import Prompts, arrange_prompts
from ..forward.roles import check_roles
from ..model.backbone import read_geometry, require_wan
from ..model.compute_dtype import compute_dtype
from ..model.profiles import ARProfile, profile_of
from .resume import check_memory, check_pauses, describe_take, given_before, stream_names

# of tokens that the picture decides on, where nothing is known: the paper's takes keep 14.6 %
# (arXiv 2609.39096)
EXPECTED_SHARE = 0.15


@dataclass(frozen=True)
class Plan:
    """Everything about a take that is known before its first forward."""

    policy: KVPolicy
    geometry: Geometry
    chunks: list[Chunk]
    take: Take
    prefix: Tensor | None  # [B, C, P, 2h, 2w], raw latents
    prompts: Prompts
    temporal_compression: int
    notes: tuple[str, ...]
    first_sigmas: Tensor | None  # of the first new chunk, where the model makes it in more steps
    lanes: dict  # the device of each of the schedule's lanes; none: all on one
    dtype: torch.dtype  # of keys and values
    piece: range  # numbers of the chunks to make in this run
    names: dict  # stream_names, where a memory is kept or continued
    about: dict  # describe_take, likewise
    memory: KVMemory | None  # from which the take goes on
    token_bytes: int  # see `memory.token_bytes`

    @property
    def setup(self) -> Setup:
        share = (
            share_in(self.memory, self.policy.retention, self.geometry, self.take)
            if self.memory
            else None
        )
        return Setup(
            self.policy,
            self.geometry,
            self.take,
            self.chunks,
            len(self.prompts.tracks),
            self.dtype,
            self.memory,
            self.piece,
            self.token_bytes,
            share,
            comfy.model_management.throw_exception_if_processing_interrupted,
        )

    @cached_property
    def estimate(self) -> Estimate:
        return estimate(self.setup)

    @property
    def take_bytes(self) -> int:
        """Bytes that keys and values take on the device that gets most, what moving or joining them
        holds twice, and the take's latents: at least, and what is expected beyond that, where it
        depends on the picture.
        """
        held = Counter()
        for lane, nbytes in self.estimate.lane_bytes.items():
            held[self.lanes.get(lane)] += nbytes
        least, most = self.estimate.needed
        more = (
            peaks(self.estimate.expected).needed - least
            if self.estimate.expected
            else int(EXPECTED_SHARE * (most - least))
        )
        return (
            max(held.values())
            + self.estimate.least[-1].device_copied_bytes
            + self.estimate.least[-1].latent_bytes
            + more
        )

    def shape_to_load(self, model, latent_shape: tuple[int, ...], cache: bool = True) -> list[int]:
        """The latent shape whose memory, by the host's estimate, is that of a chunk and of what the
        take holds.

        The estimate is linear in frames and knows no other unit, so the rest is stated as frames.
        """
        shape = [1, latent_shape[1], 1, *latent_shape[3:]]
        held = self.take_bytes if cache else 0
        shape[2] = self.policy.schedule.frames_at_once(self.geometry, self.take) + math.ceil(
            held / model.model.memory_required(shape)
        )
        return shape


def plan_take(
    guider,
    shape: tuple[int, ...],
    sigmas: Tensor,
    seed: int,
    *,
    policy: KVPolicy | None,
    chunk_frames: int,
    prefix: Tensor | None,
    control: Tensor | None,
    memory: KVMemory | None = None,
    stop_after: int = 0,
    keeps: str = "",
    noise_index: list[int] | None = None,
) -> Plan:
    """Check everything before any weight is moved. ValueError with a sentence.

    `policy` None and `chunk_frames` 0 take the model's profile; the others as in ARVideoSampler.
    """
    model = guider.model_patcher
    backbone, steps = check_call(guider, shape, sigmas), sigmas.tolist()
    profile = profile_of(guider.model_options)
    assumed = profile or ARProfile()
    chunk_frames = chunk_frames or assumed.chunk_frames
    policy = policy or assumed.policy()
    notes = (
        (assumed.note,) * bool(assumed.note)
        if profile
        else (
            f"This MODEL carries no AR profile: chunks of {chunk_frames} latent frames are a "
            "guess, and a model that was never trained to be rolled "
            "out, as Wan's own, gives a broken video. Put an AR Profile node in front.",
        )
    )
    first_sigmas = None
    if assumed.first_chunk_steps > len(steps) - 1:
        first_sigmas = comfy.samplers.calculate_sigmas(
            model.get_model_object("model_sampling"), "simple", assumed.first_chunk_steps
        )
        notes += (
            f"The first new chunk took {assumed.first_chunk_steps} steps, as the model was "
            "trained.",
        )
    notes += policy.schedule.notes(policy.models, assumed.noisy_history)
    prefix = given_latents(guider, shape, given_before(memory, prefix))
    given = 0 if prefix is None else prefix.shape[2]
    check_pauses(policy, shape, given, memory, stop_after, keeps)
    geometry = read_geometry(model, shape[3], shape[4], min(chunk_frames, shape[2]))
    before = memory.chunks if memory else ()
    chunks = plan_chunks(shape[2], chunk_frames, given, before)
    prompts, chunks, told = arrange_prompts(
        guider, chunks, policy, assumed.temporal_compression, len(before)
    )
    take = Take(shape[2], given, tuple(steps), seed, prompt_frames(chunks))
    policy.check(geometry, take)
    frames_at_once = policy.schedule.frames_at_once(geometry, take)
    check_options(guider.model_options, (*shape[:2], frames_at_once, *shape[3:]))
    check_conditioning(guider, model, control, shape, profile)
    if frames_at_once > geometry.chunk_frames:
        check_levels(
            guider, policy.schedule, assumed.first_chunk_steps if first_sigmas is not None else 0
        )
    check_roles(policy.models, guider, shape)
    lanes = lanes_of(model, policy, chunks, take.steps)
    check_lanes(lanes, policy, roles_of_lanes(policy, geometry, take), guider)
    names, about = {}, {}
    if memory or keeps:
        names = stream_names(guider, prompts)
        about = describe_take(
            guider,
            policy.models,
            assumed.name,
            geometry,
            policy,
            take,
            shape,
            prompts,
            noise_index,
            control,
        )
    if memory:
        notes += check_memory(
            memory, about, policy, geometry, take, chunks, names, compute_dtype(model)
        )
    piece = plan_piece(chunks, len(before), stop_after)
    return Plan(
        policy,
        geometry,
        chunks,
        take,
        prefix,
        prompts,
        assumed.temporal_compression,
        notes + told,
        first_sigmas,
        lanes,
        compute_dtype(model),
        piece,
        names,
        about,
        memory,
        token_bytes(shape[0], shape[1]),
    )


def check_call(guider, shape: tuple[int, ...], sigmas: Tensor):
    """What every take needs of its model, guider, latent and sigmas. Returns the backbone."""
    model = guider.model_patcher
    backbone = require_wan(model)
    require_patched(
        model, "This MODEL", "Put an AR Profile node between the loader and the sampler."
    )
    if getattr(guider, "uncond_model_patcher", None) is not None:
        raise ValueError(
            "This guider runs the negative prompt on a second model, and an AR take has caches "
            "for one. Use CFGGuider."
        )
    if len(shape) != 5 or 0 in shape:
        raise ValueError(
            "An AR video take needs a video latent [B, C, T, H, W], and this one has the shape "
            f"{list(shape)}. "
            "Use EmptyARVideoLatent or another video latent."
        )
    flow = model.get_model_object("model_sampling")
    if not isinstance(flow, comfy.model_sampling.CONST):
        raise ValueError(
            f"This MODEL is sampled by {type(flow).__name__}, and video models of the Wan family "
            "are made for rectified flow. "
            "Remove the ModelSampling node, or use ModelSamplingSD3."
        )
    check_sigmas(sigmas.tolist(), float(flow.sigma_max))
    channels = model.get_model_object("latent_format").latent_channels
    if shape[1] != channels:
        raise ValueError(
            f"The latent has {shape[1]} channels, this model's have {channels}. Use an empty "
            "latent, or one made for this model."
        )
    return backbone


def check_options(options: dict, shape: tuple[int, ...]):
    """Refuse what other nodes have left on the MODEL that changes which forwards there are; `shape`
    is the largest forward's, [B, C, F, 2h, 2w].
    """
    told, windows = options.get("transformer_options", {}), options.get("context_handler")
    if told.get("rope_options", {}).get("scale_t", 1.0) != 1.0:
        raise ValueError(
            "A ScaleROPE node stretches time inside a chunk, so chunks would overlap. Set its "
            "temporal scale to 1."
        )
    if "easycache" in told:
        raise ValueError(
            "An EasyCache or LazyCache node leaves out forwards, and a take remembers by its "
            "forwards. Remove it."
        )
    if windows is not None and windows.context_length < shape[windows.dim]:
        raise ValueError(
            f"A Context Windows node cuts into windows of {windows.context_length}, and "
            f"{shape[windows.dim]} belong together in a chunk "
            "here. Remove it: a take is made in chunks, and its KV policy says what they read."
        )


def check_sigmas(steps: list[float], most: float):
    """Finite, falling down to 0, and none above the model's own most noise; `steps` as they are
    given.
    """
    got = f"got {[round(s, 4) for s in steps]}. Use a scheduler node with denoise 1.0, or leave the sigmas input open."
    if not all(map(math.isfinite, steps)):
        raise ValueError(f"Sigmas must be numbers that are finite; {got}")
    if len(steps) < 2 or steps[-1] != 0 or any(a <= b for a, b in zip(steps, steps[1:])):
        raise ValueError(
            f"Sigmas must fall from step to step down to 0, and be at least two; {got}"
        )
    if steps[0] > most * 1.001:
        raise ValueError(
            f"This model's sigmas begin at {most:g} at most, and higher ones are another kind of "
            f"model's; {got}"
        )


def given_latents(guider, shape: tuple[int, ...], prefix: Tensor | None) -> Tensor | None:
    """The given latents: ours, or what the host's ARVideoI2V left on the model."""
    if prefix is None:
        prefix = (
            guider.model_options.get("transformer_options", {})
            .get("ar_config", {})
            .get("initial_latent")
        )
    if prefix is None:
        return None
    b, c, frames, h, w = shape
    if prefix.ndim != 5:
        raise ValueError(
            f"The prefix has the shape {list(prefix.shape)} and must be video latents [B, C, T, "
            "H, W]. "
            "Encode the start image or video with the take's own VAE."
        )
    if (prefix.shape[1], *prefix.shape[3:]) != (c, h, w):
        raise ValueError(
            f"The prefix latents have the shape {list(prefix.shape)}, the take {list(shape)}: "
            "channels, height and width "
            "must agree. Encode the start image or video at the size of the take."
        )
    if prefix.shape[0] not in (1, b):
        raise ValueError(
            f"The prefix has a batch of {prefix.shape[0]}, the take of {b}. Give one prefix, or "
            "one for each."
        )
    if prefix.shape[2] >= frames:
        raise ValueError(
            f"The prefix fills {prefix.shape[2]} of the take's {frames} latent frames, so nothing "
            "is left to make. "
            f"The latent's length counts given and new frames: use at least {prefix.shape[2] + 1}."
        )
    return prefix.expand(b, *prefix.shape[1:])
