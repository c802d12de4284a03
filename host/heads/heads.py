"""Head maps and head tables: their files in ComfyUI's folders, and how a model's map is made."""

import os
from pathlib import Path

import folder_paths
import torch
from torch import Tensor

from ...kv_policies import HeadMap, HeadTable, KVPolicy
from ...kv_policies.retention.head_profile import HeadProfile, head_map_of
from ..files import names
from ..model.profiles import profile_of
from ..take.take import sample_take

# Folders in models/, for a user's files, and in output/, where our nodes write.
MAPS = "kv_head_maps"
TABLES = "kv_head_tables"
SUFFIX = ".json"
PARTIAL = ".partial.json"  # of a calibration in progress
SHIPPED = str(Path(__file__).parents[2] / "demo" / "heads")


def output_folder(folder: str) -> str:
    """Where our nodes write files of MAPS or TABLES."""
    return os.path.join(folder_paths.get_output_directory(), folder)


def register(folder: str):
    """Make MAPS or TABLES known to the host; the pack's own files count among theirs."""
    in_models = os.path.join(folder_paths.models_dir, folder)
    shipped = os.path.join(SHIPPED, folder)
    names.register(folder, [in_models, output_folder(folder), shipped], SUFFIX)


def names_in(folder: str) -> list[str]:
    """Files of MAPS or TABLES, without those of a calibration in progress."""
    register(folder)
    return [name for name in names.listed(folder) if not name.endswith(PARTIAL)]


def _read(folder: str, name: str) -> str:
    register(folder)
    path = folder_paths.get_full_path_or_raise(folder, name)
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def load_head_map(name: str) -> HeadMap:
    return HeadMap.from_json(_read(MAPS, name), name)


def load_head_table(name: str) -> HeadTable:
    return HeadTable.from_json(_read(TABLES, name), name)


def file_version(folder: str, name: str) -> str:
    """A text that changes whenever the file does."""
    register(folder)
    return names.file_version(folder, name)


def save_json(folder: str, name: str, text: str) -> Path:
    """Write into the output folder under a name that is free; return the path."""
    path = names.free_path(name, output_folder(folder), SUFFIX)
    with names.writing(path):
        path.write_text(text, encoding="utf-8")
    return path


def model_name(model) -> str:
    """What a map or table calls its model: the profile's name, else the host's class."""
    profile = profile_of(model.model_options)
    return profile.name if profile else type(model.model).__name__


def profile_heads(
    model,
    positive,
    latent: dict,
    *,
    seed: int,
    static_share: float,
    name: str,
    prefix: dict | None = None,
    control: Tensor | None = None,
) -> tuple[HeadMap, Tensor, Path]:
    """Make a take with everything kept and measure its last chunk's attention.

    Returns the map, the shares `[L, H]` that it was made from (means over the batch), and the path
    that the map was written to.
    """
    names.plain_name(name)
    names.free_path(name, output_folder(MAPS), SUFFIX)  # refused now, and not after the takes
    by_layer: dict[int, list[Tensor]] = {}

    def watch(layer: int, share: Tensor):
        by_layer.setdefault(layer, []).append(share.cpu())

    sample_take(
        model,
        positive,
        None,
        1.0,
        latent,
        seed=seed,
        policy=KVPolicy(HeadProfile(watch)),
        prefix=prefix,
        control=control,
    )
    shares = torch.stack([torch.stack(by_layer[layer]).mean(0) for layer in sorted(by_layer)])
    head_map = head_map_of(model_name(model), shares, static_share)
    return head_map, shares, save_json(MAPS, name, head_map.to_json())
