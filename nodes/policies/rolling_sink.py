"""The node of RollingSink."""

from comfy_api.latest import io

from ...kv_policies import RollingSink
from ..sockets import CATEGORY, KVPolicySocket, fill, policy_input


class PolicyRollingSink(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="KeepsakePolicyRollingSink",
            display_name="KV Policy: Rolling Sink",
            category=CATEGORY,
            description="Keeps the latest chunk, and before it replays the take's first frames, "
            "forward and backward, as if they had just been made. Memory stays constant.",
            search_aliases=[
                "replay",
                "attention sink",
                "endless video",
                "drift",
                "training-free",
                "rolling KV cache",
            ],
            inputs=[
                io.Int.Input(
                    "window_frames",
                    default=RollingSink.window_frames,
                    min=1,
                    max=4096,
                    tooltip="Latent frames that a chunk reads, its own included. The first "
                    "window_frames less a chunk are replayed: 18 of a window of 21. The paper "
                    "uses what the model was trained with, 21.",
                ),
                policy_input(),
            ],
            outputs=[KVPolicySocket.Output(display_name="kv_policy")],
        )

    @classmethod
    def execute(cls, window_frames, kv_policy=None):
        return fill(kv_policy, retention=RollingSink(window_frames))
