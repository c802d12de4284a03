"""A take inside ComfyUI: from a guider's sampling call down to the rollout, and back."""
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass

import comfy.model_patcher
import comfy.patcher_extension
import comfy.samplers
import torch
from comfy.patcher_extension import WrappersMP
from torch import Tensor

from ..kv_policies import Chunk, Forward, Geometry, KVPolicy, Take
from ..kv_policies.flash_forward import ANCHORS
from ..rollout.loop import Model, Rollout, plan_chunks, run
from ..rollout.session import Session
from ..rollout.stats import KVStats, Trace
from .attention import RUN, is_patched
from .backbone import read_geometry, require_wan, rotation
from .conditioning import active_conditionings, check_conditioning, conditioning_of_item
from .first_chunk import refine_first_chunk
from .profiles import ARProfile, profile_of
from .roles import ROLES, Turns, check_roles, guider_of_role, role_notes, split_roles

FORWARD = "keepsake_forward"         # key in transformer_options: what this model call works on


@dataclass(frozen=True)
class Plan:
    """Everything about a take that is known before its first forward."""

    policy: KVPolicy
    geometry: Geometry
    chunks: list[Chunk]
    take: Take
    prefix: Tensor | None            # [B, C, P, 2h, 2w], raw latents
    streams: int
    temporal_compression: int
    notes: tuple[str, ...]
    first_sigmas: Tensor | None      # of the first new chunk, where the model makes it in more steps
    models: dict                     # the host's MODELs of roles that the sampler's does not play

    def cache_bytes(self, element_size: int) -> int:
        """Bytes of keys and values that are allocated at first, over all streams."""
        memories = self.policy.schedule.memories(self.policy.retention, self.geometry, self.take)
        return self.streams * sum(bank.nbytes(self.geometry, element_size) for banks in memories.values() for bank in banks)

    def shape_to_load(self, model, latent_shape: tuple[int, ...], cache: bool = True) -> list[int]:
        """The latent shape whose memory, by the host's estimate, is that of a chunk and of the cache.

        The estimate is linear in frames and knows no other unit, so the cache is stated as frames.
        """
        shape = [1, latent_shape[1], 1, *latent_shape[3:]]
        cached = self.cache_bytes(model.model.get_dtype_inference().itemsize) if cache else 0
        shape[2] = self.geometry.chunk_frames + math.ceil(cached / model.model.memory_required(shape))
        return shape


@dataclass(frozen=True)
class ForwardContext:
    """What the attention patch needs to know of one model call."""

    session: Session
    forward: Forward
    streams: list                    # conditioning id of each batch row
    rotation: Tensor
    text_is_constant: bool


def require_finite(chunk: Chunk, latents: Tensor):
    """End a take that has gone black at once, and not after its last chunk."""
    if not torch.isfinite(latents).all():
        raise ValueError(f"Latent frames {chunk.start_frame} to {chunk.end_frame - 1} are not finite numbers. The weights do not fit this "
                         "model class, or the dtype overflows: try another weight dtype, and the profile that belongs to the checkpoint.")


def log_stats(stats: KVStats):
    logging.info("Keepsake: %s", stats.report().replace("\n", "; "))


