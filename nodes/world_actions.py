"""Keys and mouse of a world model."""

from comfy_api.latest import io

from ..host.model.game_actions import action_control, describe_actions, no_prompt, read_actions
from ..host.model.game_modes import MODES_BY_NAME
from ..host.model.tensors import video_samples_of
from .constants import accepts
from .sockets import CATEGORY, ControlSocket


class WorldActions(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="KeepsakeWorldActions",
            display_name="World Actions",
            category=CATEGORY,
            has_intermediate_output=True,
            description="Keys and mouse for Matrix-Game 2, by pixel frame, and the empty prompt "
            "that it goes with.",
            search_aliases=[
                "Matrix-Game",
                "keyboard",
                "mouse",
                "WASD",
                "game controls",
                "world model",
            ],
            inputs=[
                io.Latent.Input("latent", tooltip="The take's latent: its length is the actions'."),
                io.Combo.Input(
                    "mode",
                    options=list(MODES_BY_NAME),
                    default="universal",
                    tooltip="The model's own mode, which its loader names: it says which keys "
                    "there are.",
                ),
                io.String.Input(
                    "keys",
                    default="w-32,wl-32,none-16",
                    multiline=True,
                    tooltip="Keys that are held and for how many pixel frames (4 are a latent "
                    "frame, 25 a second). universal: w a s d move, i k look up and down, j l turn. "
                    "gta_drive: w s drive, a d steer. templerun, one at a time: w jump, s slide, a "
                    "d to the sides, z c turn. none holds none, as do the frames after the end.",
                ),
            ],
            outputs=[
                ControlSocket.Output(display_name="control"),
                io.Conditioning.Output(display_name="prompt"),
            ],
        )

    @classmethod
    def validate_inputs(cls, mode=None, keys=None):
        return accepts(cls, lambda mode, keys: read_actions(mode, keys), mode=mode, keys=keys)

    @classmethod
    def execute(cls, latent, mode, keys):
        frames = video_samples_of(latent).shape[2]
        return io.NodeOutput(
            action_control(mode, keys, frames),
            no_prompt(),
            ui={"text": [describe_actions(mode, keys, frames)]},
        )
