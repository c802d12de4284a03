"""Camera poses from a file in ComfyUI's input folder."""

import os
from pathlib import Path

import folder_paths
import numpy as np
import torch
from torch import Tensor

SUFFIX = ".npy"
ROUNDED = 1e-2  # by which a rotation in a file may be off
FARTHEST = 1e9  # from the origin, in units of the path
REAL = "fiub"  # numpy's letters for kinds of real numbers


def pose_files() -> list[str]:
    """Names of the files that may hold poses; none where the folder cannot be read."""
    try:
        names = os.listdir(folder_paths.get_input_directory())
    except OSError:
        return []
    return sorted(name for name in names if name.lower().endswith(SUFFIX))


def pose_path(name: str) -> Path:
    """A file of the input folder. ValueError for a name that leads out of it."""
    if os.path.basename(name) != name or not name.lower().endswith(SUFFIX):
        raise ValueError(
            f"{name!r} is no {SUFFIX} file of the input folder. Put the poses there, and "
            "choose them."
        )
    return Path(folder_paths.get_input_directory(), name)


def read_poses(name: str, frames: int) -> Tensor:
    """The first poses of a file, `[frames, 4, 4]` in float64: camera to world, x right, y down, z
    forward, one for each pixel frame. ValueError, in a sentence, for anything else.

    Only numbers are read: a file that would have to run code is refused.
    """
    path = pose_path(name)
    try:
        # Mapped, since a file may be far longer than the take.
        poses = np.load(path, mmap_mode="r", allow_pickle=False)
        if not isinstance(poses, np.ndarray) or poses.dtype.kind not in REAL:
            raise ValueError("it is no array of real numbers")
    except Exception as error:  # numpy's reader raises kinds of its own, and memory may not do
        why = getattr(error, "strerror", None) or (str(error) or "it is empty").splitlines()[0]
        raise ValueError(
            f"'{name}' cannot be read as poses ({why}). Save an array [N, 4, 4] of numbers by "
            "numpy.save."
        ) from error
    shape = list(poses.shape)
    if poses.ndim != 3 or shape[1:] not in ([4, 4], [3, 4]):
        raise ValueError(
            f"'{name}' holds an array {shape}, and poses are [N, 4, 4]: camera to world, one for "
            "each pixel frame."
        )
    if not len(poses):
        raise ValueError(f"'{name}' holds no poses. Save one for each pixel frame.")
    if len(poses) < frames:
        fits = (len(poses) - 1) // 4 + 1
        raise ValueError(
            f"'{name}' has {len(poses)} poses, and the take's pixel frames are {frames}. Use a "
            f"latent of at most {fits} latent frames ({4 * fits - 3} pixel frames), or a longer "
            "path."
        )
    out = torch.eye(4, dtype=torch.float64).repeat(frames, 1, 1)
    out[:, :3] = torch.from_numpy(np.array(poses[:frames, :3], dtype=np.float64))
    turn = out[:, :3, :3]
    off = (turn @ turn.transpose(1, 2) - torch.eye(3, dtype=torch.float64)).abs().max()
    if not off < ROUNDED or (torch.linalg.det(turn) < 0).any() or not torch.isfinite(out).all():
        raise ValueError(
            f"'{name}' holds matrices that are no poses: their upper 3x3 must be rotations, "
            "camera to world, x right, y down, z forward."
        )
    if (farthest := float(out[:, :3, 3].abs().max())) > FARTHEST:
        raise ValueError(
            f"'{name}' puts the camera {farthest:g} from the origin, and at most {FARTHEST:g} can "
            "be told apart there. Move the path to the origin, or use larger units."
        )
    return out


def pose_file_version(name: str) -> str:
    """A text that changes whenever the file does; empty where there is none."""
    try:
        status = os.stat(pose_path(name))
    except (OSError, ValueError):  # what is wrong is said where it is read
        return ""
    return f"{status.st_mtime_ns} {status.st_size} {status.st_ino}"
