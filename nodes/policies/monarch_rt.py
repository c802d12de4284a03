"""The node of MonarchRT."""

from comfy_api.latest import io

from ...kv_policies import MonarchRT
from ..sockets import CATEGORY, KVPolicySocket, fill, policy_input


class PolicyMonarchRT(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="KeepsakePolicyMonarchRT",
            display_name="KV Policy: MonarchRT",
            category=CATEGORY,
            description="Reads the whole memory by an approximate attention that costs less: "
            "first along the rows of each frame, then over the rows. The same memory.",
            search_aliases=[
                "Monarch attention",
                "Monarch matrix",
                "structured attention",
                "sparse attention",
                "fast attention",
            ],
            inputs=[
                io.Int.Input(
                    "h_reduce",
                    default=MonarchRT.h_reduce,
                    min=1,
                    max=4096,
                    tooltip="Bands that a frame is cut into, one below the other; published: 1 or "
                    "2. More come closer to full attention and cost more. It must divide the rows "
                    "of a latent frame's tokens.",
                ),
                policy_input(),
            ],
            outputs=[KVPolicySocket.Output(display_name="kv_policy")],
        )

    @classmethod
    def execute(cls, h_reduce, kv_policy=None):
        return fill(kv_policy, selection=MonarchRT(h_reduce))
