"""The node of InfinityRope."""

from comfy_api.latest import io

from ...kv_policies import InfinityRope
from ..constants import accepts
from ..sockets import CATEGORY, KVPolicySocket, fill, policy_input


class PolicyInfinityRope(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="KeepsakePolicyInfinityRope",
            display_name="KV Policy: Infinity-RoPE",
            category=CATEGORY,
            description="Keeps the first frame and the latest ones, turned to stand right before "
            "each chunk, so that places in time never grow. A cut keeps them, far back in time.",
            search_aliases=[
                "block-relative RoPE",
                "KV flush",
                "RoPE cut",
                "scene cut",
                "endless video",
                "rolling KV cache",
            ],
            inputs=[
                io.Int.Input(
                    "window_frames",
                    default=InfinityRope.window_frames,
                    min=1,
                    max=4096,
                    tooltip="Latent frames that a chunk reads: the sink, the latest frames and the "
                    "chunk itself. 6 in the paper.",
                ),
                io.Int.Input(
                    "sink_frames",
                    default=InfinityRope.sink_frames,
                    min=0,
                    max=1024,
                    tooltip="First latent frames of the take, which always stay. 1 in the paper.",
                ),
                io.Int.Input(
                    "cut_distance",
                    default=InfinityRope.cut_distance,
                    min=1,
                    max=65536,
                    tooltip="Where a prompt comes in by cut: latent frames from the chunk back to "
                    "the first frame that it reads, for this one chunk. 45 in the paper.",
                ),
                policy_input(),
            ],
            outputs=[KVPolicySocket.Output(display_name="kv_policy")],
        )

    @classmethod
    def validate_inputs(cls, window_frames=None, sink_frames=None, cut_distance=None):
        return accepts(
            cls,
            InfinityRope,
            window_frames=window_frames,
            sink_frames=sink_frames,
            cut_distance=cut_distance,
        )

    @classmethod
    def execute(cls, window_frames, sink_frames, cut_distance, kv_policy=None):
        return fill(kv_policy, retention=InfinityRope(window_frames, sink_frames, cut_distance))
