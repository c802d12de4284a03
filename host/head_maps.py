"""Head maps in ComfyUI's folders, and how one is made from a model."""
import os

import folder_paths
import torch
from torch import Tensor

from ..kv_policies import HeadMap, KVPolicy
from ..kv_policies.head_profile import HeadProfile, head_map_of
from .profiles import profile_of
from .take import sample_take

FOLDER = "kv_head_maps"              # in models/, where a user puts files, and in output/, where Profile Heads writes
SHIPPED = os.path.join(os.path.dirname(os.path.dirname(__file__)), "demo", "weights")


def head_map_names() -> list[str]:
    if FOLDER not in folder_paths.folder_names_and_paths:
        paths = [os.path.join(folder_paths.models_dir, FOLDER), os.path.join(folder_paths.get_output_directory(), FOLDER), SHIPPED]
        folder_paths.folder_names_and_paths[FOLDER] = (paths, {".json"})
    return folder_paths.get_filename_list(FOLDER)


def load_head_map(name: str) -> HeadMap:
    head_map_names()
    with open(folder_paths.get_full_path_or_raise(FOLDER, name), encoding="utf-8", errors="replace") as file:
        return HeadMap.from_json(file.read(), name)


def save_head_map(head_map: HeadMap, name: str) -> str:
    """Write a map into the output folder under a name that is free; return its path."""
    folder, stem, counter, _, _ = folder_paths.get_save_image_path(os.path.join(FOLDER, name), folder_paths.get_output_directory())
    path = os.path.join(folder, f"{stem}_{counter:05}_.json")
    with open(path, "w", encoding="utf-8") as file:
        file.write(head_map.to_json())
    return path


def profile_heads(model, positive, latent: dict, *, seed: int, static_share: float, prefix: dict | None,
                  control: Tensor | None) -> tuple[HeadMap, Tensor]:
    """Sample a take with everything kept and watch its last chunk; return the map and the shares `[L, H]`, the mean over the batch."""
    by_layer: dict[int, list[Tensor]] = {}

    def watch(layer: int, share: Tensor):
        by_layer.setdefault(layer, []).append(share.cpu())

    sample_take(model, positive, None, 1.0, latent, seed=seed, steps=0, chunk_frames=0, policy=KVPolicy(HeadProfile(watch)), prefix=prefix,
                control=control, sigmas=None)
    shares = torch.stack([torch.stack(by_layer[layer]).mean(0) for layer in sorted(by_layer)])
    profile = profile_of(model.model_options)
    return head_map_of(profile.name if profile else type(model.model).__name__, shares, static_share), shares
