"""The node of SinkWindow."""

from comfy_api.latest import io

from ...kv_policies import SinkWindow
from ...kv_policies.retention.sink_window import SINK_ROPE
from ..constants import accepts
from ..sockets import CATEGORY, KVPolicySocket, fill, policy_input


class PolicySinkWindow(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="KeepsakePolicySinkWindow",
            display_name="KV Policy: Sink + Window",
            category=CATEGORY,
            description="Keeps the first frames and the latest frames; what lies between is "
            "forgotten. Memory stays constant.",
            search_aliases=[
                "sliding window",
                "attention sink",
                "StreamingLLM",
                "LongLive",
                "frame sink",
                "rolling KV cache",
            ],
            inputs=[
                io.Int.Input(
                    "window_frames",
                    default=SinkWindow.window_frames,
                    min=1,
                    max=4096,
                    tooltip="Latent frames in the cache at most: sink, window and the chunk in "
                    "work together. "
                    "Self-Forcing was trained with 21, LongLive with 12.",
                ),
                io.Int.Input(
                    "sink_frames",
                    default=SinkWindow.sink_frames,
                    min=0,
                    max=1024,
                    tooltip="First latent frames that are never forgotten. 0 is a plain sliding "
                    "window.",
                ),
                io.Combo.Input(
                    "sink_rope",
                    options=list(SINK_ROPE),
                    default=SinkWindow.sink_rope,
                    tooltip="absolute: the sink keeps its true place in time. shifted: it is "
                    "turned to stand just before the "
                    "window, so that no distance grows beyond it.",
                ),
                policy_input(),
                io.Boolean.Input(
                    "whole_chunks",
                    default=SinkWindow.whole_chunks,
                    optional=True,
                    tooltip="Chunks leave the window whole. Off: frame by frame, for models whose "
                    "window is no multiple of their chunk (Matrix-Game 2 gta_drive: 4).",
                ),
            ],
            outputs=[KVPolicySocket.Output(display_name="kv_policy")],
        )

    @classmethod
    def validate_inputs(cls, window_frames=None, sink_frames=None):
        return accepts(cls, SinkWindow, window_frames=window_frames, sink_frames=sink_frames)

    @classmethod
    def execute(
        cls,
        window_frames,
        sink_frames,
        sink_rope,
        kv_policy=None,
        whole_chunks=SinkWindow.whole_chunks,
    ):
        window = SinkWindow(sink_frames, window_frames, sink_rope, whole_chunks)
        return fill(kv_policy, retention=window)
