"""Going on with a saved memory: what must be as it was, and the memory that a take leaves."""

import json
from dataclasses import replace

import torch
from torch import Tensor

from ...kv_policies import Chunk, Geometry, KVMemoryError, KVPolicy, Take
from ...kv_policies.state import damaged
from ...rollout.memory_file import KVMemory, stream_name
from ...rollout.session import Session
from ...rollout.stats import counted
from ..forward.prompts import Prompts
from ..model.compute_dtype import compute_dtype
from ..model.fingerprint import fingerprint, fingerprint_of_prompt, fingerprints_of_frames

# What must be the same, in the words of the refusal, and what to change where it is not.
SAME = {
    "model": ("the model {}", "Load that model, with the profile and the LoRAs it had."),
    "weights": (
        "weights of the fingerprint {}",
        "Load the same checkpoint, with the same LoRAs at the same strengths.",
    ),
    "latent": ("latents of {} (channels, height, width)", "Use a latent of the same size."),
    "geometry": ("the geometry {}", "Use the same model and chunk_frames."),
    "dtype": ("keys and values in {}", "Load the model with the same weight dtype."),
    "seed": ("the seed {}", "Set the seed as it was; a take's noise belongs to it."),
    "noise_index": ("the batch index {}", "Use a latent of the same batch index."),
    "sigmas": ("the noise levels {}", "Use the same steps, or connect the same sigmas."),
    "policy": ("the policy {}", "Connect the same policy with the same values."),
}
LEAVE = {
    "kv_memory": "disconnect kv_memory",
    "stream": "disconnect stream",
    "keep_memory": "turn keep_memory off",
}


def stream_names(guider, prompts: Prompts) -> dict:
    """A name that outlives the run for the key of each stream."""
    return {
        guider.conds[track.group][track.places[0]]["uuid"]: stream_name(i)
        for i, track in enumerate(prompts.tracks)
    }


def describe_take(
    guider,
    models: dict,
    name: str,
    geometry: Geometry,
    policy: KVPolicy,
    take: Take,
    shape: tuple[int, ...],
    prompts: Prompts,
    noise_index: list[int] | None,
    control: Tensor | None,
) -> dict:
    """What a memory tells of its take, in plain values; `shape` is the latent's, [B, C, T, 2h, 2w],
    and `control` [B, K, T, 2h, 2w].
    """
    texts = [
        [fingerprint_of_prompt(guider.conds[track.group][place]) for place in track.places]
        for track in prompts.tracks
    ]
    told = {
        "model": name,
        "weights": [fingerprint(model) for model in (guider.model_patcher, *models.values())],
        "geometry": {name: value for name, value in vars(geometry).items() if value is not None},
        "dtype": str(compute_dtype(guider.model_patcher)).removeprefix("torch."),
        "latent": [shape[1], *shape[3:]],
        "seed": take.seed,
        "noise_index": noise_index[0] if noise_index else 0,
        "sigmas": take.sigmas,
        "policy": replace(policy, storage=policy.storage.anywhere()).describe(),
        "plan": [take.total_frames, *take.prompt_frames],
        "prompts": texts,
        "control": fingerprints_of_frames(control),
    }
    return json.loads(json.dumps(told, default=repr))  # as it comes back from a file


