"""Which steps commute: those whose order neither the store nor any actor can tell.

Each step shows something, and minds something. Two steps conflict if one shows what the other minds; conflicts are
mutual. Sets of these are the bits of an integer, because an exploration compares millions of them.
"""

from __future__ import annotations

from typing import NamedTuple

from tests.interleavings.memory import Kind, Step, parents

_CLOCK = "the clock"


class Footprint(NamedTuple):
    """The footprint of a step, or of several."""

    shows: int = 0
    minds: int = 0

    def joined(self, other: Footprint) -> Footprint:
        return Footprint(self.shows | other.shows, self.minds | other.minds)


NOTHING = Footprint()


class Footprints:
    """The footprints of the steps of one exploration."""

    def __init__(self, folders: frozenset[str]) -> None:
        """`folders` are those that nobody has to make any more."""
        self._folders = folders
        self._bits: dict[tuple[str, str], int] = {}

    def of(self, step: Step) -> Footprint:
        match step.kind:
            case Kind.GET | Kind.STAT:
                return self._reads(step.name)
            case Kind.LIST:
                return Footprint(self._bit("listed", step.name), self._bit("changed", step.name))
            case Kind.CREATE | Kind.REPLACE:
                # What is made gets its time from the clock.
                return self._writes(step.name).joined(self._reads(_CLOCK))
            case Kind.LINK:
                return self._reads(step.name).joined(self._writes(step.to)).joined(self._reads(_CLOCK))
            case Kind.DELETE:
                return self._writes(step.name)
            case Kind.MOVE:
                return self._writes(step.name).joined(self._writes(step.to))
            case Kind.LOOK_AT_CLOCK:
                return self._reads(_CLOCK)
            case Kind.WAIT:
                return self._writes(_CLOCK)

    def _reads(self, name: str) -> Footprint:
        return Footprint(self._bit("read", name), self._bit("written", name))

    def _writes(self, name: str) -> Footprint:
        written = self._bit("written", name)
        return Footprint(written, written | self._bit("read", name)).joined(self._changes_listings(name))

    def _changes_listings(self, name: str) -> Footprint:
        """Two names that come into one folder commute as far as the folder is concerned."""
        found = NOTHING
        for parent in parents(name):
            found = found.joined(Footprint(self._bit("changed", parent), self._bit("listed", parent)))
            if parent in self._folders:
                break
        return found

    def _bit(self, use: str, name: str) -> int:
        return self._bits.setdefault((use, name), 1 << len(self._bits))