class ARVideoSampler(comfy.samplers.Sampler):
    """Chunk by chunk sampling with a KV policy, as a host SAMPLER. Holds parameters only."""

    def __init__(self, policy: KVPolicy | None = None, chunk_frames: int = 0, prefix: Tensor | None = None,
                 control: Tensor | None = None, noise_index: list[int] | None = None,
                 on_stats: Callable[[KVStats], None] = log_stats):
        """`policy` None and `chunk_frames` 0 take the model's profile. `prefix` [B, C, P, 2h, 2w] raw latents,
        `control` [B, K, T, 2h, 2w]; `noise_index` numbers the batch items' noise."""
        self.policy, self.chunk_frames, self.prefix, self.control = policy, chunk_frames, prefix, control
        self.noise_index, self.on_stats = noise_index, on_stats

    def plan(self, guider, shape: tuple[int, ...], sigmas: Tensor, seed: int = 0) -> Plan:
        """Check everything that can be wrong before any weight is moved. ValueError with a sentence."""
        model = guider.model_patcher
        backbone = require_wan(model)
        if not is_patched(model):
            raise ValueError("This MODEL has not been prepared for AR sampling. Put an AR Profile node between the loader and the sampler.")
        if model.get_additional_models_with_key("multigpu"):
            raise ValueError("An AR take runs on one device so far, and this MODEL is spread over several. Bypass the multi-GPU node.")
        if getattr(guider, "uncond_model_patcher", None) is not None:
            raise ValueError("This guider runs the negative prompt on a second model, and an AR take has caches for one. Use CFGGuider.")
        if len(shape) != 5:
            raise ValueError(f"An AR video take needs a video latent [B, C, T, H, W], and this one has the shape {list(shape)}. "
                             "Use EmptyARVideoLatent or another video latent.")
        steps = sigmas.tolist()
        if len(steps) < 2 or steps[-1] != 0 or any(a <= b for a, b in zip(steps, steps[1:])):
            raise ValueError(f"Sigmas must fall from step to step down to 0, and be at least two; got {[round(s, 4) for s in steps]}. "
                             "Use a scheduler node with denoise 1.0, or leave the sigmas input open.")
        if guider.model_options.get("transformer_options", {}).get("rope_options", {}).get("scale_t", 1.0) != 1.0:
            raise ValueError("A ScaleROPE node stretches time inside a chunk, so chunks would overlap. Set its temporal scale to 1.")
        channels = model.get_model_object("latent_format").latent_channels
        if shape[1] != channels:
            raise ValueError(f"The latent has {shape[1]} channels, this model's have {channels}. Use an empty latent, or one made for this model.")
        profile = profile_of(guider.model_options)
        assumed = profile or ARProfile()
        chunk_frames = self.chunk_frames or assumed.chunk_frames
        policy, models = split_roles(self.policy or assumed.policy())
        notes = (assumed.note,) * bool(assumed.note) if profile else (
            f"This MODEL carries no AR profile: chunks of {chunk_frames} latent frames are a guess, and a model that was never trained to be rolled "
            "out, as Wan's own, gives a broken video. Put an AR Profile node in front.",)
        first_sigmas = None
        if assumed.first_chunk_steps > len(steps) - 1:
            first_sigmas = comfy.samplers.calculate_sigmas(model.get_model_object("model_sampling"), "simple", assumed.first_chunk_steps)
            notes += (f"The first new chunk took {assumed.first_chunk_steps} steps, as the model was trained.",)
        notes += role_notes(policy, models, assumed)
        prefix = self._prefix(guider, shape)
        given = 0 if prefix is None else prefix.shape[2]
        geometry = read_geometry(backbone, shape[3], shape[4], min(chunk_frames, shape[2]))
        take = Take(shape[2], given, tuple(steps), seed)
        policy.retention.check(geometry, take)
        policy.selection.check(geometry, take)
        policy.schedule.check(policy, geometry, take)
        check_conditioning(guider, model, self.control, shape, profile)
        check_roles(models, guider, shape)
        return Plan(policy, geometry, plan_chunks(shape[2], chunk_frames, given), take, prefix, sum(map(len, active_conditionings(guider))),
                    assumed.temporal_compression, notes, first_sigmas, models)

    def _prefix(self, guider, shape) -> Tensor | None:
        """The given latents: ours, or what the host's ARVideoI2V left on the model."""
        prefix = self.prefix
        if prefix is None:
            prefix = guider.model_options.get("transformer_options", {}).get("ar_config", {}).get("initial_latent")
        if prefix is None:
            return None
        b, c, frames, h, w = shape
        if prefix.ndim != 5:
            raise ValueError(f"The prefix has the shape {list(prefix.shape)} and must be video latents [B, C, T, H, W]. "
                             "Encode the start image or video with the take's own VAE.")
        if (prefix.shape[1], *prefix.shape[3:]) != (c, h, w):
            raise ValueError(f"The prefix latents have the shape {list(prefix.shape)}, the take {list(shape)}: channels, height and width "
                             "must agree. Encode the start image or video at the size of the take.")
        if prefix.shape[0] not in (1, b):
            raise ValueError(f"The prefix has a batch of {prefix.shape[0]}, the take of {b}. Give one prefix, or one for each.")
        if prefix.shape[2] >= frames:
            raise ValueError(f"The prefix fills {prefix.shape[2]} of the take's {frames} latent frames, so nothing is left to make. "
                             f"The latent's length counts given and new frames: use at least {prefix.shape[2] + 1}.")
        return prefix.expand(b, *prefix.shape[1:])

    def sample(self, model_wrap, sigmas, extra_args, callback, noise, latent_image=None, denoise_mask=None, disable_pbar=False):
        """The host's sampler call; `model_wrap` is its guider, `noise` [B, C, T, 2h, 2w]. Returns latents of that shape."""
        plan, inner = self.plan(model_wrap, tuple(noise.shape), sigmas, extra_args.get("seed") or 0), model_wrap.inner_model
        flow = inner.model_sampling
        x = flow.noise_scaling(sigmas[0], noise, latent_image, self.max_denoise(model_wrap, sigmas))
        given = prefix = None
        if plan.prefix is not None:
            given = inner.process_latent_in(plan.prefix).to(x.device, x.dtype)
            prefix = given.to(inner.get_dtype_inference()).to(x.dtype)      # what the host's own AR sampler feeds
        trace, progress = Trace(), Progress(callback, len(x) * plan.policy.schedule.reports(plan.chunks, plan.take.steps))
        output, shape = torch.empty_like(x), tuple(noise.shape)
        roles = {role: guider_of_role(model, model_wrap, sigmas, noise, latent_image, extra_args.get("seed")) for role, model in plan.models.items()}
        turns = Turns(model_wrap, lambda model, cache: plan.shape_to_load(model, shape, cache))
        conds = [(guider, guider.conds) for guider in (model_wrap, *roles.values())]
        try:
            for item in range(len(x)):
                trace.item, one = item, slice(item, item + 1)
                for guider, of_batch in conds:
                    guider.conds = conditioning_of_item(of_batch, item, len(x))
                session = Session(plan.policy, plan.geometry, plan.take, inner.get_dtype_inference(), x.device)
                index = self.noise_index[item] if self.noise_index else item
                model = model_of_roles(model_wrap, extra_args, session, index, roles, turns)
                if plan.first_sigmas is not None:
                    first = next(chunk for chunk in plan.chunks if not chunk.given)
                    model = refine_first_chunk(model, first, sigmas, plan.first_sigmas.to(sigmas))
                rollout = Rollout(plan.chunks, sigmas, x[one], None if prefix is None else prefix[one], model, session, trace, progress)
                for chunk, latents in run(rollout, session, trace):
                    require_finite(chunk, latents)
                    output[one, :, chunk.start_frame:chunk.end_frame] = latents
        finally:
            turns.close()
            for guider, of_batch in conds:
                guider.conds = of_batch
        if given is not None:
            output[:, :, :given.shape[2]] = given            # given frames come out as they came in, to the last bit
        self.on_stats(KVStats(plan.policy.describe(), plan.geometry, str(inner.get_dtype_inference()).removeprefix("torch."),
                              plan.take.steps, plan.temporal_compression, trace.streams, tuple(trace.rows), sum(row.seconds for row in trace.rows),
                              trace.peak_cache_bytes, (*plan.notes, *trace.notes), trace.scores, tuple(noise.shape[3:]), tuple(trace.memory_maps)))
        return flow.inverse_noise_scaling(sigmas[-1], output)


