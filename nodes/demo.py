"""The demo world: a small trained model that ships with the pack, and its camera."""

from comfy_api.latest import io

from ..demo.camera import camera_input
from ..demo.load import load_demo_world
from ..demo.world import CAMERA_PATHS, camera_positions
from ..host.model.camera_keys import read_keys
from ..host.model.tensors import samples_of
from .constants import accepts
from .sockets import CATEGORY, ControlSocket


class DemoWorld(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="KeepsakeDemoWorld",
            display_name="Demo World",
            category=CATEGORY,
            description="A small side-scrolling town with its trained video model, text encoder "
            "and VAE. Runs on a CPU; "
            "128x64 pixels. Prompts it knows: downtown, old town or harbour, at day, sunset, "
            "night or dawn.",
            search_aliases=["example model", "toy model", "test model", "quickstart"],
            inputs=[],
            outputs=[
                io.Model.Output(display_name="model"),
                io.Clip.Output(display_name="clip"),
                io.Vae.Output(display_name="vae"),
            ],
        )

    @classmethod
    def execute(cls):
        return io.NodeOutput(*load_demo_world())


def check_walk(keys: str):
    """Raise ValueError for keys that cannot be read; without any the path is the walk."""
    if keys.strip():
        read_keys(keys)


class DemoCamera(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="KeepsakeDemoCamera",
            display_name="Demo World Camera",
            category=CATEGORY,
            description="A camera path through the demo world, as the control that its model "
            "follows.",
            search_aliases=["camera path", "pan", "control", "trajectory"],
            inputs=[
                io.Latent.Input(
                    "latent", tooltip="The take's latent: its length and size are the control's."
                ),
                io.Combo.Input(
                    "path",
                    options=list(CAMERA_PATHS),
                    default="go and return",
                    tooltip="go and return walks away, comes back and stays; loop goes there and "
                    "back again and again.",
                ),
                io.Int.Input(
                    "away_frames",
                    default=14,
                    min=1,
                    max=4096,
                    tooltip="Latent frames the camera walks before it turns back. 8 frames are "
                    "one screen.",
                ),
                io.Int.Input(
                    "start",
                    default=0,
                    min=0,
                    max=31,
                    tooltip="Where in the world the walk begins, in screens; the world is 32 "
                    "screens round.",
                ),
                io.String.Input(
                    "keys",
                    default="",
                    optional=True,
                    tooltip="A walk in place of the path, in words as World Camera takes them: "
                    "keys and pixel frames, d-32,a-32,none-8. d and l go right, a and j left. "
                    "Empty: the path.",
                ),
            ],
            outputs=[ControlSocket.Output(display_name="control")],
        )

    @classmethod
    def validate_inputs(cls, keys=None):
        return accepts(cls, check_walk, keys=keys)

    @classmethod
    def execute(cls, latent, path, away_frames, start, keys=""):
        shape = samples_of(latent).shape
        positions = camera_positions(shape, path, away_frames, start, keys)
        return io.NodeOutput(camera_input(positions, *shape[3:]))
