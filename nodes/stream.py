"""Takes that are written to a video file while they are made."""

from comfy_api.latest import io

from ..host.files.growing_files import StreamToFile
from ..host.files.names import plain_prefix
from .constants import accepts
from .sockets import CATEGORY, StreamSocket


class StreamToFileNode(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="KeepsakeStreamToFile",
            display_name="AR Video Stream To File",
            category=CATEGORY,
            description="Connected to the sampler, writes each finished chunk into a video file "
            "that can be watched while it grows, "
            "and saves what the take needs to go on after a crash.",
            search_aliases=[
                "endless video",
                "streaming",
                "live video",
                "crash safe",
                "save while sampling",
            ],
            inputs=[
                io.Vae.Input(
                    "vae", tooltip="The take's own VAE: Wan 2.1's, which can be decoded in steps."
                ),
                io.String.Input(
                    "filename_prefix",
                    default="keepsake/stream",
                    tooltip="Video in the output folder; a number is added.",
                ),
                io.Float.Input(
                    "fps",
                    default=16.0,
                    min=1.0,
                    max=240.0,
                    step=0.001,
                    tooltip="Pictures a second of the video.",
                ),
                io.Int.Input(
                    "save_every",
                    default=8,
                    min=1,
                    max=4096,
                    tooltip="Chunks from one save of latents and memory to the next: what a crash "
                    "can lose at most.",
                ),
                io.Boolean.Input(
                    "resume",
                    default=False,
                    tooltip="Go on with the latest take of this name, from its last save.",
                ),
            ],
            outputs=[StreamSocket.Output(display_name="stream")],
        )

    @classmethod
    def validate_inputs(cls, filename_prefix=None):
        return accepts(cls, plain_prefix, filename_prefix=filename_prefix)

    @classmethod
    def execute(cls, vae, filename_prefix, fps, save_every, resume):
        return io.NodeOutput(StreamToFile(vae, filename_prefix, fps, save_every, resume))
