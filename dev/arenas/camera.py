"""The camera of a take behind given frames, for the models that follow one: still while they last,
then a path.
"""

import torch
from keepsake.demo.camera import camera_input
from keepsake.demo.world import camera_positions
from keepsake.host.model.camera import Lens, camera_control, pixel_frames
from keepsake.host.model.camera_keys import PATHS, keys_by_frame, read_keys, walk_poses

from .maker import CELL, Maker

STILL = "stand still"
AWAY = 8  # latent frames until a path that comes back turns round
SCALE = 0.2  # as World Camera advises for a take that goes on, at the usual speed of its keys


def camera_words(camera: str, given: int, new: int) -> str:
    """The walk in keys of a take: none for the given latent frames, then a drawn path's, or the
    keys that `camera` is. ValueError, in a sentence, for what is neither.
    """
    still = pixel_frames(max(1, given)) - 1
    words = PATHS[camera](4 * AWAY, 4 * new) if camera in PATHS else camera
    try:
        read_keys(words)
    except ValueError as error:
        raise ValueError(
            f"--camera is '{camera}': no path ({', '.join(PATHS)}), and no keys: {error}"
        ) from None
    return f"none-{still},{words}" if still else words


def control_of(maker: Maker, camera: str, given: int, new: int, size: tuple[int, int]):
    """The control of a take of `given` and `new` latent frames; None for a model that follows no
    camera. ValueError, in a sentence, for one that follows keys instead.
    """
    words = camera_words(camera, given, new)
    frames = given + new
    if maker.kind is None:
        if maker.profile.needs_control:  # the demo world's
            cells = [side // CELL for side in size]
            positions = camera_positions((1, 16, frames, *cells), "hold", 1, 0, words)
            return camera_input(positions, *cells)
        if camera != STILL:
            raise ValueError(
                f"--camera is '{camera}', and {maker.profile.name} follows none. Leave it out."
            )
        return None
    if maker.kind.control != "world_camera":
        raise ValueError(
            f"{maker.kind.name} follows {maker.kind.node} and no camera, and it reads no prompt: "
            "these takes need both. Use LingBot-World, or a model of text to video."
        )
    moves = pixel_frames(frames) - 1
    poses = walk_poses(keys_by_frame(read_keys(words), moves)) if moves else torch.eye(4)[None]
    return camera_control(poses, SCALE, Lens())
