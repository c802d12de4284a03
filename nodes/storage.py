"""The policy node that fills the storage: in how many bits, and where, kept tokens are held."""

from comfy_api.latest import io

from ..kv_policies import KVStorage
from ..kv_policies.storage.kv_storage import DEVICES, DTYPES
from .constants import accepts
from .sockets import CATEGORY, KVPolicySocket, fill, policy_input


class KVStorageNode(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="KeepsakeKVStorage",
            display_name="KV Storage",
            category=CATEGORY,
            description="Holds what the policy keeps in fewer bits, about half the memory in 8 "
            "bits and under a third in 4; or in main memory.",
            search_aliases=[
                "quantized KV cache",
                "fp8 cache",
                "int8",
                "int4",
                "KIVI",
                "less VRAM",
                "offload KV cache",
                "CPU RAM",
            ],
            inputs=[
                io.Combo.Input(
                    "dtype",
                    options=list(DTYPES),
                    default=KVStorage.dtype,
                    tooltip="How tokens are held that are no longer among the latest. int8 is the "
                    "most exact of the small ones, int4 the smallest; model: the model's own.",
                ),
                io.Int.Input(
                    "full_chunks",
                    default=KVStorage.full_chunks,
                    min=1,
                    max=1024,
                    tooltip="Latest chunks that stay in the model's dtype.",
                ),
                io.Int.Input(
                    "sink_frames",
                    default=KVStorage.sink_frames,
                    min=0,
                    max=1024,
                    tooltip="First latent frames that stay in the model's dtype.",
                ),
                policy_input(),
                io.Combo.Input(
                    "device",
                    options=list(DEVICES),
                    default=KVStorage.device,
                    optional=True,
                    tooltip="Where history is held. cpu: in main memory, with dtype model; "
                    "each layer's is copied to the device while the layer before it works.",
                ),
            ],
            outputs=[KVPolicySocket.Output(display_name="kv_policy")],
        )

    @classmethod
    def validate_inputs(cls, dtype=None, device=None):
        return accepts(cls, KVStorage, dtype=dtype, device=device)

    @classmethod
    def execute(cls, dtype, full_chunks, sink_frames, kv_policy=None, device="model"):
        return fill(kv_policy, storage=KVStorage(dtype, full_chunks, sink_frames, device))
