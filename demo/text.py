"""The demo world's words: a fixed vector for each thing that a prompt can ask for, and silence for
the rest.
"""

import re

import torch
from torch import Tensor

TOKENS, WIDTH = 8, 32  # words a prompt can hold, channels of a word
CONCEPTS = ("day", "sunset", "night", "dawn", "downtown", "old", "town", "harbour")
SYNONYMS = {
    "noon": "day",
    "daylight": "day",
    "evening": "sunset",
    "dusk": "sunset",
    "midnight": "night",
    "dark": "night",
    "morning": "dawn",
    "sunrise": "dawn",
    "city": "downtown",
    "ancient": "old",
    "village": "town",
    "harbor": "harbour",
    "port": "harbour",
    "sea": "harbour",
}


def words(prompt: str) -> list[int]:
    """Concept numbers of the words that the world knows, in order, at most TOKENS of them."""
    known = (SYNONYMS.get(word, word) for word in re.findall(r"[a-z]+", prompt.lower()))
    return [CONCEPTS.index(word) for word in known if word in CONCEPTS][:TOKENS]


def embed(concepts: list[int]) -> Tensor:
    """Text conditioning `[1, TOKENS, WIDTH]`: one axis per concept, unit variance in its token;
    unused tokens are zero.
    """
    out = torch.zeros(1, TOKENS, WIDTH)
    for i, concept in enumerate(concepts):
        out[0, i, concept] = WIDTH**0.5
    return out
