"""The node of ForcingKV."""

from comfy_api.latest import io

from ...kv_policies import ForcingKV
from ...kv_policies.retention.forcing_kv import PRESETS
from ..sockets import CATEGORY, HeadMapSocket, KVPolicySocket, fill, policy_input


class PolicyForcingKV(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="KeepsakePolicyForcingKV",
            display_name="KV Policy: Forcing-KV",
            category=CATEGORY,
            description="Heads that look at the latest frames hold only those and the first; the "
            "others also the patches that changed most since the chunk before. Memory stays "
            "constant, at a few frames.",
            search_aliases=[
                "Forcing-KV",
                "static heads",
                "dynamic heads",
                "head-specialised",
                "KV cache compression",
            ],
            inputs=[
                HeadMapSocket.Input(
                    "head_map",
                    tooltip="Which heads are static. The authors' files load as they are (Load "
                    "Head Map).",
                ),
                io.Combo.Input(
                    "preset",
                    options=list(PRESETS),
                    default="custom",
                    tooltip="The authors' numbers for a model; those below then do nothing. "
                    "custom: the numbers below.",
                ),
                io.Int.Input(
                    "ar_start",
                    default=ForcingKV.ar_start,
                    min=0,
                    max=1024,
                    tooltip="Last chunk, from 0, after which heads are told apart; frame-wise "
                    "models count 3 frames as one. 1 in the authors' code, 2 for LongLive.",
                ),
                io.Int.Input(
                    "sink_frames",
                    default=ForcingKV.sink_frames,
                    min=0,
                    max=1024,
                    tooltip="First latent frames that all heads hold.",
                ),
                io.Int.Input(
                    "static_frames",
                    default=ForcingKV.static_frames,
                    min=1,
                    max=1024,
                    tooltip="Latest latent frames that static heads hold.",
                ),
                io.Int.Input(
                    "dynamic_frames",
                    default=ForcingKV.dynamic_frames,
                    min=1,
                    max=1024,
                    tooltip="Latest latent frames that dynamic heads hold.",
                ),
                io.Float.Input(
                    "bank_share",
                    default=ForcingKV.bank_share,
                    min=0.0,
                    max=1.0,
                    step=0.01,
                    tooltip="Of the frames that leave the latest ones, the share of patches that "
                    "dynamic heads keep for one more chunk. 0: no bank.",
                ),
                io.Int.Input(
                    "patches",
                    default=ForcingKV.patches,
                    min=1,
                    max=1024,
                    tooltip="Patches of a latent frame; the nearest number that shares out its "
                    "tokens evenly is taken.",
                ),
                policy_input(),
            ],
            outputs=[KVPolicySocket.Output(display_name="kv_policy")],
        )

    @classmethod
    def execute(cls, head_map, preset, kv_policy=None, **numbers):
        chosen = numbers if preset == "custom" else PRESETS[preset]
        return fill(kv_policy, retention=ForcingKV(head_map=head_map, **chosen))
