"""How much each attention head matters: a table of scores, and the frames that each head may read
for it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from ..take import Geometry

MEASURES = ("dm_loss", "x0_drift")  # what a score is, for the reader of a table


@dataclass(frozen=True)
class HeadTable:
    """Damage that a take suffers without a head, by layer and head; larger is more important."""

    model: str
    measure: str
    scores: tuple[tuple[float, ...], ...]

    def __str__(self) -> str:
        return f"{self.measure} of {len(self.scores)} layers of {len(self.scores[0])} heads"

    def check(self, geometry: Geometry):
        """Raise ValueError when this table belongs to another model."""
        if (len(self.scores), len(self.scores[0])) != (geometry.layers, geometry.heads):
            raise ValueError(
                f"The head table of '{self.model}' is for {len(self.scores)} layers of "
                f"{len(self.scores[0])} heads, and this model "
                f"has {geometry.layers} layers of {geometry.heads}. Use the table of this model, "
                "or make one with Calibrate Heads."
            )

    def budgets(self, gamma: float, least: int, most: int) -> list[list[int]]:
        """Latent frames that each head may read: round(least + I^gamma (most - least)), I
        normalised over all heads (arXiv 2605.18346).
        """
        every = [score for layer in self.scores for score in layer]
        low, span = min(every), max(every) - min(every) + 1e-8
        return [
            [round(least + ((score - low) / span) ** gamma * (most - least)) for score in layer]
            for layer in self.scores
        ]

    def to_json(self) -> str:
        layers = ",\n".join(
            f"  {json.dumps([float(f'{score:.6g}') for score in layer])}" for layer in self.scores
        )
        about = json.dumps(
            {
                "model": self.model,
                "measure": self.measure,
                "num_layers": len(self.scores),
                "num_heads": len(self.scores[0]),
            }
        )
        return f'{about[:-1]}, "scores": [\n{layers}\n]}}\n'

    @classmethod
    def from_json(cls, text: str, name: str) -> HeadTable:
        """Read a table; `name` is the file's, for messages. The scores may also stand alone, as a
        list of layers.
        """
        try:
            told = json.loads(text)
            about = told if isinstance(told, dict) else {}
            scores = tuple(
                tuple(map(float, layer)) for layer in (told["scores"] if about else told)
            )
            finite = all(abs(score) < float("inf") for layer in scores for score in layer)
            fits = finite and len({len(layer) for layer in scores}) == 1 and len(scores[0]) > 0
        except (ValueError, KeyError, TypeError):
            fits = False
        if not fits:
            raise ValueError(
                f"'{name}' is not a head table. It must be JSON with a list of layers, each a "
                "list with one finite score per head; "
                "Calibrate Heads writes one."
            )
        return cls(str(about.get("model", name)), str(about.get("measure", "unknown")), scores)
