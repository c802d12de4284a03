"""The share of tokens that is expected to stay, where that depends on the picture: from an earlier
take, or from the finished part of this one.
"""

from __future__ import annotations

from ..kv_policies import Geometry, KVPolicy, Retention, Take
from ..kv_policies.words import title_of
from .memory_file import KVMemory, stream_name
from .stats import KVStats

MODEL = ("layers", "heads", "head_dim")  # fields of a geometry that belong to the model


def share_in(
    memory: KVMemory, retention: Retention, geometry: Geometry, take: Take
) -> float | None:
    """Of the tokens that a memory's take has scored so far, the share that stays; None where the
    policy scores none, or has not yet.
    """
    run = retention.start(geometry, take)
    run.restore(memory.streams[stream_name(0)]["retention"])
    return run.histogram.share if run.histogram else None


def share_of(stats: KVStats, policy: KVPolicy, geometry: Geometry, take: Take) -> float | None:
    """Of the tokens that another take has scored, the share that stays, for takes of any length
    and size under the policy; None where what stays does not depend on the picture.

    ValueError, in a sentence, where the other take was made with other numbers, or scored nothing.
    """
    retention = policy.retention
    before = stats.policy["retention"]
    if not retention.by_content:
        return None
    connect = "Connect the kv_stats of a take that this model made under this policy"
    if stats.scores is None:
        if before["name"] == type(retention).__name__:
            connect = "The estimate is a range in any case. Disconnect them"
        raise ValueError(
            f"The kv_stats are of a take under {before['name']}, which scores no tokens, so they "
            f"do not tell what share {title_of(retention)} will keep. {connect}."
        )
    now = retention.describe()
    pairs = [(name, before.get(name), now[name]) for name in retention.decisive]
    pairs.append(("steps", stats.steps, take.steps))
    pairs += [(name, getattr(stats.geometry, name), getattr(geometry, name)) for name in MODEL]
    differing = [
        f"{name} {there} there and {here} here" for name, there, here in pairs if there != here
    ]
    if differing:
        raise ValueError(
            f"The kv_stats are of a take that goes by other numbers: {', '.join(differing)}. Then "
            "another share of the tokens stays. "
            f"{connect}, with the same numbers; its length and size may differ."
        )
    scored = sum(stats.scores["counts"])
    if not scored:
        raise ValueError(
            f"The kv_stats are of a take of {stats.frames} latent frames, too short for a chunk "
            f"to be scored. {connect}, and that is longer."
        )
    return stats.scores["kept"] / scored
