"""Which heads look at the latest frames only: head maps, in the JSON shape that Forcing-KV and
CMBench publish.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from ..take import Geometry


@dataclass(frozen=True)
class HeadMap:
    """Static heads of each layer; all others are dynamic."""

    model: str
    heads: int
    static: tuple[tuple[int, ...], ...]  # by layer

    def __str__(self) -> str:
        return f"{sum(map(len, self.static))} static of {self.heads * len(self.static)} heads"

    def dynamic(self, layer: int) -> tuple[int, ...]:
        return tuple(head for head in range(self.heads) if head not in self.static[layer])

    def check(self, geometry: Geometry):
        """Raise ValueError when this map belongs to another model."""
        if (len(self.static), self.heads) != (geometry.layers, geometry.heads):
            raise ValueError(
                f"The head map of '{self.model}' is for {len(self.static)} layers of {self.heads} "
                "heads, and this model has "
                f"{geometry.layers} layers of {geometry.heads}. Use the map of this model, or "
                "make one with Profile Heads."
            )

    def to_json(self) -> str:
        layers = [
            {"layer_idx": i, "static_head": list(static), "dynamic_head": list(self.dynamic(i))}
            for i, static in enumerate(self.static)
        ]
        return json.dumps(
            {
                "model": self.model,
                "num_layers": len(self.static),
                "num_heads": self.heads,
                "layers": layers,
            },
            indent=1,
        )

    @classmethod
    def from_json(cls, text: str, name: str) -> HeadMap:
        """Read a map; `name` is the file's, for messages. Its layers may also stand alone, as a
        bare list.
        """
        try:
            told = json.loads(text)
            layers = told if isinstance(told, list) else told["layers"]
            lists = {
                int(layer["layer_idx"]): (
                    tuple(map(int, layer["static_head"])),
                    tuple(map(int, layer["dynamic_head"])),
                )
                for layer in layers
            }
            about = told if isinstance(told, dict) else {}
            count = int(about.get("num_layers", len(lists)))
            heads = int(
                about.get(
                    "num_heads", max((sum(map(len, pair)) for pair in lists.values()), default=0)
                )
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ValueError(
                f"'{name}' is not a head map. It must be JSON with a list of layers, each with "
                "layer_idx, static_head "
                "and dynamic_head; Profile Heads writes one."
            ) from None
        if not lists or sorted(lists) != list(range(count)):
            raise ValueError(
                f"The head map '{name}' lists the layers {sorted(lists)}, and should have each of "
                f"0 to {count - 1} once."
            )
        for layer, (static, dynamic) in sorted(lists.items()):
            if sorted(static + dynamic) != list(range(heads)):
                raise ValueError(
                    f"The head map '{name}' lists the heads {sorted(static + dynamic)} in layer "
                    f"{layer}, and should name each of "
                    f"0 to {heads - 1} once, as static or as dynamic."
                )
        return cls(
            str(about.get("model", name)),
            heads,
            tuple(lists[layer][0] for layer in range(len(lists))),
        )
