"""Workflows as users saved them: those of each release, copied into frozen/<version> when it was
made, still mean what they meant.

A blueprint is such a workflow, too: users get a copy of it.
"""

import json
from pathlib import Path

import pytest

from .test_schema import nodes

FROZEN = sorted((Path(__file__).parent / "frozen").glob("*/*.json"))
BLUEPRINTS = sorted((Path(__file__).parents[2] / "subgraphs").glob("*.json"))
WIDGETS = ("INT", "FLOAT", "STRING", "BOOLEAN", "COMBO")


@pytest.mark.parametrize(
    "path", [*FROZEN, *BLUEPRINTS], ids=lambda path: f"{path.parent.name}/{path.stem}"
)
def test_a_released_workflow_loads(path):
    schemas = {node.define_schema().node_id: node.define_schema() for node in nodes()}
    workflow = json.loads(path.read_text(encoding="utf-8"))
    inside = [
        node
        for subgraph in workflow.get("definitions", {}).get("subgraphs", ())
        for node in subgraph["nodes"]
    ]
    for saved in [*workflow["nodes"], *inside]:
        if not saved["type"].startswith("Keepsake"):
            continue
        schema = schemas[saved["type"]]
        assert {part["name"] for part in saved["inputs"]} <= {part.id for part in schema.inputs}
        had = [part["name"] for part in saved["inputs"] if "widget" in part]
        widgets = [part for part in schema.inputs if part.get_io_type() in WIDGETS]
        assert [
            part.id for part in widgets[: len(had)]
        ] == had  # values are saved by place, without names
        values = list(saved["widgets_values"])
        for part in widgets[: len(had)]:
            value, options = values.pop(0), part.as_dict()
            if options.get("control_after_generate"):
                values.pop(0)
            assert value in options.get("options", [value]) and options.get(
                "min", value
            ) <= value <= options.get("max", value), part.id
        assert not values
        assert all(part.optional or "default" in part.as_dict() for part in widgets[len(had) :])
        assert [output["type"] for output in saved["outputs"]] == [
            output.get_io_type() for output in schema.outputs
        ][: len(saved["outputs"])]


def test_the_first_release_is_frozen():
    assert "0.1.0" in {path.parent.name for path in FROZEN}
