"""The videos of a suite, for each policy and length."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

from keepsake.host.model.camera import pixel_frames
from torch import Tensor

from ..camera import STILL, control_of
from ..maker import Maker
from ..records import record_of
from ..results import Job, Results, read_json
from .names import tells_case
from .suite import SEEDS_OF_A_PROMPT, Prompt, Suite

FPS = 16.0


class Protocol(NamedTuple):
    """What is the same for all takes of a folder."""

    frames: int  # latent
    size: tuple[int, int]  # height, width in pixels
    seed: int  # of the list's first video


class VideoFolder(Results):
    """Takes whose videos lie in a folder of their own, as VBench needs them."""

    @property
    def label(self) -> str:
        return f"{self.folder.parent.name}/{self.folder.name}"

    @property
    def videos(self) -> Path:
        return self.folder / "videos"

    @property
    def prompts(self) -> Path:
        """Each video's prompt."""
        return self.folder / "prompts.json"

    def video(self, name: str) -> Path:
        return self.videos / f"{name}.mp4"

    def add_prompts(self, prompts: dict[str, str]):
        """By the videos' names. Those of before stay: VBench wants one for every video there."""
        known = self.prompts
        before = read_json(known, "Delete it.") if known.is_file() else {}
        text = json.dumps(before | prompts, ensure_ascii=False, indent=1) + "\n"
        self._write(known, text.encode())

    @property
    def scores(self) -> Path:
        return self.folder / "scores"


def folder_of(out: Path, row: str, frames: int) -> Path:
    return out / f"frames_{frames}" / row


def seconds_of(frames: int) -> float:
    """Of a take of so many latent frames."""
    return pixel_frames(frames) / FPS


def seed_of(prompt: Prompt, index: int, first: int) -> int:
    """Each video has its own; a policy's videos have those of another's."""
    return first + SEEDS_OF_A_PROMPT * prompt.number + index


def videos_of(prompts: Iterable[Prompt]) -> Iterator[tuple[str, Prompt, int]]:
    """Each video's name, prompt and index."""
    for prompt in prompts:
        for index in range(prompt.samples):
            yield f"{prompt.stem}-{index}", prompt, index


def jobs_of(
    makers: Sequence[Maker],
    folders: dict[str, VideoFolder],
    suite: Suite,
    protocol: Protocol,
    say: Callable[[str], None],
) -> list[Job]:
    """The takes of one length, prompt by prompt, so that what there is after an hour can be
    compared. `folders` are by row; each gets its prompts.json.
    """
    prompts = distinct(suite.prompts, folders.values(), say)
    for folder in folders.values():
        folder.add_prompts({f"{name}.mp4": prompt.text for name, prompt, _ in videos_of(prompts)})
    return [
        Job(
            results=folders[maker.row.name],
            name=name,
            frames=protocol.frames,
            make=partial(take_of, maker, prompt, index, protocol),
        )
        for name, prompt, index in videos_of(prompts)
        for maker in makers
    ]


def distinct(
    prompts: Sequence[Prompt], folders: Iterable[VideoFolder], say: Callable[[str], None]
) -> list[Prompt]:
    """Prompts whose files can lie beside each other: two of VBench's differ by a capital alone."""
    if all(tells_case(folder.folder) for folder in folders):
        return list(prompts)
    by_name = {}
    for prompt in prompts:
        first = by_name.setdefault(prompt.stem.casefold(), prompt)
        if first is not prompt:
            say(
                f"'{prompt.text}' is left out: this file system takes its name for that of "
                f"'{first.text}'."
            )
    return list(by_name.values())


def take_of(
    maker: Maker, prompt: Prompt, index: int, protocol: Protocol
) -> tuple[Tensor, float, dict]:
    """A take's pictures [N, H, W, 3], their rate, and its record."""
    began = perf_counter()
    seed = seed_of(prompt, index, protocol.seed)
    control = control_of(maker, STILL, 0, protocol.frames, protocol.size)
    latents, stats = maker.take(prompt.said, protocol.frames, protocol.size, seed, control=control)
    pictures = maker.decode(latents)
    known = {"prompt": prompt.text, "said": prompt.said, "index": index, "seed": seed}
    return pictures, FPS, known | record_of(stats, len(pictures), began)
