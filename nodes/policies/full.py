"""The node of FullKV."""

from comfy_api.latest import io

from ...kv_policies import FullKV
from ..sockets import CATEGORY, KVPolicySocket, fill, policy_input


class PolicyFull(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="KeepsakePolicyFull",
            display_name="KV Policy: Full",
            category=CATEGORY,
            description="Keeps every token of the past. The reference for all other policies; "
            "memory grows with the take's length.",
            search_aliases=["FullKV", "full cache", "no eviction", "keep everything"],
            inputs=[policy_input()],
            outputs=[KVPolicySocket.Output(display_name="kv_policy")],
        )

    @classmethod
    def execute(cls, kv_policy=None):
        return fill(kv_policy, retention=FullKV())
