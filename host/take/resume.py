"""Going on from a saved memory: what it says of its take, and what must be as it was."""

import json
import math
from collections.abc import Hashable
from dataclasses import replace

import torch
from torch import Tensor

from ...kv_policies import KVMemoryError, KVPolicy, State
from ...kv_policies.state import damaged
from ...kv_policies.words import title_of
from ...rollout.memory_file import KVMemory, stream_name
from ...rollout.session import Session
from ...rollout.stats import counted
from ...rollout.take_plan import TakePlan
from ..forward.controls import values_of
from ..forward.prompts import Prompts
from ..model.fingerprint import fingerprint, fingerprint_of_prompt, fingerprints_of_frames
from .request import TakeRequest

# What must be as it was when a memory was saved: words of the refusal, and what to change.
SAME = {
    "model": ("the model {}", "Load that model, with the profile and the LoRAs it had."),
    "weights": (
        "weights of the fingerprint {}",
        "Load the same checkpoint, with the same LoRAs at the same strengths.",
    ),
    "latent": ("latents of {} (channels, height, width)", "Use a latent of the same size."),
    "geometry": ("the geometry {}", "Use the same model and chunk_frames."),
    "dtype": (
        "keys and values in {}",
        "Load the model with the same weight dtype, and let it compute in the same.",
    ),
    "seed": ("the seed {}", "Set the seed as it was; a take's noise belongs to it."),
    "noise_index": ("the batch index {}", "Use a latent of the same batch index."),
    "sigmas": ("the noise levels {}", "Use the same steps, or connect the same sigmas."),
    "policy": ("the policy {}", "Connect the same policy with the same values."),
}
# How to keep no memory, by the input that asks for one.
LEAVE = {
    "kv_memory": "disconnect kv_memory",
    "stream": "disconnect stream",
    "keep_memory": "turn keep_memory off",
}


def stream_names(guider, prompts: Prompts) -> dict[Hashable, str]:
    """For the id of each stream's first conditioning, a name that outlives the run."""
    return {
        guider.conds[track.group][track.places[0]]["uuid"]: stream_name(i)
        for i, track in enumerate(prompts.tracks)
    }


def describe_take(
    guider,
    plan: TakePlan,
    shape: tuple[int, ...],
    prompts: Prompts,
    model_name: str,
    request: TakeRequest,
) -> State:
    """What a saved memory says of its take, in plain values; `shape` is the latent's, [B, C, T, 2h,
    2w], and `model_name` is the profile's.
    """
    texts = [
        [fingerprint_of_prompt(guider.conds[track.group][place]) for place in track.places]
        for track in prompts.tracks
    ]
    models = (guider.model_patcher, *plan.policy.models.values())
    policy = replace(plan.policy, storage=plan.policy.storage.anywhere())
    about = {
        "model": model_name,
        "weights": [fingerprint(model) for model in models],
        "geometry": {
            name: value for name, value in vars(plan.geometry).items() if value is not None
        },
        "dtype": str(plan.dtype).removeprefix("torch."),
        "latent": [shape[1], *shape[3:]],
        "seed": plan.take.seed,
        "noise_index": request.noise_index[0] if request.noise_index else 0,
        "sigmas": plan.take.sigmas,
        "policy": policy.describe(),
        "plan": [plan.take.total_frames, *plan.take.prompt_frames],
        "prompts": texts,
        "control": fingerprints_of_frames(values_of(request.control)),
        "control_scale": getattr(request.control, "scale", None),
    }
    return json.loads(json.dumps(about, default=repr))  # as it comes back from a file


def check_pauses(
    policy: KVPolicy,
    shape: tuple[int, ...],
    given_frames: int,
    memory: KVMemory | None,
    stop_after: int,
    save_input: str,
):
    """Refuse what cannot be made in pieces, or not in these.

    `shape` is the latent's, [B, C, T, 2h, 2w]; `save_input` names the input that asks for a memory.
    """
    if not (memory or stop_after or save_input):
        return
    asking = "kv_memory" if memory else "stop_after" if stop_after else save_input
    if not policy.schedule.pauses:
        raise ValueError(
            f"{title_of(policy.schedule)} finishes no chunk before the last step of the "
            f"whole take, so {asking} has nothing to work "
            "on. Make the take in one run, or use another schedule."
        )
    if (memory or save_input) and shape[0] > 1:
        asking = "kv_memory" if memory else save_input
        raise ValueError(
            f"The latent has a batch of {shape[0]}, and a KV memory is that of one take. Use a "
            f"batch of 1, or {LEAVE[asking]}."
        )
    total = shape[2]
    first = memory.frames if memory else given_frames
    if first < total and stop_after and not first < stop_after <= total:
        raise ValueError(
            f"stop_after is {stop_after}, with {first} latent frames given or made before and a "
            f"take of {total}. It counts from the "
            f"take's beginning: use {first + 1} to {total}, or 0 for all."
        )
    if first >= total:
        raise ValueError(
            f"The KV memory holds {first} latent frames and the latent has {total}, so nothing "
            "is left to make. "
            f"The latent counts the whole take: use at least {first + 1}."
        )


def given_before(memory: KVMemory | None, prefix: Tensor | None) -> Tensor | None:
    """The prefix of a take that goes on: the one it began with."""
    if memory is None:
        return prefix
    if prefix is not None and (
        memory.prefix is None
        or prefix.shape != memory.prefix.shape
        or not torch.equal(prefix.cpu(), memory.prefix)
    ):
        raise KVMemoryError(
            "The prefix is not the one that the KV memory's take began with. Leave the prefix "
            "open, or connect the same."
        )
    return memory.prefix