class Progress:
    """Counts given chunks, and chunks x steps of new ones, for the host's callback. A preview that fails never ends a run."""

    def __init__(self, callback, total: int):
        self.callback, self.total, self.done = callback, total, 0

    def __call__(self, chunk: Chunk, step: int, x0: Tensor, x: Tensor):
        if self.callback is None:
            return
        try:
            self.callback(self.done, x0, x, self.total)
        except Exception:                # an interrupt is a BaseException and passes
            logging.warning("Keepsake: the preview failed and is off for the rest of this take.", exc_info=True)
            self.callback = None
        self.done += 1


def model_of_roles(guider, extra_args: dict, session: Session, noise_index: int, roles: dict, turns: Turns) -> Model:
    """The rollout's calls, over the take's guider, or over one for each role where `roles` has any."""
    if not roles:
        return guided_model(guider, extra_args, session, noise_index)
    planner, renderer = (roles.get(role, guider) for role in ROLES)
    # A stream keeps text keys of one model; the planner has few forwards, so its are computed anew.
    models = {player: guided_model(player, extra_args if player is guider else {**extra_args, "model_options": player.model_options}, session,
                                   noise_index, keep_text=player is renderer) for player in (planner, renderer)}

    def model_for(forward: Forward) -> Model:
        player = planner if forward.memory == ANCHORS else renderer
        turns.take(player, cache=not session.streams)        # the first forward allocates the cache
        return models[player]

    return Model(lambda forward, x, sigma: model_for(forward).predict(forward, x, sigma),
                 lambda forward, x, sigma: model_for(forward).write(forward, x, sigma), models[renderer].noise)


