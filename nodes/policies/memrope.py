"""The node of MemRope."""

from comfy_api.latest import io

from ...kv_policies import MemRope
from ..constants import accepts
from ..sockets import CATEGORY, KVPolicySocket, fill, policy_input


class PolicyMemRope(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="KeepsakePolicyMemRope",
            display_name="KV Policy: MemRoPE",
            category=CATEGORY,
            description="Keeps the first frames and the latest ones, and all that has left as two "
            "running means, a slow and a fast one. Memory stays constant.",
            search_aliases=[
                "memory tokens",
                "EMA",
                "running mean",
                "block-relative RoPE",
                "online RoPE indexing",
                "endless video",
                "training-free",
            ],
            inputs=[
                io.Int.Input(
                    "window_frames",
                    default=MemRope.window_frames,
                    min=1,
                    max=4096,
                    tooltip="Latent frames that a chunk reads: the sink, two frames of means, the "
                    "latest frames and the chunk itself. 12 in the paper.",
                ),
                io.Int.Input(
                    "sink_frames",
                    default=MemRope.sink_frames,
                    min=0,
                    max=1024,
                    tooltip="First latent frames that are never forgotten. 3 in the paper.",
                ),
                io.Float.Input(
                    "alpha_long",
                    default=MemRope.alpha_long,
                    min=0.0,
                    max=1.0,
                    step=0.001,
                    round=False,
                    tooltip="How much of what leaves the slow mean takes up each time.",
                ),
                io.Float.Input(
                    "alpha_short",
                    default=MemRope.alpha_short,
                    min=0.0,
                    max=1.0,
                    step=0.01,
                    round=False,
                    tooltip="How much of it the fast mean takes up.",
                ),
                io.Boolean.Input(
                    "adaptive",
                    default=MemRope.adaptive,
                    tooltip="A mean for each place of the picture, and a fast one that takes up "
                    "more where the picture changes: a tenth of alpha_short to five times. Off: "
                    "one mean of the whole picture, as in the authors' configurations.",
                ),
                policy_input(),
            ],
            outputs=[KVPolicySocket.Output(display_name="kv_policy")],
        )

    @classmethod
    def validate_inputs(cls, window_frames=None, sink_frames=None):
        """What adaptive does not go with is said when the node runs: named here, each mistake would
        be reported at these inputs, too.
        """
        return accepts(cls, MemRope, window_frames=window_frames, sink_frames=sink_frames)

    @classmethod
    def execute(cls, window_frames, sink_frames, alpha_long, alpha_short, adaptive, kv_policy=None):
        retention = MemRope(window_frames, sink_frames, alpha_long, alpha_short, adaptive)
        return fill(kv_policy, retention=retention)
