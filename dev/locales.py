"""List what each language in locales/ lacks of the nodes' texts and of the page's messages.

A node's English is in its schema, from where the page takes whatever a language does not have;
locales/en has only the messages of web/js.
"""

import json
from pathlib import Path

LOCALES = Path(__file__).resolve().parents[1] / "locales"
LANGUAGES = sorted(folder.name for folder in LOCALES.iterdir() if folder.name != "en")


def node_defs(nodes) -> dict:
    """What the page can show of nodes in another language: names, descriptions and tooltips, by
    node, input and output.
    """

    def texts(part, name):
        return {
            "name": part.display_name or name,
            **({"tooltip": part.tooltip} if part.tooltip else {}),
        }

    schemas = sorted((node.define_schema() for node in nodes), key=lambda schema: schema.node_id)
    return {
        schema.node_id: {
            "display_name": schema.display_name,
            "description": schema.description,
            "inputs": {part.id: texts(part, part.id) for part in schema.inputs},
            "outputs": {
                str(number): texts(part, part.get_io_type())
                for number, part in enumerate(schema.outputs)
            },
        }
        for schema in schemas
    }


def load(language: str, file: str) -> dict:
    return json.loads((LOCALES / language / file).read_text(encoding="utf-8"))


def flat(texts: dict, path: str = "") -> dict[str, str]:
    """Every text by its path."""
    return {
        key: text
        for name, value in texts.items()
        for key, text in (
            flat(value, f"{path}{name}/") if isinstance(value, dict) else {path + name: value}
        ).items()
    }


def main():
    from support import pack

    pack.use_host("--cpu")
    english = {"main.json": load("en", "main.json"), "nodeDefs.json": node_defs(pack.nodes())}
    for language in LANGUAGES:
        for file, texts in english.items():
            wanted, given = flat(texts).keys(), flat(load(language, file)).keys()
            print(
                f"{language}/{file}: {len(wanted - given)} missing, {len(given - wanted)} without "
                "a meaning"
            )
            for key in sorted(wanted ^ given):
                print("  lacks" if key in wanted else "  drop ", key)


if __name__ == "__main__":
    main()
