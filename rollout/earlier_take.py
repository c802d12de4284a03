"""What an earlier take, or the part of a take that is made, shows of what will stay."""

from __future__ import annotations

from ..kv_policies import Geometry, KVPolicy, Retention, Take
from .memory_file import KVMemory, stream_name
from .stats import KVStats

MODEL = ("layers", "heads", "head_dim")  # of a geometry: what no size or length changes


def share_in(
    memory: KVMemory, retention: Retention, geometry: Geometry, take: Take
) -> float | None:
    """Of the tokens that a memory's take has scored so far, those that were to stay; None: it
    scores none, or has not yet.
    """
    run = retention.start(geometry, take)
    run.restore(memory.streams[stream_name(0)]["retention"])
    return run.histogram and run.histogram.share


def share_of(stats: KVStats, policy: KVPolicy, geometry: Geometry, take: Take) -> float | None:
    """Of the tokens that another take has scored, those that were to stay; None: what stays does
    not depend on the picture.

    It holds for takes of any length and size. ValueError, in a sentence, where it says nothing of
    such a take.
    """
    retention, was = policy.retention, stats.policy["retention"]
    if not retention.by_content:
        return None
    connect = "Connect the kv_stats of a take that this model made under this policy"
    if stats.scores is None:
        raise ValueError(
            f"The kv_stats are of a take under {was['name']}, which scores no tokens, so they do "
            "not tell what share "
            f"{type(retention).__name__} will keep. {connect}."
        )
    now = retention.describe()
    pairs = [(name, was.get(name), now[name]) for name in retention.decisive]
    pairs += [
        ("steps", stats.steps, take.steps),
        *((name, getattr(stats.geometry, name), getattr(geometry, name)) for name in MODEL),
    ]
    other = [
        f"{name} {before} there and {now} here" for name, before, now in pairs if before != now
    ]
    if other:
        raise ValueError(
            f"The kv_stats are of a take that goes by other numbers: {', '.join(other)}. Then "
            "another share of the tokens stays. "
            f"{connect}, with the same numbers; its length and size may differ."
        )
    scored = sum(stats.scores["counts"])
    if not scored:
        raise ValueError(
            f"The kv_stats are of a take of {stats.frames} latent frames, too short for a chunk "
            f"to be scored. {connect}, and that is "
            "longer."
        )
    return stats.scores["kept"] / scored
