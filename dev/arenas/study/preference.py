"""What people chose: files of choices, checked against the key and counted.

preference   how often the second one is chosen; a choice of "no difference" counts half for each
wilson       Wilson's 95 % interval of it, over all choices as if each were a person of its own.
             With choices of no difference it is a little wider than it need be
over_pairs   the 95 % bootstrap interval over pairs, all choices of one together: how much another
             drawing of takes would change it. It is the honest one where few pairs are judged by
             many; with few people and many pairs, people are what it does not know
left         how often the left side was chosen: far from .5, people chose a place, not a take
"""

import csv
import json
import math
from collections.abc import Sequence
from pathlib import Path

import torch
from support.intervals import bounds

CHOICES = ("left", "right", "equal")
Z95 = 1.959964


def of(key: dict, files: Sequence[Path]) -> dict:
    """The result of a study: its `key` (key.json) and the files that people sent. ValueError, in a
    sentence, for a file that does not belong to it.
    """
    # 1. whose choices
    by_person = {}
    for path in files:
        for person, choices in read(Path(path), key).items():
            if person in by_person:
                raise ValueError(
                    f"{path} has choices of '{person}', and so has a file before it. Leave one "
                    "out, or give one person another name."
                )
            by_person[person] = choices

    # 2. what they are for: 1 the second take, 0 the first, .5 neither
    points = {pair: [] for pair in key["pairs"]}
    sides = []
    for choices in by_person.values():
        for pair, choice in choices.items():
            second_side = "right" if key["pairs"][pair]["left"] == "first" else "left"
            points[pair].append(0.5 if choice == "equal" else float(choice == second_side))
            sides.append(choice)
    every = [point for pair in points.values() for point in pair]
    preference = sum(every) / len(every)

    # 3. with intervals
    decided = len(sides) - sides.count("equal")
    return {
        "first": key["first"],
        "second": key["second"],
        "people": len(by_person),
        "pairs": sum(bool(pair) for pair in points.values()),
        "choices": len(every),
        "for_second": every.count(1.0),
        "for_first": every.count(0.0),
        "equal": every.count(0.5),
        "preference": preference,
        "wilson": wilson(preference, len(every)),
        "over_pairs": over_pairs(list(filter(None, points.values()))),
        "left": sides.count("left") / decided if decided else None,
    }


def words(found: dict) -> list[str]:
    """A result in sentences."""
    low, high = found["wilson"]
    pairs_low, pairs_high = found["over_pairs"]
    left = "" if found["left"] is None else f" The left side got {found['left']:.1%} of the others."
    return [
        f"{found['people']} people, {found['pairs']} pairs, {found['choices']} choices: "
        f"{found['for_second']} for {found['second']}, {found['for_first']} for {found['first']}, "
        f"{found['equal']} for no difference.{left}",
        f"{found['second']} is preferred in {found['preference']:.1%}, no difference counted half. "
        f"95 %: {low:.1%} to {high:.1%} (Wilson, each choice by itself), {pairs_low:.1%} to "
        f"{pairs_high:.1%} (bootstrap over pairs).",
    ]


def wilson(part: float, count: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a part of `count` choices."""
    spread = Z95 * math.sqrt(part * (1 - part) / count + Z95**2 / (4 * count**2))
    middle, scale = part + Z95**2 / (2 * count), 1 + Z95**2 / count
    return (middle - spread) / scale, (middle + spread) / scale


def over_pairs(points: Sequence[Sequence[float]]) -> tuple[float, float]:
    """The 95 % bootstrap interval over pairs."""
    sums = torch.tensor([sum(pair) for pair in points], dtype=torch.float64)
    counts = torch.tensor([len(pair) for pair in points], dtype=torch.float64)
    return bounds(lambda pick: sums[pick].sum(1) / counts[pick].sum(1), len(points))


def read_key(path: Path) -> dict:
    """key.json of a sheet. ValueError, in a sentence, for another file."""
    try:
        key = json.loads(path.read_text(encoding="utf-8"))
        for part in ("study", "first", "second"):
            key[part]
        for pair in key["pairs"].values():
            pair["left"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"--key is '{path}', which is no key of a sheet ({type(error).__name__}: {error}). It "
            "is the key.json that was written beside the folder sheet."
        ) from None
    return key


def read(path: Path, key: dict) -> dict[str, dict[str, str]]:
    """Each person's choice for each pair, from a file that the page saved."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        rows = _rows(json.loads(text)) if path.suffix.lower() == ".json" else _lines(text)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} is no file of choices ({type(error).__name__}: {error}). The page saves "
            "them, as JSON, or as CSV with the columns study, person, pair, choice."
        ) from None
    people = {}
    for study, person, pair, choice in rows:
        if study != key["study"]:
            raise ValueError(f"{path} is of the study {study}, and the key of {key['study']}.")
        if pair not in key["pairs"]:
            raise ValueError(f"{path} has a choice for pair '{pair}', which the key does not know.")
        if choice not in CHOICES:
            raise ValueError(
                f"{path} has '{choice}' for pair {pair}: it must be left, right or equal."
            )
        if not isinstance(person, str) or not person:
            raise ValueError(f"{path} does not say whose choices it has.")
        if pair in people.setdefault(person, {}):
            raise ValueError(f"{path} has two choices of '{person}' for pair {pair}.")
        people[person][pair] = choice
    if not people:
        raise ValueError(f"{path} has no choices. Leave it out.")
    return people


def _rows(saved: dict) -> list[tuple]:
    return [
        (saved["study"], saved["person"], pair, choice) for pair, choice in saved["choices"].items()
    ]


def _lines(text: str) -> list[tuple]:
    lines = csv.DictReader(text.splitlines(), strict=True)
    return [(row["study"], row["person"], row["pair"], row["choice"]) for row in lines]
