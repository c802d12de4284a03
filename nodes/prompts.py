"""Prompts that change in the course of a take."""

from functools import partial

from comfy_api.latest import io

from ..host.forward.prompts import PromptStart, add_prompt, parse_timeline, prompt_timeline
from ..kv_policies import SWITCHES
from .constants import accepts
from .sockets import CATEGORY

MOST_FPS = 240.0


def switch_inputs():
    return [
        io.Combo.Input(
            "mode",
            options=list(SWITCHES),
            default="recache",
            tooltip="swap: the new prompt steers new frames, the memory stays. recache: the latest "
            "frames are also run again under the new prompt (LongLive). cut: a new shot that "
            "remembers nothing of the one before; with Infinity-RoPE, from far back in time.",
        ),
        io.Int.Input(
            "blend",
            default=0,
            min=0,
            max=1024,
            tooltip="Latent frames over which the text goes from the old prompt to the new; 0 "
            "changes it at once. "
            "A recache waits for its end.",
        ),
        io.Int.Input(
            "recache_frames",
            default=12,
            min=0,
            max=1024,
            tooltip="recache: latest latent frames that are run again. 12 in LongLive.",
        ),
    ]


class PromptTimeline(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="KeepsakePromptTimeline",
            display_name="Prompt Timeline",
            category=CATEGORY,
            description="A prompt that changes in the course of an AR take: a line for each, with "
            "the latent frame, "
            "second or time at which it begins.",
            search_aliases=[
                "prompt schedule",
                "prompt travel",
                "change prompt",
                "multi-prompt",
                "LongLive recache",
            ],
            inputs=[
                io.Clip.Input("clip", tooltip="The model's text encoder."),
                io.String.Input(
                    "text",
                    multiline=True,
                    default="0: a lighthouse at dawn\n48: a storm rolls in",
                    tooltip="'48: ...' begins at latent frame 48, '6s: ...' after six seconds, "
                    "'1:30: ...' after a minute and a half. The first line begins at 0.",
                ),
                io.Float.Input(
                    "fps",
                    default=16.0,
                    min=0.1,
                    max=MOST_FPS,
                    step=0.1,
                    tooltip="Pictures a second, for lines in seconds or minutes. 16 for Wan 2.1.",
                ),
                *switch_inputs(),
            ],
            outputs=[io.Conditioning.Output(display_name="conditioning")],
        )

    @classmethod
    def validate_inputs(cls, text=None):
        """The text alone, so that what is wrong with it is reported at this input and no other.
        With the most pictures a second no two lines begin together that would not with fewer.
        """
        check = partial(parse_timeline, fps=MOST_FPS, mode="swap", blend=0, recache_frames=0)
        return accepts(cls, check, text=text)

    @classmethod
    def execute(cls, clip, text, fps, mode, blend, recache_frames):
        return io.NodeOutput(prompt_timeline(clip, text, fps, mode, blend, recache_frames))


class PromptAtFrame(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="KeepsakePromptAtFrame",
            display_name="Prompt At Frame",
            category=CATEGORY,
            description="Changes from one conditioning to another at a latent frame of an AR take. "
            "Chain them for more.",
            search_aliases=[
                "join prompts",
                "prompt switch",
                "prompt schedule",
                "change prompt",
                "new shot",
            ],
            inputs=[
                io.Conditioning.Input(
                    "conditioning", tooltip="The prompt until then, or one that changes already."
                ),
                io.Conditioning.Input("next", tooltip="The prompt from then on."),
                io.Int.Input(
                    "start_frame",
                    default=48,
                    min=1,
                    max=1048576,
                    tooltip="Latent frame at which it begins; it takes effect with the next "
                    "chunk. Given frames count.",
                ),
                *switch_inputs(),
            ],
            outputs=[io.Conditioning.Output(display_name="conditioning")],
        )

    @classmethod
    def validate_inputs(cls, mode=None, blend=None):
        return accepts(cls, partial(PromptStart, 1), mode=mode, blend=blend)

    @classmethod
    def execute(cls, conditioning, next, start_frame, mode, blend, recache_frames):
        return io.NodeOutput(
            add_prompt(conditioning, next, start_frame, mode, blend, recache_frames)
        )
