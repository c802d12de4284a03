"""One node per policy. Each fills one slot of the policy that comes in and hands it on."""
from dataclasses import replace

from comfy_api.latest import io

from ..kv_policies import FullKV, KVPolicy, Retention, SinkWindow
from ..kv_policies.sink_window import SINK_ROPE
from .sockets import CATEGORY, KVPolicySocket, policy_input


def with_retention(kv_policy: KVPolicy | None, retention: Retention) -> io.NodeOutput:
    return io.NodeOutput(replace(kv_policy or KVPolicy(), retention=retention))


class PolicyFull(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="KeepsakePolicyFull", display_name="KV Policy: Full", category=CATEGORY,
            description="Keeps every token of the past. The reference for all other policies; memory grows with the take's length.",
            search_aliases=["FullKV", "full cache", "no eviction", "keep everything"],
            inputs=[policy_input()],
            outputs=[KVPolicySocket.Output(display_name="kv_policy")])

    @classmethod
    def execute(cls, kv_policy=None):
        return with_retention(kv_policy, FullKV())


class PolicySinkWindow(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="KeepsakePolicySinkWindow", display_name="KV Policy: Sink + Window", category=CATEGORY,
            description="Keeps the first frames and the latest frames; what lies between is forgotten. Memory stays constant.",
            search_aliases=["sliding window", "attention sink", "StreamingLLM", "LongLive", "frame sink", "rolling KV cache"],
            inputs=[
                io.Int.Input("window_frames", default=21, min=1, max=4096,
                             tooltip="Latent frames in the cache at most: sink, window and the chunk in work together. "
                                     "Self-Forcing was trained with 21, LongLive with 12."),
                io.Int.Input("sink_frames", default=3, min=0, max=1024,
                             tooltip="First latent frames that are never forgotten. 0 is a plain sliding window."),
                io.Combo.Input("sink_rope", options=list(SINK_ROPE), default="absolute",
                               tooltip="absolute: the sink keeps its true place in time. shifted: it is turned to stand just before the "
                                       "window, so that no distance grows beyond it."),
                policy_input(),
            ],
            outputs=[KVPolicySocket.Output(display_name="kv_policy")])

    @classmethod
    def execute(cls, window_frames, sink_frames, sink_rope, kv_policy=None):
        return with_retention(kv_policy, SinkWindow(sink_frames, window_frames, sink_rope))
