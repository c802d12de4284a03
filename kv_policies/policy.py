"""What a KV policy is: four slots of frozen parameters. Each makes, for one sampling run, the
object that may change.
"""

from dataclasses import dataclass, field, fields

from .retention.full import FullKV
from .retention.retention import Retention
from .schedule.clean_pass import CleanPass
from .schedule.schedule import Schedule
from .selection.selection import ReadAll, Selection
from .storage.storage import Storage
from .take import Geometry, Take


@dataclass(frozen=True)
class KVPolicy:
    """Four slots. Nodes hand a policy on with one of them changed, so graphs read left to right."""

    retention: Retention = field(default_factory=FullKV)
    selection: Selection = field(default_factory=ReadAll)
    schedule: Schedule = field(default_factory=CleanPass)
    storage: Storage = field(default_factory=Storage)

    def require_plain(self, schedule: Schedule):
        """Raise ValueError when another slot is filled beside a schedule that keeps a history of
        its own.
        """
        for slot, part, plain in (
            ("selection", self.selection, ReadAll()),
            ("retention", self.retention, FullKV()),
        ):
            if type(part) is not type(plain):
                name = type(part).__name__
                raise ValueError(
                    f"{type(schedule).__name__} keeps a history of its own, and the {slot} {name} "
                    "would have nothing to act on. "
                    f"Remove {name}, or use another schedule."
                )

    def check(self, geometry: Geometry, take: Take):
        """Raise ValueError, in a sentence, when a slot cannot work with the others, this model or
        take.
        """
        self.retention.check(geometry, take)
        self.selection.check(geometry, take)
        self.schedule.check(self, geometry, take)
        self.storage.check(self, geometry, take)

    def describe(self) -> dict:
        """Name and parameters of each slot, for the stats."""
        slots = {
            slot: {
                "name": type(part).__name__,
                **{f.name: getattr(part, f.name) for f in fields(part)},
            }
            for slot, part in vars(self).items()
        }
        return {**slots, "retention": self.retention.describe()}

    def completed(self, described: dict) -> dict:
        """A policy's description that an earlier version saved, completed by the defaults of the
        retention's parameters that came later.
        """
        retention = described.get("retention") if isinstance(described, dict) else None
        if not isinstance(retention, dict):
            return described
        return {**described, "retention": self.retention.completed(retention)}
