"""The node of DeepSink."""

from comfy_api.latest import io

from ...kv_policies import DeepSink
from ..constants import accepts
from ..sockets import CATEGORY, KVPolicySocket, fill, policy_input


class PolicyDeepSink(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="KeepsakePolicyDeepSink",
            display_name="KV Policy: Deep Sink",
            category=CATEGORY,
            description="Keeps many first frames and the latest ones. The first frames move along "
            "in time, a little way behind the latest.",
            search_aliases=[
                "Deep Forcing",
                "attention sink",
                "temporal RoPE adjustment",
                "sliding window",
                "rolling KV cache",
            ],
            inputs=[
                io.Int.Input(
                    "window_frames",
                    default=DeepSink.window_frames,
                    min=1,
                    max=4096,
                    tooltip="Latent frames that a chunk reads at most: sink, latest frames and the "
                    "chunk itself. 21 in the paper.",
                ),
                io.Int.Input(
                    "sink_frames",
                    default=DeepSink.sink_frames,
                    min=1,
                    max=1024,
                    tooltip="First latent frames of a shot, which always stay. 14 in the authors' "
                    "code, two thirds of the window.",
                ),
                policy_input(),
            ],
            outputs=[KVPolicySocket.Output(display_name="kv_policy")],
        )

    @classmethod
    def validate_inputs(cls, window_frames=None, sink_frames=None):
        return accepts(cls, DeepSink, window_frames=window_frames, sink_frames=sink_frames)

    @classmethod
    def execute(cls, window_frames, sink_frames, kv_policy=None):
        return fill(kv_policy, retention=DeepSink(sink_frames, window_frames))
