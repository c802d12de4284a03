"""What is known of a model's heads: files in ComfyUI's folders, and how they are made from a model."""

import os
from pathlib import Path

import folder_paths
import torch
from torch import Tensor

from ...kv_policies import HeadMap, HeadTable, KVPolicy
from ...kv_policies.retention.head_profile import HeadProfile, head_map_of
from ..files import names as files
from ..model.profiles import profile_of
from ..take.take import sample_take

MAPS, TABLES = (
    "kv_head_maps",
    "kv_head_tables",
)  # folders in models/, for a user's files, and in output/, where our nodes write
SHIPPED = str(Path(__file__).parents[2] / "demo" / "heads")


def names_in(folder: str) -> list[str]:
    """JSON files of one of our folders; the pack's own count among them."""
    if folder not in folder_paths.folder_names_and_paths:
        paths = [
            os.path.join(folder_paths.models_dir, folder),
            os.path.join(folder_paths.get_output_directory(), folder),
            os.path.join(SHIPPED, folder),
        ]
        folder_paths.folder_names_and_paths[folder] = (paths, {".json"})
    return [
        name
        for name in folder_paths.get_filename_list(folder)
        if not name.endswith(".partial.json")
    ]


def _read(folder: str, name: str) -> str:
    names_in(folder)
    with open(
        folder_paths.get_full_path_or_raise(folder, name), encoding="utf-8", errors="replace"
    ) as file:
        return file.read()


def load_head_map(name: str) -> HeadMap:
    return HeadMap.from_json(_read(MAPS, name), name)


def load_head_table(name: str) -> HeadTable:
    return HeadTable.from_json(_read(TABLES, name), name)


def stamp(folder: str, name: str) -> str:
    """What changes when the file does."""
    names_in(folder)
    return files.stamp(folder, name)


def save_json(folder: str, name: str, text: str) -> Path:
    """Write into the output folder under a name that is free; return the path."""
    path = files.free_path(os.path.join(folder, name), folder_paths.get_output_directory(), ".json")
    path.write_text(text, encoding="utf-8")
    return path


def model_name(model) -> str:
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
    """Sample a take with everything kept and watch its last chunk; return the map, the shares `[L,
    H]`, the mean over the batch, and the path that the map was written to.
    """
    files.plain_name(name)
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
