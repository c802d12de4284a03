"""Socket types and the category that all nodes share."""

from collections.abc import Mapping
from dataclasses import replace

from comfy_api.latest import io

from ..kv_policies import FullKV, KVPolicy, ReadAll, SinkWindow
from ..kv_policies.words import title_of

CATEGORY = "Keepsake"
# What Directed Forcing starts from, as in the paper. Other policies start from KVPolicy().
DIRECTED = KVPolicy(SinkWindow(3, 21, "shifted"))
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


def fill(kv_policy: KVPolicy | None, models: Mapping[str, object] = {}, **slot) -> io.NodeOutput:
    """The policy with one slot filled, and with a MODEL for each role in `models`; ValueError where
    a node before has filled the slot.
    """
    policy = kv_policy or KVPolicy()
    ((name, part),) = slot.items()
    present = getattr(policy, name)
    # A policy that another pack's code made may not say what is filled.
    is_default = present in (getattr(KVPolicy(), name), getattr(DIRECTED, name))
    if name in policy.filled or not is_default:
        old, new = title_of(present), title_of(part)
        change = f"Remove the node of {old} or that of {new}."
        if old == new:
            change = f"Remove one of the two {old} nodes."
        raise ValueError(
            f"{old} is this policy's {name} already, and {new} would take its place: a policy has "
            f"one {name}. {change}"
        )
    if name == "schedule" and part.selects and part.keeps_own_history:
        # The window that Directed Forcing brings along when nothing is connected to it: this
        # schedule has its own.
        is_own_window = "retention" not in policy.filled and policy.retention == DIRECTED.retention
        if policy.selection != ReadAll() and is_own_window:
            slot["retention"] = FullKV()
    models = {**policy.models, **models}
    return io.NodeOutput(replace(policy, **slot, models=models, filled=policy.filled | {name}))
