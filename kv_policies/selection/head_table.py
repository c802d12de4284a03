"""How much each attention head matters: a table of scores, and the frames that each head may read
for it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from ..take import Geometry

MEASURES = ("dm_loss", "x0_drift")  # what a score can be, as the table's file names it


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
        layers, heads = len(self.scores), len(self.scores[0])
        if (layers, heads) != (geometry.layers, geometry.heads):
            raise ValueError(
                f"The head table of '{self.model}' is for {layers} layers of {heads} heads, and "
                f"this model has {geometry.layers} layers of {geometry.heads}. Use the table of "
                "this model, or make one with Calibrate Heads."
            )

    def budgets(self, gamma: float, least: int, most: int) -> list[list[int]]:
        """Latent frames that each head may read: round(least + I^gamma (most - least)), I
        normalised over all heads (arXiv 2605.18346).
        """
        every = [score for layer in self.scores for score in layer]
        low = min(every)
        span = max(every) - low + 1e-8

        def budget(score: float) -> int:
            importance = (score - low) / span
            return round(least + importance**gamma * (most - least))

        return [[budget(score) for score in layer] for layer in self.scores]

    def to_json(self) -> str:
        """The table's file: one line for each layer."""
        about = {
            "model": self.model,
            "measure": self.measure,
            "num_layers": len(self.scores),
            "num_heads": len(self.scores[0]),
        }
        layers = [json.dumps([float(f"{score:.6g}") for score in layer]) for layer in self.scores]
        rows = ",\n".join(f"  {layer}" for layer in layers)
        return f'{json.dumps(about)[:-1]}, "scores": [\n{rows}\n]}}\n'

    @classmethod
    def from_json(cls, text: str, name: str) -> HeadTable:
        """Read a table; `name` is the file's, for messages. The scores may also stand alone, as a
        list of layers.
        """
        try:
            content = json.loads(text)
            about = content if isinstance(content, dict) else {}
            layers = content["scores"] if about else content
            scores = tuple(tuple(map(float, layer)) for layer in layers)
            finite = all(abs(score) < float("inf") for layer in scores for score in layer)
            same_heads = len({len(layer) for layer in scores}) == 1 and len(scores[0]) > 0
            fits = finite and same_heads
        except (ValueError, LookupError, TypeError, OverflowError, RecursionError):
            fits = False
        if not fits:
            raise ValueError(
                f"'{name}' is not a head table. It must be JSON with a list of layers, each a "
                "list with one finite score per head; Calibrate Heads writes one."
            )
        return cls(str(about.get("model", name)), str(about.get("measure", "unknown")), scores)