def check_memory(plan: TakePlan, about: State, names: dict[Hashable, str]) -> tuple[str, ...]:
    """Refuse, in a sentence, a memory from which the planned take cannot go on; return notes.

    `about` describes the planned take, as `memory.about` does the one that was saved.
    """
    memory = plan.memory
    _check_same(plan, about)
    _check_scale(memory, about)
    _check_prompts(memory, about)
    _check_length(plan, about)
    _check_shots(plan)
    carried = plan.policy.schedule.carries(plan.chunks, plan.take.steps, len(memory.chunks))
    memory.check_carried(carried)
    # A session without content takes the memory over like the real one, which checks all of it.
    session = Session(plan.policy, plan.geometry, plan.take, plan.dtype, torch.device("meta"))
    session.restore(memory.streams, names)
    return _notes(plan, about)


def _check_same(plan: TakePlan, about: State):
    saved = plan.memory.about
    saved = {**saved, "policy": plan.policy.completed(saved.get("policy"))}
    for key, (what, advice) in SAME.items():
        if saved.get(key) != about[key]:
            before, now = _differing(saved.get(key), about[key])
            raise KVMemoryError(
                f"The KV memory was saved with {what.format(before)}, and this take has {now}. "
                f"{advice}"
            )


def _check_scale(memory: KVMemory, about: State):
    """A camera's steps are told as shares of a scale, which is the take's and no path's."""
    before, now = memory.about.get("control_scale"), about["control_scale"]
    if before is not None and not (isinstance(before, float) and 0 < before < math.inf):
        raise damaged(f"its camera's scale is {before!r}")
    if before is not None and now is not None and not math.isclose(before, now, rel_tol=1e-5):
        raise KVMemoryError(
            f"The KV memory's camera moved by shares of {before:g}, and this one's are of {now:g}, "
            f"so the same step would be another one. Set scale in World Camera to {before!r}."
        )


def _check_prompts(memory: KVMemory, about: State):
    prompts = memory.about.get("prompts")
    if not isinstance(prompts, list) or len(prompts) != len(about["prompts"]):
        count = len(prompts) if isinstance(prompts, list) else 0
        raise KVMemoryError(
            f"The KV memory has {counted(count, 'prompt stream')}, and this take "
            f"{len(about['prompts'])}. "
            "Use as many prompts as it was saved with, and cfg on the same side of 1."
        )


def _check_length(plan: TakePlan, about: State):
    before = plan.memory.about.get("plan")
    schedule = plan.policy.schedule
    if not isinstance(before, list) or not before:
        raise damaged("it does not tell the take's length")
    if not schedule.extends and before != about["plan"]:
        raise KVMemoryError(
            f"{title_of(schedule)} plans by the take's length and by where prompts begin, "
            f"and these were {before} in the KV memory and are {about['plan']} now. Use the same "
            "length, and let prompts begin at the same places."
        )


def _check_shots(plan: TakePlan):
    finished = plan.memory.chunks
    before = sorted({chunk.cue.shot for chunk in finished})
    now = sorted({chunk.cue.shot for chunk in plan.chunks[: len(finished)]})
    if before != now:
        raise KVMemoryError(
            f"The KV memory's take has shots that begin at latent frames {before}, and by the "
            f"prompts they would begin at {now}. What is made cannot be cut otherwise: let "
            "prompts cut where they did."
        )


def _notes(plan: TakePlan, about: State) -> tuple[str, ...]:
    """What a user should know of a take that goes on."""
    memory = plan.memory
    notes = [
        f"Carried on at latent frame {memory.frames}, from a KV memory of "
        f"{memory.nbytes / 2**20:,.1f} MiB."
    ]
    if _prompts_changed(memory, about):
        notes.append(
            "The prompts are not those that the KV memory was saved with: from latent frame "
            f"{memory.frames} on, the new ones hold."
        )
    before = memory.about.get("control")
    now = about["control"]
    if isinstance(before, list) and before[: len(now)] != now[: len(before)]:
        notes.append(
            "The control is not the one that the KV memory was saved with: from latent frame "
            f"{memory.frames} on, the new one holds."
        )
    frames_before = memory.about["plan"][0]
    if frames_before != plan.take.total_frames:
        notes.append(
            f"The take was begun at {frames_before} latent frames and goes on to "
            f"{plan.take.total_frames}: its noise is that of the new length, "
            "so it is not the take of one run."
        )
    return tuple(notes)


def _prompts_changed(memory: KVMemory, about: State) -> bool:
    """Whether a prompt that was in force in the finished chunks differs.

    A prompt that begins later changes nothing of what was made, and may be new or gone.
    """
    begun = 1 + sum(frame < memory.frames for frame in about["plan"][1:])
    for before, now in zip(memory.about["prompts"], about["prompts"]):
        lengths = range(min(begun, len(now)), len(now) + 1)
        if before not in [now[:length] for length in lengths]:
            return True
    return False


def _differing(before, now) -> tuple:
    """The parts of two descriptions that differ."""
    if not (isinstance(before, dict) and isinstance(now, dict)):
        return before, now
    if before.get("name") != now.get("name"):  # values of two kinds of policy say nothing
        return before.get("name"), now.get("name")
    keys = [key for key in now if before.get(key) != now[key]] or list(before)
    parts = [_differing(before.get(key), now.get(key)) for key in keys]
    return tuple(
        ", ".join(f"{key} {part[side]}" for key, part in zip(keys, parts)) for side in (0, 1)
    )
