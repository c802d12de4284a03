"""The node of TempDiff."""

from comfy_api.latest import io

from ...kv_policies import TempDiff
from ..constants import accepts
from ..inputs import reindex_inputs
from ..sockets import CATEGORY, KVPolicySocket, fill, policy_input


class PolicyTempDiff(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="KeepsakePolicyTempDiff",
            display_name="KV Policy: TempDiff (once)",
            category=CATEGORY,
            description="Chooses once, where given frames end: of the given history the blocks "
            "that change most from frame to frame stay. For comparisons with DeCoPrune's paper.",
            search_aliases=[
                "patchification",
                "temporal difference",
                "key cosine",
                "baseline",
                "context compression",
            ],
            inputs=[
                io.Int.Input(
                    "blocks",
                    default=TempDiff.blocks,
                    min=0,
                    max=0x7FFFFFFF,
                    tooltip="Blocks of tokens that stay, of at most 6x13 a frame. 0: the paper's "
                    "1657 of a minute (232 frames), in proportion: 9.2 %.",
                ),
                io.Int.Input(
                    "sink_frames",
                    default=TempDiff.sink_frames,
                    min=0,
                    max=1024,
                    tooltip="First latent frames, which stay whole.",
                ),
                io.Int.Input(
                    "recent_frames",
                    default=TempDiff.recent_frames,
                    min=1,
                    max=1024,
                    tooltip="Latest of the given latent frames, which stay whole.",
                ),
                *reindex_inputs(),
                policy_input(),
            ],
            outputs=[KVPolicySocket.Output(display_name="kv_policy")],
        )

    @classmethod
    def validate_inputs(cls, virtual_length=None, reindex_recent=None):
        return accepts(cls, TempDiff, virtual_length=virtual_length, reindex_recent=reindex_recent)

    @classmethod
    def execute(cls, kv_policy=None, **parameters):
        return fill(kv_policy, retention=TempDiff(**parameters))
