"""The model calls of a take: guiders whose options carry the session, and what each forward needs
to know.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import comfy.model_management
import comfy.model_patcher
import comfy.patcher_extension
import comfy.samplers
import torch
from comfy.patcher_extension import WrappersMP
from torch import Tensor

from ...kv_policies import Forward, Span
from ...rollout.rollout import Model
from ...rollout.session import Session
from ..keys import FORWARD, LEVELS, RUN, STREAMS
from ..model.backbone import rotation
from .conditioning import active_conditionings, has_hooks
from .features import tapped
from .forward_context import ForwardContext
from .prompts import Prompts, stream_and_prompt


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

    def denoised(forward: Forward, x: Tensor, sigma: Tensor, frame_sigmas: Tensor | None = None):
        cue_guider = prompts.guider(guider, forward.cue)
        model_options = carrying(options, forward, frame_sigmas)
        with reaching_attention(session, forward):
            x0 = cue_guider(
                x, sigma * x.new_ones(1), model_options=model_options, seed=extra_args.get("seed")
            )
        # A forward's time is that of its work, not of queueing it.
        comfy.model_management.synchronize()
        return x0

    def predict(forward: Forward, x: Tensor, sigma: Tensor) -> Tensor:
        if sigma.ndim == 0:
            return denoised(forward, x, sigma)
        # The host knows one level for all frames. At 1 it gives x - v, of which each frame takes
        # its share; guidance is linear in v.
        return x - sigma[:, None, None] * (x - denoised(forward, x, sigma.new_tensor(1.0), sigma))

    def write(forward: Forward, x: Tensor, sigma: float):
        # Every stream, also one that is off at this sigma.
        groups = active_conditionings(prompts.guider(guider, forward.cue)).values()
        conds = [[_at_every_level(cond) for cond in group] for group in groups]
        with reaching_attention(session, forward):
            comfy.samplers.calc_cond_batch(
                guider.inner_model, conds, x, x.new_full((1,), sigma), carrying(options, forward)
            )
        comfy.model_management.synchronize()

    def fresh_noise(number: int, step: int, like: Tensor) -> Tensor:
        # The host's AR sampler seeds the global generator so; ours gives the same numbers and
        # leaves the global one alone.
        generator = torch.Generator(like.device).manual_seed((seed + number * 1000 + step) % 2**64)
        # The items of a batch share the seed and draw one after the other. So draw up to this item,
        # number `noise_index`, and use the last draw.
        for _ in range(noise_index + 1):
            noise = torch.randn(
                like.shape, generator=generator, device=like.device, dtype=like.dtype
            )
        return noise

    return Model(predict, write, fresh_noise)


def _at_every_level(cond: dict) -> dict:
    """A conditioning without its range of noise levels."""
    ranges = ("timestep_start", "timestep_end")
    return {key: value for key, value in cond.items() if key not in ranges}


@contextmanager
def reaching_attention(session: Session, forward: Forward) -> Iterator[None]:
    """Around a guider's or the host's call. ValueError, in a sentence, where it made no forward:
    what it wrote would be read as if it had.
    """
    before = session.forward_counts(forward.cache)
    yield
    if session.forward_counts(forward.cache) == before:
        raise ValueError(
            f"A forward of latent frames {forward.span.numbers[0]} to "
            f"{forward.span.numbers[-1]} did not reach the model's "
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
            STREAMS: set(),
        },
    }


def _is_extra(prompts: list, streams: set) -> list[bool]:
    """Of each batch row, whether its stream is among those that have run in this call already; they
    are added.
    """
    extra = []
    for stream, _ in prompts:
        extra.append(stream in streams)
        streams.add(stream)
    return extra


def take_options(guider, model_options: dict, session: Session, keep_text: bool) -> dict:
    """Model options for one take: the caller's, with the session and the wrappers that bring it to
    each forward.
    """
    options = comfy.model_patcher.create_model_options_clone(model_options)
    # One forward runs on one device: the host would split its prompts over several.
    options.pop("multigpu_clones", None)
    text_is_constant = keep_text and not has_hooks(guider)
    wrappers = TakeWrappers(guider.model_patcher, session, text_is_constant)
    for kind, wrapper in (
        (WrappersMP.APPLY_MODEL, wrappers.apply_model),
        (WrappersMP.DIFFUSION_MODEL, wrappers.diffusion_model),
    ):
        comfy.patcher_extension.add_wrapper_with_key(
            kind, RUN, wrapper, options, is_model_options=True
        )
    return options


class TakeWrappers:
    """The host's wrappers around each forward of a take on one model."""

    def __init__(self, model, session: Session, text_is_constant: bool):
        self.backbone = model.get_model_object("diffusion_model")
        self.flow = model.get_model_object("model_sampling")
        self.session = session
        self.text_is_constant = text_is_constant
        self.span: Span | None = None  # in work
        self.made: dict[str, Tensor] = {}  # for it, see `ForwardContext.once_a_span`

    def apply_model(
        self,
        executor,
        x,
        t,
        c_concat=None,
        c_crossattn=None,
        control=None,
        transformer_options={},
        **kwargs,
    ):
        """Give the attention patch its context, and the model its span's share of each input."""
        forward = transformer_options[FORWARD]
        prompts = [stream_and_prompt(uuid) for uuid in transformer_options["uuids"]]
        if forward.span != self.span:
            self.span, self.made = forward.span, {}
        run = ForwardContext(
            session=self.session,
            forward=forward,
            prompts=prompts,
            is_extra=_is_extra(prompts, transformer_options[STREAMS]),
            rotation=self._rotation(forward.span, x, transformer_options),
            text_is_constant=self.text_is_constant,
            made=self.made,
        )
        # An extra forward of a guider is computed: it leaves out layers, or its like is not run at
        # every step.
        has_features = forward.features and not any(run.is_extra)
        with tapped(self.backbone, run) if has_features else nullcontext():
            return executor(
                x,
                t,
                self._cut(c_concat, forward.span),
                c_crossattn,
                control,
                {**transformer_options, RUN: run},
                **{name: self._cut(value, forward.span) for name, value in kwargs.items()},
            )

    def diffusion_model(
        self,
        executor,
        x,
        timestep,
        context,
        clip_fea,
        time_dim_concat,
        transformer_options,
        **kwargs,
    ):
        """One time step per frame, as the host's AR path computes them: the same numbers to the
        last bit.
        """
        levels = transformer_options[LEVELS]
        if levels is not None:
            timestep = self.flow.timestep(levels).to(timestep).expand(len(x), -1)
        elif timestep.ndim == 1:
            timestep = timestep[:, None].expand(-1, x.shape[2])
        return executor(
            x, timestep, context, clip_fea, time_dim_concat, transformer_options, **kwargs
        )

    def _rotation(self, span: Span, x: Tensor, transformer_options: dict) -> Tensor:
        if "rotation" not in self.made:
            size = x.shape[3:]
            self.made["rotation"] = rotation(
                self.backbone, span, *size, x.device, transformer_options
            )
        return self.made["rotation"]

    def _cut(self, value, span: Span):
        """The span's share of an input that has a frame for every latent frame of the take."""
        is_by_frame = torch.is_tensor(value) and value.ndim == 5
        if is_by_frame and value.shape[2] == self.session.take.total_frames:
            return value[:, :, list(span.numbers)]
        return value
