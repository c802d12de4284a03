"""A KV policy: four slots of frozen parameters. Each slot starts, for one sampling run, the object
that may change.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from .retention.full import FullKV
from .retention.retention import Retention
from .schedule.clean_pass import CleanPass
from .schedule.schedule import Schedule
from .selection.selection import ReadAll, Selection
from .storage.storage import Storage
from .take import Geometry, Take

SLOTS = ("retention", "selection", "schedule", "storage")


@dataclass(frozen=True)
class KVPolicy:
    """Four slots. Nodes hand a policy on with one of them changed, so graphs read left to right.

    `models` holds the host's MODEL of each role of the schedule that does not run on the sampler's
    own MODEL. `filled` names the slots that a node has filled, be it with what a slot starts from.
    Neither is a parameter: two policies that differ in them alone are equal.
    """

    retention: Retention = field(default_factory=FullKV)
    selection: Selection = field(default_factory=ReadAll)
    schedule: Schedule = field(default_factory=CleanPass)
    storage: Storage = field(default_factory=Storage)
    models: Mapping[str, object] = field(default_factory=dict, compare=False, repr=False)
    filled: frozenset[str] = field(default=frozenset(), compare=False, repr=False)

    def check(self, geometry: Geometry, take: Take):
        """Raise ValueError, in a sentence, when a slot cannot work with the others, this model or
        take.
        """
        self._check_slots()
        self._check_frames()
        self._check_steps(take)
        self.retention.check(geometry, take)
        self._check_layers(geometry, take)
        self._check_split()
        self.selection.check(geometry, take)
        self.schedule.check(geometry, take)
        moving_frames = self.retention.moving_frames(take)
        name = type(self.retention).__name__
        self.storage.check(geometry, name, moving_frames, self.retention.rewrites)
        if geometry.actions:
            self._check_actions(geometry, take)

    def _check_slots(self):
        """Raise ValueError when a filled slot has nothing to act on under this schedule."""
        schedule = type(self.schedule).__name__
        own_history = f"{schedule} keeps a history of its own, and the {{slot}} {{part}} would have"
        nothing = f"{own_history} nothing to act on. Remove {{part}}, or use another schedule."
        short = (
            f"{schedule} has short caches of its own, which stay on the device in the model's "
            "dtype. Remove KV Storage, or use the clean-pass loop."
        )
        own = self.schedule.keeps_own_history
        for slot, is_filled, is_useless, refusal in (
            ("selection", type(self.selection) is not ReadAll, not self.schedule.selects, nothing),
            ("retention", type(self.retention) is not FullKV, own, nothing),
            ("storage", not self.storage.is_plain, own, short),
        ):
            if is_filled and is_useless:
                part = type(getattr(self, slot)).__name__
                raise ValueError(refusal.format(slot=slot, part=part))

    def _check_actions(self, geometry: Geometry, take: Take):
        """Raise ValueError where the action modules of a world model, which follow the latest
        frames of one stretch of time, cannot follow the schedule's forwards.
        """
        schedule = type(self.schedule).__name__
        window = geometry.actions.window_frames
        if self.schedule.gathers:
            raise ValueError(
                f"This model follows keys and mouse from frame to frame, and {schedule} has "
                "forwards over frames that lie apart or at several noise levels. Use the "
                "clean-pass loop (no schedule node), Hierarchical or Krea Recompute."
            )
        frames = self.schedule.frames_at_once(geometry, take)
        if frames > window:
            raise ValueError(
                f"This model's keys and mouse reach over {window} latent frames, and a forward "
                f"would work on {frames}. Use chunk_frames of at most {window}."
            )

    def _check_frames(self):
        """Raise ValueError when a selection reads whole frames and the retention keeps parts, or
        when it chooses among frames and the retention has others in their places.
        """
        if self.selection.needs_whole_frames and not self.retention.whole_frames:
            selection, retention = type(self.selection).__name__, type(self.retention).__name__
            raise ValueError(
                f"{selection} reads whole latent frames, and {retention} keeps single tokens of "
                "them, or other ones in each layer. "
                "Remove one of the two, or use a retention of whole frames, such as SinkWindow."
            )
        if self.selection.reads_frames and not self.retention.own_frames:
            selection, retention = type(self.selection).__name__, type(self.retention).__name__
            raise ValueError(
                f"{selection} chooses which latent frames to read, and in {retention}'s memory "
                "some rows are a replay or a mean of others. Remove one of the two, or use a "
                "retention that keeps tokens as they are, such as SinkWindow."
            )

    def _check_steps(self, take: Take):
        """Raise ValueError when the retention looks at a step that the schedule forecasts."""
        seen, forecast = self.retention.seen_steps(take), self.schedule.forecast_steps(take.steps)
        unseen = set(seen) & set(forecast)
        if unseen:
            schedule, retention = type(self.schedule).__name__, type(self.retention).__name__
            raise ValueError(
                f"{retention} looks at step {min(unseen)} of {take.steps} (counted from 0) to "
                f"decide what stays, and {schedule} forecasts that step. "
                f"Remove one of the two, or let {schedule} compute more of the first steps."
            )

    def _check_layers(self, geometry: Geometry, take: Take):
        """Raise ValueError when a slot needs what a cache whose layers hold tokens of their own
        does not have.
        """
        if not any(plan.by_layer for plan in self.retention.banks(geometry, take)):
            return
        retention = type(self.retention).__name__
        own = f"{retention} keeps other tokens in each layer, and"
        if self.selection.reads_frames:
            raise ValueError(
                f"{own} {type(self.selection).__name__} chooses by frames that all layers hold. "
                "Remove one of the two."
            )
        if self.storage.has_fewer_bits:
            raise ValueError(
                f"{own} KV Storage codes the same ones in all. Use its dtype model, or another "
                "retention."
            )

    def _check_split(self):
        """Raise ValueError when a storage has coded together the rows of heads that part later."""
        if self.retention.splits_heads and self.storage.has_fewer_bits:
            retention = type(self.retention).__name__
            raise ValueError(
                f"{retention} tells heads apart in mid-take, and KV Storage would have coded their "
                "rows together by then. Use its dtype model, or another retention."
            )

    def describe(self) -> dict:
        """Name and parameters of each slot, for the stats and for saved memories; of a schedule's
        roles, in words, whose MODEL plays each.
        """
        described = {}
        for slot in SLOTS:
            part = getattr(self, slot)
            parameters = {f.name: getattr(part, f.name) for f in fields(part)}
            described[slot] = {"name": type(part).__name__, **parameters}
        for role in self.schedule.roles:
            whose = "its own" if role in self.models else "the sampler's"
            described["schedule"][f"{role}_model"] = whose
        described["retention"] = self.retention.describe()
        return described

    def completed(self, described: dict) -> dict:
        """A policy's description that an earlier version saved, completed by the defaults of the
        retention's parameters that came later.
        """
        retention = described.get("retention") if isinstance(described, dict) else None
        if not isinstance(retention, dict):
            return described
        return {**described, "retention": self.retention.completed(retention)}
