"""The model calls of a take: guiders whose options carry the session, and what each forward needs
to know.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import comfy.model_management
import comfy.model_patcher
import comfy.patcher_extension
import comfy.samplers
import torch
from comfy.patcher_extension import WrappersMP
from torch import Tensor

from ...kv_policies import Chunk, Forward
from ...rollout.rollout import Model
from ...rollout.session import Session
from ..keys import FORWARD, LEVELS, RUN
from ..model.backbone import rotation
from .conditioning import active_conditionings
from .prompts import Prompts, stream_and_prompt


@dataclass(frozen=True)
class ForwardContext:
    """What the attention patch needs to know of one model call."""

    session: Session
    forward: Forward
    prompts: list  # of each batch row: its stream, and which prompt it hears
    rotation: Tensor
    text_is_constant: bool


def guided_model(
    guider,
    extra_args: dict,
    session: Session,
    noise_index: int,
    prompts: Prompts,
    keep_text: bool = True,
) -> Model:
    """The rollout's calls, over a guider whose model options carry the session."""
    options = take_options(guider, extra_args["model_options"], session, keep_text)
    seed = extra_args.get("seed") or 0

    def denoised(forward, x, sigma, frame_sigmas=None):
        now, model_options = (
            prompts.guider(guider, forward.chunk),
            carrying(options, forward, frame_sigmas),
        )
        with reaching_attention(session, forward):
            x0 = now(
                x, sigma * x.new_ones(1), model_options=model_options, seed=extra_args.get("seed")
            )
        # a forward's time is that of its work, not of queueing it
        comfy.model_management.synchronize()
        return x0

    def predict(forward, x, sigma):
        if sigma.ndim == 0:
            return denoised(forward, x, sigma)
        # The host knows one level for all frames. At 1 it gives x - v, of which each frame takes
        # its share; guidance is linear in v.
        return x - sigma[:, None, None] * (x - denoised(forward, x, sigma.new_tensor(1.0), sigma))

    def write(forward, x, sigma):
        # Every stream, also one that is off at this sigma.
        conds = [
            [
                {k: v for k, v in cond.items() if k not in ("timestep_start", "timestep_end")}
                for cond in group
            ]
            for group in active_conditionings(prompts.guider(guider, forward.chunk)).values()
        ]
        with reaching_attention(session, forward):
            comfy.samplers.calc_cond_batch(
                guider.inner_model, conds, x, x.new_full((1,), sigma), carrying(options, forward)
            )
        comfy.model_management.synchronize()

    def fresh_noise(number, step, like):
        # The host's AR sampler seeds the global generator so; ours gives the same numbers and
        # leaves the global one alone.
        generator = torch.Generator(like.device).manual_seed((seed + number * 1000 + step) % 2**64)
        for _ in range(noise_index + 1):
            noise = torch.randn(
                like.shape, generator=generator, device=like.device, dtype=like.dtype
            )
        return noise

    return Model(predict, write, fresh_noise)


@contextmanager
def reaching_attention(session: Session, forward: Forward) -> Iterator[None]:
    """Around a guider's or the host's call. ValueError, in a sentence, where it made no forward:
    what it wrote would be read as if it had.
    """
    before = session.forward_counts(forward.memory)
    yield
    if session.forward_counts(forward.memory) == before:
        raise ValueError(
            f"A forward of latent frames {forward.chunk.start_frame} to "
            f"{forward.chunk.end_frame - 1} did not reach the model's "
            "attention, and a take remembers by its forwards. Remove the node that leaves some "
            "out (TeaCache and its kin), or, "
            "where each prompt is for a part of the steps, add one for the others."
        )


def carrying(model_options: dict, forward: Forward, frame_sigmas: Tensor | None = None) -> dict:
    """Model options for one call, whose frames may be at noise levels of their own, `[F]`."""
    return {
        **model_options,
        "transformer_options": {
            **model_options["transformer_options"],
            FORWARD: forward,
            LEVELS: frame_sigmas,
        },
    }


def take_options(guider, model_options: dict, session: Session, keep_text: bool) -> dict:
    """Model options for one take: the caller's, with the session and the wrappers that bring it to
    each forward.
    """
    options = comfy.model_patcher.create_model_options_clone(model_options)
    options.pop(
        "multigpu_clones", None
    )  # one forward runs on one device: the host would split its prompts over them
    backbone, flow = (
        guider.model_patcher.get_model_object(name)
        for name in ("diffusion_model", "model_sampling")
    )
    text_is_constant = keep_text and not any(
        "hooks" in cond for group in guider.conds.values() for cond in group
    )
    table: dict[Chunk, Tensor] = {}  # rotation of the chunk in work

    def cut(value, chunk: Chunk):
        """The chunk's share of an input that has a frame for every latent frame of the take."""
        if (
            torch.is_tensor(value)
            and value.ndim == 5
            and value.shape[2] == session.take.total_frames
        ):
            return value[:, :, list(chunk.numbers)]
        return value

    def apply_model(
        executor,
        x,
        t,
        c_concat=None,
        c_crossattn=None,
        control=None,
        transformer_options={},
        **kwargs,
    ):
        forward = transformer_options[FORWARD]
        chunk = forward.chunk
        if chunk not in table:
            table.clear()
            table[chunk] = rotation(backbone, chunk, *x.shape[3:], x.device, transformer_options)
        context = ForwardContext(
            session,
            forward,
            [stream_and_prompt(uuid) for uuid in transformer_options["uuids"]],
            table[chunk],
            text_is_constant,
        )
        return executor(
            x,
            t,
            cut(c_concat, chunk),
            c_crossattn,
            control,
            {**transformer_options, RUN: context},
            **{name: cut(value, chunk) for name, value in kwargs.items()},
        )

    def diffusion_model(
        executor, x, timestep, context, clip_fea, time_dim_concat, transformer_options, **kwargs
    ):
        # One time step per frame, as the host's AR path computes them: the same numbers to the last
        # bit.
        levels = transformer_options[LEVELS]
        if levels is not None:
            timestep = flow.timestep(levels).to(timestep).expand(len(x), -1)
        elif timestep.ndim == 1:
            timestep = timestep[:, None].expand(-1, x.shape[2])
        return executor(
            x, timestep, context, clip_fea, time_dim_concat, transformer_options, **kwargs
        )

    for kind, wrapper in (
        (WrappersMP.APPLY_MODEL, apply_model),
        (WrappersMP.DIFFUSION_MODEL, diffusion_model),
    ):
        comfy.patcher_extension.add_wrapper_with_key(
            kind, RUN, wrapper, options, is_model_options=True
        )
    return options
