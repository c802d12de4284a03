"""Planning a take: everything that is known of it, and can be wrong with it, before its first
forward.
"""

from dataclasses import replace

import comfy.model_management
import comfy.samplers
from torch import Tensor

from ...kv_policies import KVPolicy, Take
from ...rollout.chunks import plan_chunks, plan_piece
from ...rollout.earlier_take import share_in
from ...rollout.take_plan import TakePlan
from ...rollout.timeline import prompt_frames
from ..budget.budget import token_bytes
from ..forward.conditioning import check_conditioning, check_levels
from ..forward.controls import Control, poses_of, require_poses
from ..forward.devices import check_lanes, lanes_of, roles_of_lanes
from ..forward.prompts import Prompts, arrange_prompts
from ..forward.roles import check_roles
from ..model.backbone import read_geometry
from ..model.compute_dtype import compute_dtype
from ..model.profiles import ARProfile, profile_of
from .checks import check_call, check_options, given_latents, sparse_attention_notes
from .plan import HostPlan
from .request import TakeRequest
from .resume import check_memory, check_pauses, describe_take, given_before, stream_names
from .sampling_call import SamplingCall


def plan_take(guider, call: SamplingCall, request: TakeRequest) -> HostPlan:
    """Check everything and plan the take before any weight moves. ValueError with a sentence.

    Each step relies on what the steps before it have checked.
    """
    memory = request.memory
    shape = call.shape
    # 1. The sampling call: a model, a latent and noise levels that AR sampling can use.
    check_call(guider, call)
    # 2. What the request leaves open comes from the model's profile.
    profile = profile_of(guider.model_options)
    defaults = profile or ARProfile()
    chunk_frames = request.chunk_frames or defaults.chunk_frames
    policy = request.policy or defaults.policy()
    first_sigmas = sigmas_of_first_chunk(guider.model_patcher, defaults, call.steps)
    # 3. The frames that are there already, given or made in an earlier run.
    prefix = given_latents(guider, shape, given_before(memory, request.prefix))
    given_frames = 0 if prefix is None else prefix.shape[2]
    check_pauses(policy, shape, given_frames, memory, request.stop_after, request.save_input)
    # 4. Chunks, the prompts in force in each, and whether the policy works with them.
    take_plan, prompts, prompt_notes = plan_chunks_and_prompts(
        guider, call, request, policy, chunk_frames, given_frames, defaults
    )
    # 5. The MODEL's options, the conditionings, the MODELs of roles, and the devices.
    check_inputs(guider, shape, take_plan, request.control, profile, first_sigmas)
    check_roles(policy.models, guider, shape)
    lanes = lanes_of(guider.model_patcher, policy, take_plan.chunks, call.steps)
    roles = roles_of_lanes(policy, take_plan.geometry, take_plan.take)
    check_lanes(lanes, policy, roles, guider)
    # 6. The memory that the take goes on from or leaves.
    names = {}
    about = {}
    memory_notes = ()
    if memory or request.save_input:
        names = stream_names(guider, prompts)
        about = describe_take(guider, take_plan, shape, prompts, defaults.name, request)
    if memory:
        memory_notes = check_memory(take_plan, about, names)
        share = share_in(memory, policy.retention, take_plan.geometry, take_plan.take)
        take_plan = replace(take_plan, share=share)
    # 7. All of it in one value.
    return HostPlan(
        call=call,
        take_plan=take_plan,
        prefix=prefix,
        prompts=prompts,
        temporal_compression=defaults.temporal_compression,
        notes=(
            *profile_notes(profile, chunk_frames, first_sigmas),
            *policy.schedule.notes(policy.models, defaults.noisy_history),
            *sparse_attention_notes(guider.model_patcher, len(take_plan.chunks)),
            *memory_notes,
            *prompt_notes,
        ),
        first_sigmas=first_sigmas,
        lanes=lanes,
        stream_names=names,
        about=about,
    )


def plan_chunks_and_prompts(
    guider,
    call: SamplingCall,
    request: TakeRequest,
    policy: KVPolicy,
    chunk_frames: int,
    given_frames: int,
    profile: ARProfile,
) -> tuple[TakePlan, Prompts, tuple[str, ...]]:
    """What the bytes of the take depend on, its prompts, and notes on them."""
    model = guider.model_patcher
    shape = call.shape
    total = call.shape[2]
    geometry = read_geometry(model, shape[3], shape[4], min(chunk_frames, total))
    finished = request.memory.chunks if request.memory else ()
    chunks = plan_chunks(total, chunk_frames, given_frames, finished)
    prompts, chunks, notes = arrange_prompts(
        guider,
        chunks,
        policy,
        profile.temporal_compression,
        len(finished),
        profile.recache == "together",
    )
    require_poses(policy.retention, request.control)
    take = Take(
        total_frames=total,
        given_frames=given_frames,
        sigmas=call.sigmas,
        seed=call.seed,
        prompt_frames=prompt_frames(chunks),
        poses=poses_of(request.control),
    )
    policy.check(geometry, take)
    plan = TakePlan(
        policy=policy,
        geometry=geometry,
        take=take,
        chunks=chunks,
        streams=len(prompts.tracks),
        dtype=compute_dtype(model),
        memory=request.memory,
        piece=plan_piece(chunks, len(finished), request.stop_after),
        token_bytes=token_bytes(shape[0], shape[1]),
        on_chunk=comfy.model_management.throw_exception_if_processing_interrupted,
    )
    return plan, prompts, notes


def sigmas_of_first_chunk(model, profile: ARProfile, steps: int) -> Tensor | None:
    """The noise levels of the first new chunk, where the profile gives it more steps than `steps`;
    else None.
    """
    if profile.first_chunk_steps <= steps:
        return None
    flow = model.get_model_object("model_sampling")
    return comfy.samplers.calculate_sigmas(flow, "simple", profile.first_chunk_steps)


def check_inputs(
    guider,
    shape: tuple[int, ...],
    plan: TakePlan,
    control: Control | None,
    profile: ARProfile | None,
    first_sigmas: Tensor | None,
):
    """Refuse options of the MODEL, conditionings and a control that chunks cannot be made with."""
    schedule = plan.policy.schedule
    frames_in_step = schedule.frames_at_once(plan.geometry, plan.take)  # without a recache
    check_options(guider.model_options, (*shape[:2], plan.frames_at_once, *shape[3:]))
    check_conditioning(guider, guider.model_patcher, control, shape, profile)
    if frames_in_step > plan.geometry.chunk_frames:
        check_levels(guider, schedule, 0 if first_sigmas is None else len(first_sigmas) - 1)


def profile_notes(
    profile: ARProfile | None, chunk_frames: int, first_sigmas: Tensor | None
) -> tuple[str, ...]:
    """What a user should know of a take under this profile."""
    notes = []
    if profile is None:
        notes.append(
            f"This MODEL carries no AR profile: chunks of {chunk_frames} latent frames are a "
            "guess, and a model that was never trained to be rolled "
            "out, as Wan's own, gives a broken video. Put an AR Profile node in front."
        )
    elif profile.note:
        notes.append(profile.note)
    if first_sigmas is not None:
        notes.append(
            f"The first new chunk took {len(first_sigmas) - 1} steps, as the model was trained."
        )
    return tuple(notes)
