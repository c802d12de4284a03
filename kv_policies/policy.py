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
from .slot_rules import Slots, refuse
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
        self.retention.check(geometry, take)  # first: the rules ask for its banks
        refuse(Slots(**{slot: getattr(self, slot) for slot in SLOTS}, geometry=geometry, take=take))
        self.selection.check(geometry, take)
        self.schedule.check(geometry, take)
        self.storage.check(geometry)

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
