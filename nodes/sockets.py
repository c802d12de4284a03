"""Socket types and the category that all nodes share."""
from comfy_api.latest import io

CATEGORY = "Keepsake"
KVPolicySocket = io.Custom("KEEPSAKE_KV_POLICY")
KVMemorySocket = io.Custom("KEEPSAKE_KV_MEMORY")
KVStatsSocket = io.Custom("KEEPSAKE_KV_STATS")
StreamSocket = io.Custom("KEEPSAKE_STREAM")
ControlSocket = io.Custom("KEEPSAKE_CONTROL")
HeadMapSocket = io.Custom("KEEPSAKE_HEAD_MAP")
HeadTableSocket = io.Custom("KEEPSAKE_HEAD_TABLE")


def policy_input():
    return KVPolicySocket.Input("kv_policy", optional=True,
                                tooltip="A policy to change; the other slots stay as they are. Open: starts from keeping everything.")
