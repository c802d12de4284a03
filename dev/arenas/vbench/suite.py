"""A list of prompts to make videos of."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from .names import own_stem, stem

DIMENSIONS = (
    "subject_consistency",
    "background_consistency",
    "temporal_flickering",
    "motion_smoothness",
    "dynamic_degree",
    "aesthetic_quality",
    "imaging_quality",
    "object_class",
    "multiple_objects",
    "human_action",
    "color",
    "spatial_relationship",
    "scene",
    "temporal_style",
    "appearance_style",
    "overall_consistency",
)
# Those that VBench's README names for prompts that are not its own.
FOR_ANY_PROMPT = (
    "subject_consistency",
    "background_consistency",
    "motion_smoothness",
    "dynamic_degree",
    "aesthetic_quality",
    "imaging_quality",
)
FLICKER = "temporal_flickering"  # of static videos only, so it wants more of them to choose from
SAMPLES, FLICKER_SAMPLES, OWN_SAMPLES = 5, 25, 1  # videos of a prompt
SEEDS_OF_A_PROMPT = 100  # so many samples at most


class Prompt(NamedTuple):
    """One prompt of a list."""

    number: int  # in the whole list, from 0
    text: str  # what VBench knows it by
    said: str  # what the model is told
    stem: str  # of its videos' names, before -<index>
    samples: int


class Suite(NamedTuple):
    """What is to be made and scored."""

    standard: bool  # VBench's own prompts
    dimensions: tuple[str, ...]
    prompts: tuple[Prompt, ...]
    mark: str  # of the whole list and what is told: names and seeds are by them


def read_suite(
    path: Path,
    told: Path | None = None,
    dimensions: Sequence[str] = (),
    first: int = 0,
    samples: int = 0,
    long: bool = False,
) -> Suite:
    """The prompts of a file: VBench's info JSON, or text with a prompt on each line.

    told: text with, for each entry of the list, what the model is told in its place (an augmented
    prompt); dimensions: none for all that the list allows; of VBench's own list only their prompts
    count; first: as many prompts, 0 for all; samples: videos of each, 0 for VBench's own rule;
    long: for VBench-Long, which has one number of samples for all. ValueError, in a sentence.
    """
    # 1. the entries
    if first < 0:
        raise ValueError(f"--first is {first}. Use a number of prompts, or 0 for all.")
    if not 0 <= samples <= SEEDS_OF_A_PROMPT:
        raise ValueError(
            f"--samples is {samples}. Use a number up to {SEEDS_OF_A_PROMPT}, or 0 for VBench's."
        )
    standard = path.suffix.lower() == ".json"
    entries = _of_json(path) if standard else [(line, ()) for line in _lines(path)]
    said = _lines(told) if told else [text for text, _ in entries]
    if len(said) != len(entries):
        raise ValueError(
            f"{told} has {len(said)} lines and {path} {len(entries)} prompts. Give a line for each."
        )

    # 2. the dimensions
    allowed = DIMENSIONS if standard else FOR_ANY_PROMPT
    if wrong := [name for name in dimensions if name not in allowed]:
        raise ValueError(
            f"--dimension names {', '.join(wrong)}. For {'VBench' if standard else 'these'} "
            f"prompts it has: {', '.join(allowed)}."
        )
    dimensions = tuple(name for name in allowed if name in dimensions) or allowed

    # 3. each prompt once, with all its dimensions
    by_text = {}
    for number, ((text, of_entry), words) in enumerate(zip(entries, said)):
        by_text.setdefault(text, (number, words, set()))[2].update(of_entry)
    prompts = []
    for text, (number, words, of_prompt) in by_text.items():
        if standard and not of_prompt.intersection(dimensions):
            continue
        name = stem(text) if standard else own_stem(text)
        usual = SAMPLES if standard else OWN_SAMPLES
        if standard and not long and FLICKER in of_prompt.intersection(dimensions):
            usual = FLICKER_SAMPLES
        prompts.append(Prompt(number, text, words, name, samples or usual))
    if not prompts:
        raise ValueError(f"{path} has no prompt for {', '.join(dimensions)}.")
    whole = json.dumps([[text for text, _ in entries], said]).encode()
    return Suite(
        standard,
        dimensions,
        tuple(prompts[:first] if first else prompts),
        hashlib.sha256(whole).hexdigest()[:16],
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}. Name a list's file.") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no text in UTF-8: {error}") from None


def _lines(path: Path) -> list[str]:
    found = [line.strip() for line in _text(path).split("\n") if line.strip()]
    if not found:
        raise ValueError(f"{path} has no prompts. Write one on each line.")
    return found


def _of_json(path: Path) -> list[tuple[str, list[str]]]:
    text = _text(path)
    try:
        found = [_entry(each) for each in json.loads(text)]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(
            f"{path} is not VBench's list of prompts ({type(error).__name__}: {error}), which is "
            "vbench/VBench_full_info.json in its repository: entries with prompt_en and dimension."
        ) from None
    if not found:
        raise ValueError(f"{path} has no prompts.")
    return found


def _entry(entry: dict) -> tuple[str, list[str]]:
    text, dimensions = entry["prompt_en"], entry["dimension"]
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"a prompt is {text!r}")
    if not isinstance(dimensions, list) or not {*dimensions} <= {*DIMENSIONS}:
        raise ValueError(f"the dimension of '{text}' is {dimensions}")
    return text, dimensions
