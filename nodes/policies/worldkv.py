"""The node of WorldKV."""

from comfy_api.latest import io

from ...kv_policies import WorldKV
from ..constants import accepts
from ..sockets import CATEGORY, KVPolicySocket, fill, policy_input


class PolicyWorldKV(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="KeepsakePolicyWorldKV",
            display_name="KV Policy: WorldKV",
            category=CATEGORY,
            description="Keeps the whole walk, half of most frames, and lets each chunk read what "
            "was seen from where the camera stands now. For models that follow a camera.",
            search_aliases=[
                "camera retrieval",
                "pose retrieval",
                "world memory",
                "world model",
                "LingBot",
                "loop closure",
            ],
            inputs=[
                io.Int.Input(
                    "sink_frames",
                    default=WorldKV.sink_frames,
                    min=0,
                    max=1024,
                    tooltip="First latent frames of a shot, which every chunk reads. 3 in the "
                    "authors' code.",
                ),
                io.Int.Input(
                    "retrieved_frames",
                    default=WorldKV.retrieved_frames,
                    min=1,
                    max=4096,
                    tooltip="Earlier latent frames that a chunk reads, in whole chunks: those "
                    "whose camera stood nearest. 18 in the authors' code.",
                ),
                io.Int.Input(
                    "recent_frames",
                    default=WorldKV.recent_frames,
                    min=1,
                    max=1024,
                    tooltip="Latest latent frames that a chunk reads at least, its own included. 6 "
                    "in the authors' code.",
                ),
                io.Float.Input(
                    "keep_ratio",
                    default=WorldKV.keep_ratio,
                    min=0.0,
                    max=1.0,
                    step=0.05,
                    round=False,
                    tooltip="Share of the tokens that stays of each frame of an older chunk but "
                    "its first, which stays whole. 1: all. 0.5 in the authors' code.",
                ),
                policy_input(),
            ],
            outputs=[KVPolicySocket.Output(display_name="kv_policy")],
        )

    @classmethod
    def validate_inputs(
        cls, sink_frames=None, retrieved_frames=None, recent_frames=None, keep_ratio=None
    ):
        return accepts(
            cls,
            WorldKV,
            sink_frames=sink_frames,
            retrieved_frames=retrieved_frames,
            recent_frames=recent_frames,
            keep_ratio=keep_ratio,
        )

    @classmethod
    def execute(cls, sink_frames, retrieved_frames, recent_frames, keep_ratio, kv_policy=None):
        retention = WorldKV(sink_frames, retrieved_frames, recent_frames, keep_ratio)
        return fill(kv_policy, retention=retention)
