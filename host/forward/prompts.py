"""Prompts that change in time, on the host's conditionings: made by the nodes, sorted into streams,
and mixed for each chunk.
"""

import copy
from dataclasses import dataclass

import comfy.conds
import node_helpers
import torch
import torch.nn.functional as functional

from ...kv_policies import Chunk, KVPolicy
from ...rollout.timeline import Mix, PromptStart, parse_timeline, plan_prompts
from ..keys import PROMPT_START
from .conditioning import active_conditionings

OWN = (PROMPT_START, "uuid", "model_conds")  # what may differ between equal prompts


def prompt_timeline(
    clip, text: str, fps: float, mode: str, blend: int, recache_frames: int
) -> list:
    """A CONDITIONING with the prompt of every line."""
    out = []
    for start, prompt in parse_timeline(text, fps, mode, blend, recache_frames):
        out += node_helpers.conditioning_set_values(
            clip.encode_from_tokens_scheduled(clip.tokenize(prompt)), {PROMPT_START: start}
        )
    return out


def add_prompt(
    conditioning: list, prompt: list, start_frame: int, mode: str, blend: int, recache_frames: int
) -> list:
    """A CONDITIONING that goes over to `prompt` at a latent frame."""
    start = PromptStart(start_frame, mode, blend, recache_frames)
    if any(PROMPT_START in options for _, options in prompt):
        raise ValueError(
            "The prompt to go over to is a timeline itself. Connect a plain prompt, and the "
            "timeline as what is so far."
        )
    return conditioning + node_helpers.conditioning_set_values(prompt, {PROMPT_START: start})


@dataclass(frozen=True)
class Stream:
    """One conditioning branch through a take: a cache, and the prompts that it hears one after the
    other.
    """

    group: str  # the guider's name for it: positive, negative ...
    places: tuple[int, ...]  # of its prompts in that group
    starts: tuple[PromptStart, ...]


@dataclass(frozen=True)
class Prompts:
    """Which prompts each chunk hears, by its number `Chunk.prompt`."""

    streams: tuple[Stream, ...]
    heard: tuple[tuple[Mix, ...], ...]  # by number, by stream

    def guider(self, guider, chunk: Chunk):
        """The guider with nothing but the prompts in force; it itself where they never change."""
        if not any(PROMPT_START in cond for group in guider.conds.values() for cond in group):
            return guider
        now = copy.copy(guider)
        now.conds = {**guider.conds, **{stream.group: [] for stream in self.streams}}
        for stream, mix in zip(self.streams, self.heard[chunk.prompt]):
            group = guider.conds[stream.group]
            cond = _mixed(
                group[stream.places[mix.number - 1]], group[stream.places[mix.number]], mix.weight
            )
            now.conds[stream.group].append({**cond, "uuid": (group[stream.places[0]]["uuid"], mix)})
        return now


def prompt_name(group: str) -> str:
    """What notes call the prompts of a guider's group."""
    return "prompt" if group == "positive" else f"{group} prompt"


def stream_and_prompt(uuid) -> tuple:
    """What a batch row's id tells: its stream, and the prompt that it hears now."""
    return uuid if isinstance(uuid, tuple) else (uuid, uuid)


def _mixed(before: dict, after: dict, weight: float) -> dict:
    """The prompt `after`, its text mixed with that of `before`."""
    if weight == 1:
        return after
    old, new = before["model_conds"]["c_crossattn"].cond, after["model_conds"]["c_crossattn"]
    length = max(old.shape[1], new.cond.shape[1])
    old, text = (
        functional.pad(t, (0, 0, 0, length - t.shape[1])) for t in (old, new.cond)
    )  # the model pads texts with zeros as well
    return {
        **after,
        "model_conds": {
            **after["model_conds"],
            "c_crossattn": new._copy_with(torch.lerp(old, text, weight)),
        },
    }


def arrange_prompts(
    guider, chunks: list[Chunk], policy: KVPolicy, compression: int, made: int
) -> tuple[Prompts, list[Chunk], tuple[str, ...]]:
    """Sort the guider's conditionings into streams and mark the chunks with the prompts in force;
    also notes, on those after the first `made`. ValueError with a sentence.
    """
    streams, notes = [], []
    for name, group in active_conditionings(guider).items():
        found, told = _streams_of(name, group, compression)
        streams, notes = streams + found, notes + told
    if not streams:
        raise ValueError(
            "No prompt reaches the sampler: its conditionings are empty. Connect a prompt to "
            "positive."
        )
    marked, heard, told = plan_prompts(
        chunks,
        [list(stream.starts) for stream in streams],
        compression,
        made,
        [prompt_name(stream.group) for stream in streams],
    )
    allowed, name = policy.schedule.switches, type(policy.schedule).__name__
    for chunk in marked:
        if chunk.switch and chunk.switch.mode not in allowed:
            raise ValueError(
                f"The prompt changes at latent frame {chunk.start_frame} by {chunk.switch.mode}, "
                f"which {name} cannot do. "
                f"Use {' or '.join(allowed) or 'one prompt'}, or another schedule."
            )
    return Prompts(tuple(streams), tuple(heard)), marked, (*notes, *told)


def _streams_of(name: str, group: list[dict], compression: int) -> tuple[list[Stream], list[str]]:
    """The i-th conditioning of each start belongs to stream i."""
    by_start: dict[int, list[int]] = {}
    for place, cond in enumerate(group):
        by_start.setdefault(cond.get(PROMPT_START, PromptStart(0)).frame(compression), []).append(
            place
        )
    counts = {frame: len(places) for frame, places in sorted(by_start.items())}
    if len(set(counts.values())) > 1:
        told = ", ".join(f"{count} at latent frame {frame}" for frame, count in counts.items())
        raise ValueError(
            f"The {name} prompts do not pair up in time: of those that begin there are {told}. "
            "Where two Prompt At Frame nodes of one "
            "chain have the same start_frame, give each its own; combine timelines that change at "
            "the same frames."
        )
    streams, notes = [], []
    for places in zip(*(by_start[frame] for frame in counts)):
        kept = [places[0]]
        for place in places[1:]:
            start = group[place][PROMPT_START]
            if start.mode != "cut" and _equal(group[kept[-1]], group[place]):
                notes.append(
                    f"The {prompt_name(name)} of {start.told(compression)} is the one in force, "
                    "so nothing was done."
                )
            else:
                kept.append(place)
        streams.append(
            Stream(
                name,
                tuple(kept),
                tuple(group[place].get(PROMPT_START, PromptStart(0)) for place in kept),
            )
        )
    return streams, notes


def _equal(a: dict, b: dict) -> bool:
    return comfy.conds.is_equal(
        *({key: value for key, value in cond.items() if key not in OWN} for cond in (a, b))
    )
