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
                f"heads, and this model has {geometry.layers} layers of {geometry.heads}. Use the "
                "map of this model, or make one with Profile Heads."
            )

    def to_json(self) -> str:
        layers = [
            {"layer_idx": i, "static_head": list(static), "dynamic_head": list(self.dynamic(i))}
            for i, static in enumerate(self.static)
        ]
        content = {
            "model": self.model,
            "num_layers": len(self.static),
            "num_heads": self.heads,
            "layers": layers,
        }
        return json.dumps(content, indent=1)

    @classmethod
    def from_json(cls, text: str, name: str) -> HeadMap:
        """Read a map; ValueError, in a sentence with the file's `name`, where it is none. The list
        of layers may also stand alone.
        """
        # 1. Read.
        try:
            content = json.loads(text)
            header = {"layers": content} if isinstance(content, list) else content
            heads_of = {
                int(layer["layer_idx"]): (
                    tuple(map(int, layer["static_head"])),
                    tuple(map(int, layer["dynamic_head"])),
                )
                for layer in header["layers"]
            }
            listed = max((len(s) + len(d) for s, d in heads_of.values()), default=0)
            layers = int(header.get("num_layers", len(heads_of)))
            heads = int(header.get("num_heads", listed))
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError):
            raise ValueError(
                f"'{name}' is not a head map. It must be JSON with a list of layers, each with "
                "layer_idx, static_head and dynamic_head; Profile Heads writes one."
            ) from None

        # 2. Every layer once, and in it every head once.
        if not heads_of or sorted(heads_of) != list(range(layers)):
            raise ValueError(
                f"The head map '{name}' lists the layers {sorted(heads_of)}, and should have each "
                f"of 0 to {layers - 1} once."
            )
        for layer, (static, dynamic) in sorted(heads_of.items()):
            if sorted(static + dynamic) != list(range(heads)):
                raise ValueError(
                    f"The head map '{name}' lists the heads {sorted(static + dynamic)} in layer "
                    f"{layer}, and should name each of 0 to {heads - 1} once, as static or as "
                    "dynamic."
                )
        static = tuple(heads_of[layer][0] for layer in range(layers))
        return cls(str(header.get("model", name)), heads, static)
