"""The node of DummyForcing."""

from comfy_api.latest import io

from ...kv_policies import DummyForcing
from ..sockets import CATEGORY, KVPolicySocket, fill, policy_input


class PolicyDummyForcing(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="KeepsakePolicyDummyForcing",
            display_name="KV Policy: Dummy Forcing",
            category=CATEGORY,
            description="Tells heads apart early in the take by what they look at: some then hold "
            "the first frame alone, some the latest frames, and half of them the latest one. No "
            "head map is needed.",
            search_aliases=[
                "Dummy Forcing",
                "dummy heads",
                "head-specialised",
                "KV cache compression",
                "online head classification",
            ],
            inputs=[
                io.Int.Input(
                    "num_dummy",
                    default=DummyForcing.num_dummy,
                    min=0,
                    max=1048576,
                    tooltip="Heads that hold the latest frame alone. 180 in the authors' code, "
                    "half of a 1.3B model's 360. 0: by dummy_share.",
                ),
                io.Float.Input(
                    "dummy_share",
                    default=DummyForcing.dummy_share,
                    min=0.0,
                    max=1.0,
                    step=0.01,
                    tooltip="The same as a share of all heads, for num_dummy 0.",
                ),
                io.Int.Input(
                    "ar_start",
                    default=DummyForcing.ar_start,
                    min=1,
                    max=1024,
                    tooltip="Chunk, from 0, by which heads are told apart; frame-wise models count "
                    "3 frames as one. 1 in the authors' code, 2 for LongLive.",
                ),
                io.Int.Input(
                    "local_frames",
                    default=DummyForcing.local_frames,
                    min=1,
                    max=1024,
                    tooltip="Latest latent frames that middle heads hold. 3 in the authors' code, "
                    "6 for LongLive with changing prompts.",
                ),
                policy_input(),
            ],
            outputs=[KVPolicySocket.Output(display_name="kv_policy")],
        )

    @classmethod
    def execute(cls, kv_policy=None, **parameters):
        return fill(kv_policy, retention=DummyForcing(**parameters))
