"""Add new nodes, inputs, outputs and choices to tests/nodes/schemas.json: from then on saved
workflows may rely on them.

What is there already stays: tests/nodes/test_schema.py fails where a node no longer keeps it.
"""

import json
from pathlib import Path

SCHEMAS = Path(__file__).resolve().parents[1] / "tests/nodes/schemas.json"
LISTS_OF_FILES = ("model_name", "head_map", "head_table", "memory_file")  # inputs: no fixed choices


def schema_of(node) -> dict:
    """What a saved workflow relies on: of each input its id, type, whether it is optional, and its
    default, bounds and choices; of each output its type.
    """
    schema = node.define_schema()
    inputs = []
    for part in schema.inputs:
        options = {
            key: value
            for key, value in part.as_dict().items()
            if key in ("default", "min", "max", "options") and part.id not in LISTS_OF_FILES
        }
        inputs.append([part.id, part.get_io_type(), bool(part.optional), options])
    return {"inputs": inputs, "outputs": [output.get_io_type() for output in schema.outputs]}


def add(landed: dict, now: dict):
    """Add to a landed schema what is new in the schema of the same node as it is now."""
    for before, after in zip(landed["inputs"], now["inputs"]):
        choices, choices_now = (part[3].get("options", []) for part in (before, after))
        choices += [choice for choice in choices_now if choice not in choices]
    for kind, parts in now.items():
        landed[kind] += parts[len(landed[kind]) :]


def main():
    from support import pack

    pack.use_host("--cpu")
    landed = json.loads(SCHEMAS.read_text(encoding="utf-8"))
    for node in pack.nodes():
        add(
            landed.setdefault(node.define_schema().node_id, {"inputs": [], "outputs": []}),
            schema_of(node),
        )
    lines = [f" {json.dumps(name)}: {json.dumps(schema)}" for name, schema in landed.items()]
    SCHEMAS.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
