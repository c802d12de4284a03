"""Files that our nodes write, as the host's own nodes name and sign theirs."""

import json
import os
from pathlib import Path

import folder_paths
from comfy.cli_args import args
from comfy_api.latest import io, ui


def named(path: Path) -> dict:
    """A file in the output folder, as a node's result names it."""
    subfolder = os.path.relpath(path.parent, folder_paths.get_output_directory())
    return dict(
        ui.SavedResult(path.name, "" if subfolder == "." else subfolder, io.FolderType.output)
    )


def graph_of(hidden) -> dict[str, str]:
    """The graph that a node runs in, as JSON by key, to be written into a video: the prompt, and
    the workflow where a page sent it. Nothing under the host's --disable-metadata.
    """
    if args.disable_metadata or hidden is None:
        return {}
    values = dict(hidden.extra_pnginfo or {})
    if hidden.prompt is not None:
        values["prompt"] = hidden.prompt
    return {key: json.dumps(value) for key, value in values.items()}
