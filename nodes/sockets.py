"""Socket types and the category that all nodes share."""

from dataclasses import replace

from comfy_api.latest import io

from ..kv_policies import KVPolicy, SinkWindow

CATEGORY = "Keepsake"
DIRECTED = KVPolicy(
    SinkWindow(3, 21, "shifted")
)  # what Directed Forcing starts from, as in the paper; other policies start from KVPolicy()
KVPolicySocket = io.Custom("KEEPSAKE_KV_POLICY")
KVMemorySocket = io.Custom("KEEPSAKE_KV_MEMORY")
KVStatsSocket = io.Custom("KEEPSAKE_KV_STATS")
StreamSocket = io.Custom("KEEPSAKE_STREAM")
ControlSocket = io.Custom("KEEPSAKE_CONTROL")
HeadMapSocket = io.Custom("KEEPSAKE_HEAD_MAP")
HeadTableSocket = io.Custom("KEEPSAKE_HEAD_TABLE")


def policy_input():
    return KVPolicySocket.Input(
        "kv_policy",
        optional=True,
        tooltip="A policy to change; the other slots stay as they are. Open: starts from keeping "
        "everything.",
    )


def fill(kv_policy: KVPolicy | None, **slot) -> io.NodeOutput:
    """The policy with one slot filled; ValueError where a node before has filled it."""
    policy = kv_policy or KVPolicy()
    ((name, part),) = slot.items()
    there = getattr(policy, name)
    if there not in (getattr(KVPolicy(), name), getattr(DIRECTED, name)):
        old, new = type(there).__name__, type(part).__name__
        raise ValueError(
            f"{old} is this policy's {name} already, and {new} would take its place: a policy has "
            f"one {name}. "
            + (
                f"Remove one of the two {old} nodes."
                if old == new
                else f"Remove the node of {old} or that of {new}."
            )
        )
    return io.NodeOutput(replace(policy, **slot))