def guided_model(guider, extra_args: dict, session: Session, noise_index: int, keep_text: bool = True) -> Model:
    """The rollout's calls, over a guider whose model options carry the session."""
    options = take_options(guider, extra_args["model_options"], session, keep_text)
    seed = extra_args.get("seed") or 0

    def predict(forward, x, sigma):
        return guider(x, sigma * x.new_ones(1), model_options=carrying(options, forward), seed=extra_args.get("seed"))

    def write(forward, x, sigma):
        conds = [[{k: v for k, v in cond.items() if k not in ("timestep_start", "timestep_end")} for cond in group]
                 for group in active_conditionings(guider)]       # every stream, also one that is off at this sigma
        comfy.samplers.calc_cond_batch(guider.inner_model, conds, x, x.new_full((1,), sigma), carrying(options, forward))

    def fresh_noise(number, step, like):
        # The host's AR sampler seeds the global generator so; ours gives the same numbers and leaves the global one alone.
        generator = torch.Generator(like.device).manual_seed((seed + number * 1000 + step) % 2 ** 64)
        for _ in range(noise_index + 1):
            noise = torch.randn(like.shape, generator=generator, device=like.device, dtype=like.dtype)
        return noise

    return Model(predict, write, fresh_noise)


def carrying(model_options: dict, forward: Forward) -> dict:
    """Model options for one call."""
    return {**model_options, "transformer_options": {**model_options["transformer_options"], FORWARD: forward}}


def take_options(guider, model_options: dict, session: Session, keep_text: bool) -> dict:
    """Model options for one take: the caller's, with the session and the wrappers that bring it to each forward."""
    options = comfy.model_patcher.create_model_options_clone(model_options)
    backbone = guider.model_patcher.get_model_object("diffusion_model")
    text_is_constant = keep_text and not any("hooks" in cond for group in guider.conds.values() for cond in group)
    table: dict[Chunk, Tensor] = {}              # rotation of the chunk in work

    def cut(value, chunk: Chunk):
        """The chunk's share of an input that has a frame for every latent frame of the take."""
        if torch.is_tensor(value) and value.ndim == 5 and value.shape[2] == session.take.total_frames:
            return value[:, :, chunk.start_frame:chunk.end_frame:chunk.stride]
        return value

    def apply_model(executor, x, t, c_concat=None, c_crossattn=None, control=None, transformer_options={}, **kwargs):
        forward = transformer_options[FORWARD]
        chunk = forward.chunk
        if chunk not in table:
            table.clear()
            table[chunk] = rotation(backbone, chunk, *x.shape[3:], x.device, transformer_options)
        context = ForwardContext(session, forward, transformer_options["uuids"], table[chunk], text_is_constant)
        return executor(x, t, cut(c_concat, chunk), c_crossattn, control, {**transformer_options, RUN: context},
                        **{name: cut(value, chunk) for name, value in kwargs.items()})

    def diffusion_model(executor, x, timestep, *args, **kwargs):
        # One time step per frame, as the host's AR path computes them: the same numbers to the last bit.
        if timestep.ndim == 1:
            timestep = timestep[:, None].expand(-1, x.shape[2])
        return executor(x, timestep, *args, **kwargs)

    for kind, wrapper in ((WrappersMP.APPLY_MODEL, apply_model), (WrappersMP.DIFFUSION_MODEL, diffusion_model)):
        comfy.patcher_extension.add_wrapper_with_key(kind, RUN, wrapper, options, is_model_options=True)
    return options
