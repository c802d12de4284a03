"""The node of DeepForcing."""

from comfy_api.latest import io

from ...kv_policies import DeepForcing
from ..constants import accepts
from ..sockets import CATEGORY, KVPolicySocket, fill, policy_input


class PolicyDeepForcing(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="KeepsakePolicyDeepForcing",
            display_name="KV Policy: Deep Forcing",
            category=CATEGORY,
            description="Keeps many first frames, which move along in time, the latest frames, "
            "and of what lies between the tokens that the latest queries point at, in each layer "
            "its own.",
            search_aliases=[
                "participative compression",
                "deep sink",
                "token selection",
                "attention score",
                "KV cache compression",
            ],
            inputs=[
                io.Int.Input(
                    "window_frames",
                    default=DeepForcing.window_frames,
                    min=1,
                    max=4096,
                    tooltip="Most latent frames in the cache. A chunk that would make it more "
                    "trims it to budget_frames. 21 in the paper.",
                ),
                io.Int.Input(
                    "budget_frames",
                    default=DeepForcing.budget_frames,
                    min=1,
                    max=4096,
                    tooltip="Latent frames' worth of tokens that are left then: sink, chosen "
                    "tokens and recent frames. 16 in the paper.",
                ),
                io.Int.Input(
                    "sink_frames",
                    default=DeepForcing.sink_frames,
                    min=1,
                    max=1024,
                    tooltip="First latent frames of a shot, which always stay. 10 in the paper.",
                ),
                io.Int.Input(
                    "recent_frames",
                    default=DeepForcing.recent_frames,
                    min=1,
                    max=1024,
                    tooltip="Latest latent frames that stay whole then, the chunk in work "
                    "included; and frames of queries that choose. 4 in the paper.",
                ),
                io.Int.Input(
                    "reuse_limit",
                    default=DeepForcing.reuse_limit,
                    min=0,
                    max=1024,
                    tooltip="A token that was chosen so often gives way to others. 0: no limit. 7 "
                    "in the authors' code.",
                ),
                policy_input(),
            ],
            outputs=[KVPolicySocket.Output(display_name="kv_policy")],
        )

    @classmethod
    def validate_inputs(
        cls, window_frames=None, budget_frames=None, sink_frames=None, recent_frames=None
    ):
        return accepts(
            cls,
            DeepForcing,
            window_frames=window_frames,
            budget_frames=budget_frames,
            sink_frames=sink_frames,
            recent_frames=recent_frames,
        )

    @classmethod
    def execute(
        cls, window_frames, budget_frames, sink_frames, recent_frames, reuse_limit, kv_policy=None
    ):
        retention = DeepForcing(
            sink_frames, budget_frames, recent_frames, window_frames, reuse_limit
        )
        return fill(kv_policy, retention=retention)
