"""The node of EmaSink."""

from comfy_api.latest import io

from ...kv_policies import EmaSink
from ..constants import accepts
from ..sockets import CATEGORY, KVPolicySocket, fill, policy_input


class PolicyEmaSink(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="KeepsakePolicyEmaSink",
            display_name="KV Policy: EMA Sink (Reward Forcing)",
            category=CATEGORY,
            description="Keeps a sink and the latest frames; a frame that leaves is blended into "
            "the sink. Memory stays constant.",
            search_aliases=[
                "Reward Forcing",
                "EMA-Sink",
                "blended sink",
                "attention sink",
                "running mean",
                "endless video",
            ],
            inputs=[
                io.Int.Input(
                    "window_frames",
                    default=EmaSink.window_frames,
                    min=1,
                    max=4096,
                    tooltip="Latent frames that a chunk reads: the sink, the latest frames and the "
                    "chunk itself. Reward Forcing was trained with 9.",
                ),
                io.Int.Input(
                    "sink_frames",
                    default=EmaSink.sink_frames,
                    min=1,
                    max=1024,
                    tooltip="Latent frames of the sink. Reward Forcing was trained with 3, as many "
                    "as a chunk has.",
                ),
                io.Float.Input(
                    "sink_weight",
                    default=EmaSink.sink_weight,
                    min=0.0,
                    max=1.0,
                    step=0.001,
                    round=False,
                    tooltip="How much of the sink stays each time that a frame is blended into it. "
                    "0.999 in the paper; 1 leaves the sink as it began.",
                ),
                policy_input(),
            ],
            outputs=[KVPolicySocket.Output(display_name="kv_policy")],
        )

    @classmethod
    def validate_inputs(cls, window_frames=None, sink_frames=None):
        return accepts(cls, EmaSink, window_frames=window_frames, sink_frames=sink_frames)

    @classmethod
    def execute(cls, window_frames, sink_frames, sink_weight, kv_policy=None):
        return fill(kv_policy, retention=EmaSink(window_frames, sink_frames, sink_weight))
