"""Which slots of a policy do not go together, with each other or with the model's kind: one table.

A rule speaks of what a part says of itself, never of its type, but for the two that start a slot.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from .retention.full import FullKV
from .retention.retention import Retention
from .schedule.schedule import Schedule
from .selection.selection import ReadAll, Selection
from .storage.storage import Storage
from .take import Geometry, Take
from .words import title_of


@dataclass(frozen=True, kw_only=True)
class Slots:
    """What the rules look at: the four slots, in one take of one model."""

    retention: Retention
    selection: Selection
    schedule: Schedule
    storage: Storage
    geometry: Geometry
    take: Take

    @property
    def by_layer(self) -> bool:
        """Whether each layer of a bank holds tokens of its own."""
        return any(plan.by_layer for plan in self.retention.banks(self.geometry, self.take))

    @property
    def unseen_steps(self) -> list[int]:
        """Steps that the retention looks at and the schedule forecasts, from 0 on."""
        forecast = self.schedule.forecast_steps(self.take.steps)
        return sorted(set(self.retention.seen_steps(self.take)) & set(forecast))

    @property
    def moving_frames(self) -> int:
        return self.retention.moving_frames(self.take)

    @property
    def frames_at_once(self) -> int:
        return self.schedule.frames_at_once(self.geometry, self.take)


class Rule(NamedTuple):
    """`when` it holds, the policy is refused. The sentence says what came, what is needed and what
    to change; `{retention}` and the other slots are the names of what fills them.
    """

    when: Callable[[Slots], bool]
    sentence: str


# The first rule that holds is the one a user reads.
RULES = (
    # What a schedule with a history of its own leaves without anything to act on.
    Rule(
        lambda slots: type(slots.selection) is not ReadAll and not slots.schedule.selects,
        "{schedule} keeps a history of its own, and the selection {selection} would have nothing "
        "to act on. Remove {selection}, or use another schedule.",
    ),
    Rule(
        lambda slots: type(slots.retention) is not FullKV and slots.schedule.keeps_own_history,
        "{schedule} keeps a history of its own, and the retention {retention} would have nothing "
        "to act on. Remove {retention}, or use another schedule.",
    ),
    Rule(
        lambda slots: not slots.storage.is_plain and slots.schedule.keeps_own_history,
        "{schedule} has short caches of its own, which stay on the device in the model's dtype. "
        "Remove KV Storage, or use the clean-pass loop.",
    ),
    # What a selection asks of the rows that stayed.
    Rule(
        lambda slots: slots.selection.needs_whole_frames and not slots.retention.whole_frames,
        "{selection} reads whole latent frames, and {retention} keeps single tokens of them, or "
        "other ones in each layer. Remove one of the two, or use a retention of whole frames, "
        "such as Sink + Window.",
    ),
    Rule(
        lambda slots: slots.selection.reads_frames and not slots.retention.own_frames,
        "{selection} chooses which latent frames to read, and in {retention}'s memory some rows "
        "are a replay or a mean of others. Remove one of the two, or use a retention that keeps "
        "tokens as they are, such as Sink + Window.",
    ),
    Rule(
        lambda slots: slots.selection.reads_frames and slots.by_layer,
        "{retention} keeps other tokens in each layer, and {selection} chooses by frames that all "
        "layers hold. Remove one of the two.",
    ),
    # What a retention asks of the forwards.
    Rule(
        lambda slots: bool(slots.unseen_steps),
        "{retention} looks at step {slots.unseen_steps[0]} of {slots.take.steps} (counted from 0) "
        "to decide what stays, and {schedule} forecasts that step. Remove one of the two, or let "
        "{schedule} compute more of the first steps.",
    ),
    # What fewer bits cannot hold.
    Rule(
        lambda slots: slots.storage.has_fewer_bits and slots.by_layer,
        "{retention} keeps other tokens in each layer, and KV Storage codes the same ones in all. "
        "Use its dtype model, or another retention.",
    ),
    Rule(
        lambda slots: slots.storage.has_fewer_bits and slots.retention.splits_heads,
        "{retention} tells heads apart in mid-take, and KV Storage would have coded their rows "
        "together by then. Use its dtype model, or another retention.",
    ),
    Rule(
        lambda slots: slots.storage.has_fewer_bits and slots.retention.rewrites,
        "{retention} computes rows of its history from other rows, and {slots.storage.dtype} would "
        "round them anew each time. Use dtype model here, or another retention.",
    ),
    Rule(
        lambda slots: (
            slots.storage.has_fewer_bits and slots.moving_frames > slots.storage.sink_frames
        ),
        "{retention} turns the keys of {slots.moving_frames} latent frames again and again, and "
        "{slots.storage.dtype} would round them anew each time. Here, use sink_frames of at least "
        "{slots.moving_frames} or dtype model; or leave the keys in place, where the policy has "
        "that choice (sink_rope absolute, reindex auto).",
    ),
    # What action modules ask of the forwards: they follow the latest frames of one stretch of time.
    Rule(
        lambda slots: bool(slots.geometry.actions) and slots.schedule.gathers,
        "This model follows keys and mouse from frame to frame, and {schedule} has forwards over "
        "frames that lie apart or at several noise levels. Use the clean-pass loop (no schedule "
        "node), Hierarchical or Krea Recompute.",
    ),
    Rule(
        lambda slots: (
            bool(slots.geometry.actions)
            and slots.frames_at_once > slots.geometry.actions.window_frames
        ),
        "This model's keys and mouse reach over {slots.geometry.actions.window_frames} latent "
        "frames, and a forward would work on {slots.frames_at_once}. Use chunk_frames of at most "
        "{slots.geometry.actions.window_frames}.",
    ),
)


def refuse(slots: Slots):
    """Raise ValueError, in a sentence, by the first rule that holds."""
    names = {
        slot: title_of(getattr(slots, slot))
        for slot in ("retention", "selection", "schedule", "storage")
    }
    for rule in RULES:
        if rule.when(slots):
            raise ValueError(rule.sentence.format(slots=slots, **names))
