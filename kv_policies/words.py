"""Words for sentences to a user."""

import re


def counted(number: int, noun: str) -> str:
    """A number with its noun: "1 chunk", "2 chunks"."""
    return f"{number} {noun}" + "s" * (number != 1)


def title_of(part) -> str:
    """A policy's part as its node is called, without "KV Policy: ": "Sink + Window"."""
    return part.title or re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(part).__name__)
