"""What a node's result says of each chunk or latent frame, in a file of the host's temp folder.

The host sends a node's whole `ui` output to the page as one message, and clients take 1 to 4 MiB of
one. So the result itself has what is known of the take as a whole, which does not grow with it, and
names the file as the host names its own: by `filename`, `subfolder` and `type`.
"""

import json
import os
import uuid
from pathlib import Path

import folder_paths
from comfy_api.latest import io, ui

from ...rollout.stats import KVStats

PER_FRAME = ("chunks", "kept_by_frame", "dropped_by_frame", "dropped", "reads")  # keys


def summary(values: dict) -> dict:
    """`values` without what they say of each chunk or latent frame, at any depth."""
    return {
        key: summary(value) if isinstance(value, dict) else value
        for key, value in values.items()
        if key not in PER_FRAME
    }


def save_values(values: dict) -> list[dict]:
    """Write `values` as JSON; what a node's `ui` has of the file."""
    path, named = new_temp_file(".json")
    path.write_text(json.dumps(values, separators=(",", ":")), encoding="utf-8")
    return [named]


def stats_result(stats: KVStats) -> dict:
    """What the `ui` of a node has of a take's stats. The file is without `reads`, as many numbers
    as all chunks have earlier frames: the memory map has those above 0, the JSON output all.
    """
    values = stats.to_dict()
    chunks = [{key: row[key] for key in row if key != "reads"} for row in values["chunks"]]
    return {
        "kv_stats": [summary(values)],
        "kv_stats_file": save_values({**values, "chunks": chunks}),
    }


def new_temp_file(suffix: str) -> tuple[Path, dict]:
    """A path in the host's temp folder that no file has, and how a result names it."""
    folder = folder_paths.get_temp_directory()
    os.makedirs(folder, exist_ok=True)
    name = f"keepsake_{uuid.uuid4().hex}{suffix}"
    return Path(folder, name), dict(ui.SavedResult(name, "", io.FolderType.temp))
