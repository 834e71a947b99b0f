"""What a gc did, or would do."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from kstore.gc.policy import Decision
from kstore.report import SCHEMA, Count
from kstore.scope import Scope

_SECOND = 1_000_000_000


class GcStatus(StrEnum):
    """How a gc ended."""

    COLLECTED = "collected"
    BUSY = "busy"
    """Another gc is at work; this one did nothing."""
    INCOMPLETE = "incomplete"
    """A generation cannot be read, and nothing was deleted, because it may need any blob; or a list of the condemned
    cannot be read.
    """


@dataclass(slots=True)
class GcReport:
    """What a gc did, or would do."""

    status: GcStatus = GcStatus.COLLECTED
    store: str = ""
    holder: str = ""
    """`user@host` of another gc that is at work; empty if none is, or if it is not known."""
    dry_run: bool = False
    grace: float = 0.0
    """Seconds between condemning and deleting."""
    decisions: list[Decision] = field(default_factory=list)
    """What became of every generation, and why."""
    forgotten: list[Scope] = field(default_factory=list)
    """Keys that nobody used, or that were over the size limit."""
    deleted: Count = field(default_factory=Count)
    """Packs and loose blobs that are gone."""
    condemned: Count = field(default_factory=Count)
    """Those that nothing needs any more: a gc at least the grace later deletes them."""
    waiting: Count = field(default_factory=Count)
    """Those that were condemned before, but not long enough ago, or that are still needed."""
    rewritten: int = 0
    """Packs whose blobs were copied into new ones: many small ones, and those of which little is needed."""
    live: Count | None = None
    """Packs and loose blobs that are needed and present; None where nobody knows, as if a generation cannot be read."""
    excess: int = 0
    """Bytes over the size limit that must stay."""
    unreadable: list[str] = field(default_factory=list)
    """Generations that could not be read."""
    lists: list[str] = field(default_factory=list)
    """Lists of what was condemned, or their fences, that could not be read: the next gc makes up for them."""
    no_room: str = ""
    """Why something could not be written and is left to the next gc; empty if everything was written."""
    seconds: float = 0.0

    def grace_before(self, now: int) -> int:
        """The time that was a grace before `now`, in nanoseconds by the same clock."""
        return now - int(self.grace * _SECOND)

    def as_json(self) -> dict[str, Any]:
        """For machines."""
        return {
            "schema": SCHEMA,
            "status": self.status,
            "store": self.store,
            "holder": self.holder,
            "dry_run": self.dry_run,
            "grace": self.grace,
            "generations": [_decision(decision) for decision in self.decisions],
            "forgotten": [scope.describe() for scope in self.forgotten],
            **{name: asdict(getattr(self, name)) for name in ("deleted", "condemned", "waiting")},
            "live": self.live and asdict(self.live),
            "rewritten": self.rewritten,
            "excess": self.excess,
            "unreadable": self.unreadable,
            "lists": self.lists,
            "no_room": self.no_room,
            "seconds": self.seconds,
        }


def _decision(decision: Decision) -> dict[str, Any]:
    generation = decision.generation.number
    return {**decision.scope.describe(), "generation": generation, "stays": decision.stays, "why": decision.why}