def check_pauses(
    policy: KVPolicy,
    shape: tuple[int, ...],
    given_frames: int,
    memory: KVMemory | None,
    stop_after: int,
    keeps: str,
):
    """Refuse what cannot be made in pieces, or not in these.

    `shape` is the latent's, [B, C, T, 2h, 2w]; `keeps` names the input that asks for a memory.
    """
    if not (memory or stop_after or keeps):
        return
    asked = "kv_memory" if memory else "stop_after" if stop_after else keeps
    if not policy.schedule.pauses:
        raise ValueError(
            f"{type(policy.schedule).__name__} finishes no chunk before the last step of the "
            f"whole take, so {asked} has nothing to work "
            "on. Make the take in one run, or use another schedule."
        )
    if (memory or keeps) and shape[0] > 1:
        asked = "kv_memory" if memory else keeps
        raise ValueError(
            f"The latent has a batch of {shape[0]}, and a KV memory is that of one take. Use a "
            f"batch of 1, or {LEAVE[asked]}."
        )
    made = memory.frames if memory else given_frames
    if made < shape[2] and stop_after and not made < stop_after <= shape[2]:
        raise ValueError(
            f"stop_after is {stop_after}, with {made} latent frames given or made before and a "
            f"take of {shape[2]}. It counts from the "
            f"take's beginning: use {made + 1} to {shape[2]}, or 0 for all."
        )
    if made >= shape[2]:
        raise ValueError(
            f"The KV memory holds {made} latent frames and the latent has {shape[2]}, so nothing "
            "is left to make. "
            f"The latent counts the whole take: use at least {made + 1}."
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


def check_memory(
    memory: KVMemory,
    about: dict,
    policy: KVPolicy,
    geometry: Geometry,
    take: Take,
    chunks: list[Chunk],
    names: dict,
    dtype: torch.dtype,
) -> tuple[str, ...]:
    """Refuse a memory of another take, in a sentence; return what should be told of this one."""
    saved = {**memory.about, "policy": policy.completed(memory.about.get("policy"))}
    for key, (what, advice) in SAME.items():
        if saved.get(key) != about[key]:
            was, now = _differing(saved.get(key), about[key])
            raise KVMemoryError(
                f"The KV memory was saved with {what.format(was)}, and this take has {now}. "
                f"{advice}"
            )
    prompts, plan = memory.about.get("prompts"), memory.about.get("plan")
    if not isinstance(prompts, list) or len(prompts) != len(about["prompts"]):
        count = len(prompts) if isinstance(prompts, list) else 0
        raise KVMemoryError(
            f"The KV memory has {counted(count, 'prompt stream')}, and this take "
            f"{len(about['prompts'])}. "
            "Use as many prompts as it was saved with, and cfg on the same side of 1."
        )
    if not isinstance(plan, list) or not plan:
        raise damaged("it does not tell the take's length")
    if not policy.schedule.extends and plan != about["plan"]:
        raise KVMemoryError(
            f"{type(policy.schedule).__name__} plans by the take's length and by where prompts "
            f"begin, and these were {plan} in the "
            f"KV memory and are {about['plan']} now. Use the same length, and let prompts begin "
            "at the same places."
        )
    shots = [
        sorted({chunk.cue.shot for chunk in some})
        for some in (memory.chunks, chunks[: len(memory.chunks)])
    ]
    if shots[0] != shots[1]:
        raise KVMemoryError(
            f"The KV memory's take has shots that begin at latent frames {shots[0]}, and by the "
            "prompts they would begin at "
            f"{shots[1]}. What is made cannot be cut otherwise: let prompts cut where they did."
        )
    memory.check_carried(policy.schedule.carries(chunks, take.steps, len(memory.chunks)))
    # A session without storage takes it over like the real one: everything in it is checked before
    # any weight moves.
    Session(policy, geometry, take, dtype, torch.device("meta")).restore(memory.streams, names)
    notes = [
        f"Carried on at latent frame {memory.frames}, from a KV memory of "
        f"{memory.nbytes / 2**20:,.1f} MiB."
    ]
    # A prompt that comes in later changes nothing of what was made, and is told where it comes in.
    heard = 1 + sum(frame < memory.frames for frame in about["plan"][1:])
    if any(
        was not in [now[:count] for count in range(min(heard, len(now)), len(now) + 1)]
        for was, now in zip(prompts, about["prompts"])
    ):
        notes.append(
            "The prompts are not those that the KV memory was saved with: from latent frame "
            f"{memory.frames} on, the new ones hold."
        )
    was, now = memory.about.get("control"), about["control"]
    if isinstance(was, list) and was[: len(now)] != now[: len(was)]:
        notes.append(
            "The control is not the one that the KV memory was saved with: from latent frame "
            f"{memory.frames} on, the new one holds."
        )
    if plan[0] != take.total_frames:
        notes.append(
            f"The take was begun at {plan[0]} latent frames and goes on to {take.total_frames}: "
            "its noise is that of the new length, "
            "so it is not the take of one run."
        )
    return tuple(notes)


def _differing(was, now) -> tuple:
    """The parts of two descriptions that differ."""
    if not (isinstance(was, dict) and isinstance(now, dict)):
        return was, now
    if was.get("name") != now.get("name"):  # of two kinds of policy the values say nothing
        return was.get("name"), now.get("name")
    keys = [key for key in now if was.get(key) != now[key]] or list(was)
    parts = [_differing(was.get(key), now.get(key)) for key in keys]
    return tuple(
        ", ".join(f"{key} {part[side]}" for key, part in zip(keys, parts)) for side in (0, 1)
    )
