"""The camera of a world model."""

from comfy_api.latest import io

from ..host.files.pose_files import pose_file_version, pose_files, read_poses
from ..host.model.camera import Lens, camera_control, pixel_frames
from ..host.model.camera_keys import (
    MOVE,
    PATHS,
    TURN,
    beginning,
    keys_by_frame,
    read_keys,
    walk_poses,
)
from ..host.model.tensors import video_samples_of
from ..host.show.camera_picture import picture_of_path
from ..host.show.plots import save_preview
from .constants import accepts
from .sockets import CATEGORY, ControlSocket

LENS = Lens()
KEYS, POSES, NO_FILE = "keys", "poses file", "none"
TEXT_SHOWN = 200  # characters of a walk that the node repeats


def check_walk(path: str, keys: str):
    """Raise ValueError where the path is in keys, and they cannot be read."""
    if path == KEYS:
        read_keys(keys)


class WorldCamera(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="KeepsakeWorldCamera",
            display_name="World Camera",
            category=CATEGORY,
            has_intermediate_output=True,
            description="A camera path for LingBot-World: drawn, in keys, or from a file of poses. "
            "Shows it from above.",
            search_aliases=[
                "camera path",
                "camera control",
                "LingBot",
                "WASD",
                "trajectory",
                "poses",
                "world model",
            ],
            inputs=[
                io.Latent.Input("latent", tooltip="The take's latent: its length is the path's."),
                io.Combo.Input(
                    "path",
                    options=[*PATHS, KEYS, POSES],
                    default="away and back",
                    tooltip="A drawn path, the walk in keys, or the poses in a file.",
                ),
                io.Int.Input(
                    "away_frames",
                    default=12,
                    min=1,
                    max=4096,
                    tooltip="Latent frames until a path that comes back turns round.",
                ),
                io.String.Input(
                    "keys",
                    default="w-16,wj-8,none-8",
                    multiline=True,
                    tooltip="For path 'keys': keys that are held and for how many pixel frames (4 "
                    "are a latent frame). w a s d move, i k look up and down, j l turn; none holds "
                    "none. After its end the camera stands still.",
                ),
                io.Combo.Input(
                    "poses",
                    options=[NO_FILE, *pose_files()],
                    default=NO_FILE,
                    tooltip="For path 'poses file': a .npy file in the input folder with an array "
                    "[N, 4, 4], camera to world (x right, y down, z forward), one pose for each "
                    "pixel frame.",
                ),
                io.Float.Input(
                    "move",
                    default=MOVE,
                    min=0.0,
                    max=100.0,
                    step=0.01,
                    round=False,
                    tooltip="How far w a s d go in a pixel frame. Only ratios count, unless scale "
                    "is set.",
                ),
                io.Float.Input(
                    "turn",
                    default=TURN,
                    min=0.0,
                    max=45.0,
                    step=0.1,
                    round=False,
                    tooltip="Degrees that i k j l turn in a pixel frame.",
                ),
                io.Float.Input(
                    "scale",
                    default=0.0,
                    min=0.0,
                    max=1e6,
                    step=0.001,
                    round=False,
                    tooltip="What a move of 1 is to the model, in units of the path, from one "
                    "latent frame to the next. 0: the largest move of this path. A take that goes "
                    "on, or whose path you change, needs one number from the start: 0.2 with the "
                    "moves above.",
                ),
                *(
                    io.Float.Input(
                        name,
                        default=getattr(LENS, name),
                        min=1.0,
                        max=1e5,
                        step=0.01,
                        round=False,
                        optional=True,
                        tooltip=f"{what} in pixels of a picture of 832x480, whatever the take's "
                        "size.",
                    )
                    for name, what in (
                        ("fx", "Focal length across"),
                        ("fy", "Focal length down"),
                        ("cx", "Centre across"),
                        ("cy", "Centre down"),
                    )
                ),
            ],
            outputs=[
                ControlSocket.Output(display_name="control"),
                io.Float.Output(display_name="scale"),
                io.Image.Output(display_name="picture"),
            ],
        )

    @classmethod
    def validate_inputs(cls, path=None, keys=None):
        return accepts(cls, check_walk, path=path, keys=keys)

    @classmethod
    def fingerprint_inputs(cls, path, poses, **inputs):
        return pose_file_version(poses) if path == POSES and poses != NO_FILE else ""

    @classmethod
    def execute(
        cls,
        latent,
        path,
        away_frames,
        keys,
        poses,
        move,
        turn,
        scale,
        fx=LENS.fx,
        fy=LENS.fy,
        cx=LENS.cx,
        cy=LENS.cy,
    ):
        frames = video_samples_of(latent).shape[2]
        moves = pixel_frames(frames) - 1
        if path == POSES:
            if poses == NO_FILE:
                raise ValueError(
                    "The path is 'poses file' and no file is chosen. Put a .npy file into the "
                    "input folder and choose it in poses, or take another path."
                )
            walk, words = read_poses(poses, pixel_frames(frames)), f"'{poses}'"
        else:
            words = keys if path == KEYS else PATHS[path](4 * away_frames, max(1, moves))
            walk = walk_poses(keys_by_frame(read_keys(words), moves), move, turn)
        control = camera_control(walk, scale, Lens(fx, fy, cx, cy))
        picture = picture_of_path(control.poses, f"{path}, {frames} latent frames")
        shown = beginning(" ".join(words.split()), TEXT_SHOWN)
        text = f"{frames} latent frames of {shown}; scale {control.scale:g}."
        return io.NodeOutput(
            control,
            control.scale,
            picture,
            ui={"text": [text], "images": save_preview(picture, cls)},
        )
