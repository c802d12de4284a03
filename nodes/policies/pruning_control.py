"""The node of the controls for DeCoPrune."""

from dataclasses import replace

from comfy_api.latest import io

from ...kv_policies.retention.pruning_controls import CONTROLS, control_of
from ..sockets import CATEGORY, KVPolicySocket


class PruningControl(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="KeepsakePruningControl",
            display_name="KV Policy: Pruning Control",
            category=CATEGORY,
            description="For comparisons: as many tokens of each chunk as DeCoPrune would keep, "
            "but others.",
            search_aliases=[
                "random pruning",
                "reverse pruning",
                "TempDiff",
                "ablation",
                "baseline",
            ],
            inputs=[
                KVPolicySocket.Input(
                    "kv_policy",
                    tooltip="From KV Policy: DeCoPrune, without a head map. Its numbers hold here "
                    "too.",
                ),
                io.Combo.Input(
                    "ranking",
                    options=list(CONTROLS),
                    default="random",
                    tooltip="random; reverse: the easiest to predict; "
                    "temporal difference: those that changed most since the frame before, chunk by "
                    "chunk (the paper's TempDiff is KV Policy: TempDiff (once)).",
                ),
            ],
            outputs=[KVPolicySocket.Output(display_name="kv_policy")],
        )

    @classmethod
    def execute(cls, kv_policy, ranking):
        return io.NodeOutput(replace(kv_policy, retention=control_of(kv_policy.retention, ranking)))
