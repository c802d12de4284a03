"""Prompts that change in time, on the host's conditionings: made by the nodes, sorted into streams,
and mixed for each chunk.
"""

import copy
from dataclasses import dataclass

import comfy.conds
import node_helpers
import torch
import torch.nn.functional as functional

from ...kv_policies import Chunk, Cue, KVPolicy
from ...kv_policies.words import title_of
from ...rollout.timeline import Mix, PromptStart, parse_timeline, plan_prompts
from ..keys import PROMPT_START
from .conditioning import active_conditionings, prompt_name

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
class PromptTrack:
    """The prompts of one conditioning branch (a stream), one after the other in time."""

    group: str  # the guider's name for it: positive, negative ...
    places: tuple[int, ...]  # of its prompts in that group
    starts: tuple[PromptStart, ...]


@dataclass(frozen=True)
class Prompts:
    """All prompts of a take, and which are in force, by `Cue.prompt`."""

    tracks: tuple[PromptTrack, ...]
    mixes: tuple[tuple[Mix, ...], ...]  # by number, by track

    def guider(self, guider, cue: Cue):
        """The guider with nothing but the prompts in force; it itself where they never change."""
        if not any(PROMPT_START in cond for group in guider.conds.values() for cond in group):
            return guider
        now = copy.copy(guider)
        now.conds = {**guider.conds, **{track.group: [] for track in self.tracks}}
        for track, mix in zip(self.tracks, self.mixes[cue.prompt]):
            group = guider.conds[track.group]
            first, before, after = (
                group[track.places[number]] for number in (0, mix.number - 1, mix.number)
            )
            cond = _mixed(before, after, mix.weight)
            now.conds[track.group].append({**cond, "uuid": (first["uuid"], mix)})
        return now


def stream_and_prompt(uuid) -> tuple:
    """What a batch row's id holds: its stream, and the prompt in force."""
    return uuid if isinstance(uuid, tuple) else (uuid, uuid)


def _mixed(before: dict, after: dict, weight: float) -> dict:
    """The prompt `after`, its text mixed with that of `before`."""
    if weight == 1:
        return after
    text = after["model_conds"]["c_crossattn"]
    old, new = before["model_conds"]["c_crossattn"].cond, text.cond
    # The model pads texts with zeros as well.
    length = max(old.shape[1], new.shape[1])
    old, new = (functional.pad(t, (0, 0, 0, length - t.shape[1])) for t in (old, new))
    mixed = text._copy_with(torch.lerp(old, new, weight))
    return {**after, "model_conds": {**after["model_conds"], "c_crossattn": mixed}}


def arrange_prompts(
    guider,
    chunks: list[Chunk],
    policy: KVPolicy,
    compression: int,
    finished: int,
    recache_together: bool = False,
) -> tuple[Prompts, list[Chunk], tuple[str, ...]]:
    """Sort the guider's conditionings into tracks and give the chunks their cues; also notes, on
    those after the first `finished`. `recache_together` as `Switch.together`. ValueError with a
    sentence.
    """
    # 1. A track for each stream.
    tracks, notes = [], []
    for name, group in active_conditionings(guider).items():
        of_group, notes_of_group = _tracks_of(name, group, compression)
        tracks += of_group
        notes += notes_of_group
    if not tracks:
        raise ValueError(
            "No prompt reaches the sampler: its conditionings are empty. Connect a prompt to "
            "positive."
        )

    # 2. Which prompts are in force in each chunk.
    cued, mixes, notes_in_time = plan_prompts(
        chunks,
        [list(track.starts) for track in tracks],
        compression,
        finished,
        [prompt_name(track.group) for track in tracks],
        recache_together,
        policy.retention.cut_forgets,
    )

    # 3. Whether the schedule can change them so.
    allowed, name = policy.schedule.switches, title_of(policy.schedule)
    for chunk in cued:
        switch = chunk.cue.switch
        if switch and switch.mode not in allowed:
            raise ValueError(
                f"The prompt changes at latent frame {chunk.start_frame} by {switch.mode}, "
                f"which {name} cannot do. "
                f"Use {' or '.join(allowed) or 'one prompt'}, or another schedule."
            )
    return Prompts(tuple(tracks), tuple(mixes)), cued, (*notes, *notes_in_time)


def _tracks_of(
    name: str, group: list[dict], compression: int
) -> tuple[list[PromptTrack], list[str]]:
    """The i-th conditioning of each start belongs to track i; also notes."""
    # 1. The conditionings by where they begin; as many at each.
    _refuse_lines_that_meet(name, group, compression)
    by_start: dict[int, list[int]] = {}
    for place, cond in enumerate(group):
        by_start.setdefault(_start_of(cond).frame(compression), []).append(place)
    counts = {frame: len(places) for frame, places in sorted(by_start.items())}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{count} at latent frame {frame}" for frame, count in counts.items())
        raise ValueError(
            f"The {name} prompts do not pair up in time: of those that begin there are {listed}. "
            "Where two Prompt At Frame nodes of one "
            "chain have the same start_frame, give each its own; combine timelines that change at "
            "the same frames."
        )

    # 2. A track of each column, without prompts that change nothing.
    tracks, notes = [], []
    for first, *later in zip(*(by_start[frame] for frame in counts)):
        places = [first]
        for place in later:
            start = group[place][PROMPT_START]
            if start.mode != "cut" and _equal(group[places[-1]], group[place]):
                notes.append(
                    f"The {prompt_name(name)} of {start.describe(compression)} is the one in "
                    "force, so nothing was done."
                )
            else:
                places.append(place)
        starts = tuple(_start_of(group[place]) for place in places)
        tracks.append(PromptTrack(name, tuple(places), starts))
    return tracks, notes


def _refuse_lines_that_meet(name: str, group: list[dict], compression: int):
    """ValueError, in a sentence, where two lines of one timeline begin at the same latent frame."""
    lines: dict[int, PromptStart] = {}  # of one timeline, by latent frame
    for cond in group:
        start = _start_of(cond)
        frame = start.frame(compression)
        if not start.line or frame == 0:  # none of a timeline, or its first line
            lines = {}
        if not start.line:
            continue
        if frame in lines:
            other = lines[frame]
            raise ValueError(
                f"Lines {other.line} and {start.line} of the {prompt_name(name)}'s timeline, "
                f"'{other.as_written}' and '{start.as_written}', begin at the same latent frame, "
                f"{frame}. Give each line a start of its own; a latent frame lasts {compression} "
                "pictures."
            )
        lines[frame] = start


def _start_of(cond: dict) -> PromptStart:
    return cond.get(PROMPT_START, PromptStart(0))


def _equal(a: dict, b: dict) -> bool:
    """Whether two conditionings are the same prompt."""
    a, b = ({key: value for key, value in cond.items() if key not in OWN} for cond in (a, b))
    return comfy.conds.is_equal(a, b)
