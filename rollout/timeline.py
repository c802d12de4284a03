"""Prompts in time: from which latent frame on each holds, how it comes in, and what that makes of a
take's chunks.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ..kv_policies import SWITCHES, Chunk, Cue, Switch

CLOCK = r"(?:\d+:[0-5]\d|\d+):[0-5]\d(?:\.\d+)?"  # m:ss, h:mm:ss
LINE = re.compile(rf"\s*(?:({CLOCK})(?=\s*:(?!\d))|(\d+(?:\.\d+)?)\s*(s?))\s*:(.*)")
# Right behind a start's colon: a time without a colon of its own, or a prompt?
UNCLEAR = re.compile(r"\d\d(?=\s|$)|\d+\s*:")


def pixel_frames(latent_frames: int, compression: int) -> int:
    """Pixel frames of a causal video VAE's latent frames: one of the first, `compression` of each
    further one.
    """
    return 1 + compression * (latent_frames - 1) if latent_frames else 0


def latent_frame_of(pixel_frame: int, compression: int) -> int:
    """The latent frame that holds a pixel frame, both counted from 0."""
    return -(-pixel_frame // compression)


@dataclass(frozen=True)
class PromptStart:
    """Where a prompt begins and how it comes in; `start` counts latent frames of the take, or pixel
    frames.
    """

    start: int
    mode: str = "swap"
    blend: int = 0  # latent frames over which the text goes from the prompt before to this one
    recache_frames: int = 12
    in_pixels: bool = False
    # the start in the user's own words, where these are not latent frames
    written: str = field(default="", compare=False)
    line: int = field(default=0, compare=False)  # number in its timeline; 0: of no timeline

    def __post_init__(self):
        if self.mode not in SWITCHES:
            raise ValueError(f"mode is '{self.mode}'. Use one of: {', '.join(SWITCHES)}.")
        for name, frames in (
            ("start_frame", self.start),
            ("blend", self.blend),
            ("recache_frames", self.recache_frames),
        ):
            if frames < 0:
                raise ValueError(f"{name} is {frames} latent frames. Use 0 or more.")
        if self.mode == "cut" and self.blend:
            raise ValueError(
                f"A cut with a blend of {self.blend} latent frames is neither: a new shot begins "
                "at once. Set blend to 0, or use swap "
                "or recache."
            )

    def frame(self, compression: int) -> int:
        return latent_frame_of(self.start, compression) if self.in_pixels else self.start

    @property
    def as_written(self) -> str:
        return self.written or str(self.start)

    def describe(self, compression: int) -> str:
        """Where it begins, in words."""
        written = f" ({self.written})" if self.written else ""
        return f"latent frame {self.frame(compression)}{written}"


def parse_timeline(
    text: str, fps: float, mode: str, blend: int, recache_frames: int
) -> list[tuple[PromptStart, str]]:
    """Lines such as `48: a storm` (latent frames), `6s: a storm` or `1:30: a storm` (seconds;
    minutes and seconds), the first at 0.
    """
    if not 0 < fps < math.inf:
        raise ValueError(f"fps is {fps}. Use the pictures a second of the video, 16 for Wan 2.1.")
    found: list[tuple[PromptStart, str]] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        start, prompt = _parse_line(line, f"Line {number} of the timeline", fps)
        if any(_begin_together(start, other) for other, _ in found):
            raise ValueError(
                f"Line {number} of the timeline begins where an earlier line does. Give each "
                "prompt a start of its own."
            )
        start = replace(start, recache_frames=recache_frames, line=number)
        if found:  # the first prompt comes in with the take
            start = replace(start, mode=mode, blend=blend)
        found.append((start, prompt))
    if not found or found[0][0].start:
        raise ValueError(
            "The timeline has no prompt for the beginning. Begin its first line with '0:'."
        )
    return found


def _begin_together(a: PromptStart, b: PromptStart) -> bool:
    """Whether two lines begin at the same place; 0 is the same in latent and pixel frames."""
    return a.start == b.start and (a.in_pixels == b.in_pixels or a.start == 0)


def _parse_line(line: str, where: str, fps: float) -> tuple[PromptStart, str]:
    match = LINE.fullmatch(line)
    if match is None or (match[2] and "." in match[2] and not match[3]):
        raise ValueError(
            f"{where} is '{line.strip()[:60]}'. Begin each line with its start, in latent frames, "
            "seconds or minutes and seconds, and a "
            "colon: '48: a storm rolls in', '6s: a storm rolls in' or '1:30: a storm rolls in'."
        )
    clock, number, unit, prompt = match.groups()
    if not clock and UNCLEAR.match(prompt):
        raise ValueError(
            f"{where} is '{line.strip()[:60]}', which is neither a time nor a latent frame and a "
            "prompt. Write times as 0:05, 1:30 or "
            "1:02:30, each with one more colon behind it; leave a space before a prompt that "
            "begins with a number."
        )
    if not prompt.strip():
        raise ValueError(
            f"{where}, '{line.strip()}', has no prompt behind its start. Write one there, or "
            "remove the line."
        )
    if not clock and not unit:
        return PromptStart(int(number)), prompt.strip()
    parts = reversed((clock or number).split(":"))
    seconds = sum(float(part) * 60**place for place, part in enumerate(parts))
    written = clock or f"{number}s"
    return PromptStart(round(seconds * fps), in_pixels=True, written=written), prompt.strip()


class Mix(NamedTuple):
    """The prompt `number` of a stream with `weight`, the rest being the prompt before."""

    number: int
    weight: float = 1.0


def plan_prompts(
    chunks: list[Chunk],
    streams: list[list[PromptStart]],
    compression: int,
    finished: int = 0,
    names: list[str] | None = None,
    recache_together: bool = False,
    cut_forgets: bool = True,
) -> tuple[list[Chunk], list[tuple[Mix, ...]], tuple[str, ...]]:
    """Give the chunks their cues. Returns them, the mix of each stream by `Cue.prompt`, and notes;
    none on the first `finished` chunks.

    `streams`: the starts of each stream's prompts, ascending; `names`: what notes call these;
    `recache_together` as `Switch.together`, `cut_forgets` as `Retention.cut_forgets`. A prompt
    takes effect with the first chunk that begins at or after its start.
    """
    names = names or ["prompt"] * len(streams)

    # 1. With which chunk each prompt takes effect; a stream's first one with the take.
    effects = [
        [0, *(_first_chunk_at(chunks, start.frame(compression)) for start in starts[1:])]
        for starts in streams
    ]

    # 2. The mixes in force in each chunk, and how they come in where they are others than before.
    cued, mixes, notes, shot = [], [], [], 0
    for chunk in chunks:
        now = tuple(_mix(chunk, chunks, starts, effect) for starts, effect in zip(streams, effects))
        before = mixes[-1] if mixes else now
        switch = _strongest_switch(streams, before, now, recache_together)
        if not mixes or switch:
            mixes.append(now)
        if switch and switch.mode == "cut" and cut_forgets:
            shot = chunk.start_frame
        cued.append(replace(chunk, cue=Cue(len(mixes) - 1, switch, shot)))
        if chunk.index >= finished:
            notes += [
                _note_of_change(chunk, name, starts[mix.number])
                for name, starts, mix, old in zip(names, streams, now, before)
                if mix.number != old.number
            ]

    # 3. What did not happen.
    if any(mix.weight < 1 for mix in now):
        notes.append("The last blend was not complete when the take ended.")
    first_new = chunks[finished].start_frame
    for name, starts, effect in zip(names, streams, effects):
        for start, at, next_at in zip(starts, effect, [*effect[1:], None]):
            came_in = at is not None and at != next_at
            if came_in or start.frame(compression) < first_new:
                continue
            notes.append(
                f"The {name} of {start.describe(compression)} never came in: no chunk begins "
                "between it and the next prompt or the end."
            )
    return cued, mixes, tuple(dict.fromkeys(notes))


def prompt_frames(chunks: list[Chunk]) -> tuple[int, ...]:
    """Where other prompts come in."""
    return tuple(chunk.start_frame for chunk in chunks if chunk.cue.switch)


def _note_of_change(chunk: Chunk, name: str, start: PromptStart) -> str:
    to = f" to that of {start.written}" if start.written else ""
    blend = f", blended over {start.blend} frames" if start.blend else ""
    return f"Latent frame {chunk.start_frame}: the {name} changes{to} ({start.mode}{blend})."


def _first_chunk_at(chunks: list[Chunk], frame: int) -> int | None:
    return next((chunk.index for chunk in chunks if chunk.start_frame >= frame), None)


def _mix(
    chunk: Chunk, chunks: list[Chunk], starts: list[PromptStart], effect: list[int | None]
) -> Mix:
    """What of a stream's prompts is in force in a chunk."""
    number = max(i for i, at in enumerate(effect) if at is not None and at <= chunk.index)
    blend = starts[number].blend
    if not blend or not number:
        return Mix(number)
    frames = chunk.end_frame - chunks[effect[number]].start_frame
    return Mix(number, min(1.0, frames / blend))


def _strongest_switch(
    streams: list[list[PromptStart]],
    before: tuple[Mix, ...],
    now: tuple[Mix, ...],
    together: bool,
) -> Switch | None:
    """How other prompts come in: the streams' switch that changes most of the cache."""
    switches = [
        _switch(starts, old, new, together)
        for starts, old, new in zip(streams, before, now)
        if old != new
    ]
    return max(switches, key=lambda s: (SWITCHES.index(s.mode), s.recache_frames), default=None)


def _switch(starts: list[PromptStart], before: Mix, now: Mix, together: bool) -> Switch:
    """How a stream goes from one mix to another."""
    start = starts[now.number]
    if now.number != before.number and before.weight < 1:
        raise ValueError(
            f"The blend over {starts[before.number].blend} latent frames is not done when the "
            "next prompt begins, at "
            f"{start.written or f'latent frame {start.start}'}. Shorten the blend, or let the "
            "next prompt begin later."
        )
    if start.mode != "recache":
        return Switch(start.mode)
    if now.weight < 1:  # it is run once, when the blend is complete
        return Switch("swap")
    return Switch("recache", start.recache_frames, together)
