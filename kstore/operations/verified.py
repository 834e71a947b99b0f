"""What a verify found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kstore.report import SCHEMA
from kstore.scope import Scope


class Damage(NamedTuple):
    """One generation that is not whole."""

    scope: Scope
    generation: int
    reason: str
    """Why it cannot be read at all; empty if it can."""
    paths: tuple[str, ...] = ()
    """The artifacts that are lost."""
    store: str = ""
    """Where it is. For what is elsewhere, where that was."""
    is_here: bool = True
    """Whether that is a store here: what was only there is then nowhere any more."""

    def as_json(self) -> dict[str, Any]:
        """For machines."""
        return {
            **self.scope.describe(),
            "generation": self.generation,
            "reason": self.reason,
            "paths": list(self.paths),
            "store": self.store,
        }


@dataclass(slots=True)
class VerifyReport:
    """What a verify found."""

    store: str = ""
    generations: int = 0
    blobs: int = 0
    """Different blobs that the generations need, including damaged ones."""
    read: int = 0
    """Those of them that are whole: not lost ones, and not those that only a store below has which was not given."""
    bytes: int = 0
    """Bytes that were read and hashed, decompressed."""
    packs: list[str] = field(default_factory=list)
    """Ids of the packs that are damaged or missing."""
    unreadable: list[str] = field(default_factory=list)
    """What could not be read just now, and why. It may be whole: a repair leaves it alone."""
    damage: list[Damage] = field(default_factory=list)
    """The generations that are not whole."""
    elsewhere: list[Damage] = field(default_factory=list)
    """Generations that lean on a store below which was not given: what only that has cannot be checked."""
    local: list[str] = field(default_factory=list)
    """Files of the local cache root that were altered in place."""
    repaired: bool = False
    is_mendable: bool = False
    """Whether a repair had, or has, anything to do. If not, what is lost is known, and no damaged file is in its place.
    """
    is_newest_damaged: bool = False
    """Whether newest generations are damaged: earlier ones are not restored, and a repair leaves them to gc."""
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether everything that should be in the given stores is whole."""
        return not (self.is_damaged or self.unreadable)

    @property
    def is_damaged(self) -> bool:
        """Whether damage was found."""
        return bool(self.packs or self.damage or self.local)

    @property
    def is_gc_stopped(self) -> bool:
        """Whether the store that is written has a generation that cannot be read at all. Until a repair has moved it
        aside, gc deletes nothing, since it may need anything.
        """
        return any(damage.reason and damage.store == self.store for damage in self.damage)

    def as_json(self) -> dict[str, Any]:
        """For machines."""
        return {
            "schema": SCHEMA,
            "ok": self.ok,
            "store": self.store,
            "generations": self.generations,
            "blobs": self.blobs,
            "read": self.read,
            "bytes": self.bytes,
            "packs": self.packs,
            "unreadable": self.unreadable,
            "damage": [damage.as_json() for damage in self.damage],
            "elsewhere": [damage.as_json() for damage in self.elsewhere],
            "local": self.local,
            "repaired": self.repaired,
            "seconds": self.seconds,
        }
