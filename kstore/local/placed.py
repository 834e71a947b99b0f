"""What a restore has brought into a cache root, and what it has not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field

from kstore.blobs.loose import bears_stamp
from kstore.local.found import Skipped
from kstore.local.index import Known, is_settled
from kstore.local.link import LinkMode


@dataclass(slots=True)
class Placed:
    """What arrived."""

    paths: set[str] = field(default_factory=set)
    known: dict[str, Known] = field(default_factory=dict)
    """The artifacts that are changed in place, for the index."""
    skipped: list[Skipped] = field(default_factory=list)
    missed: set[bytes] = field(default_factory=set)
    """Digests of what is missing or damaged in every store."""
    occupied: set[str] = field(default_factory=set)
    """Paths where something else is, and stays."""
    modes: Counter[LinkMode] = field(default_factory=Counter)
    """How many artifacts came which way."""
    marked_ns: int = 0
    """The modification time that all folders were given, if they hold everything that was wanted; else 0."""
    folders: Sequence[str] = ()
    """Those folders."""
    bare: Set[str] = frozenset()
    """Those of them that hold nothing but folders."""

    def add(self, other: Placed) -> None:
        """Take over what another thread placed."""
        self.paths |= other.paths
        self.known |= other.known
        self.modes += other.modes

    def settled(self) -> dict[str, Known]:
        """What the index may vouch for: files on which a later change leaves another time than they have."""
        return {path: file for path, file in self.known.items() if _tells(file)}

    def forget(self, occupied: Mapping[str, str], refused: Mapping[str, OSError]) -> None:
        """Leave out the files and folders that could not be put in their place, and say why."""
        for path, reason in occupied.items():
            self.skipped.append(Skipped(path, reason))
            self.occupied |= self._in(path)
        for path, error in refused.items():
            self.skipped.append(Skipped(path, f"it cannot be put in its place: {error.strerror}"))
            self.paths -= self._in(path)
            self.marked_ns = 0
        self.paths -= self.occupied
        self.known = {p: file for p, file in self.known.items() if p in self.paths}

    def _in(self, path: str) -> set[str]:
        """The paths that have arrived of a file or folder."""
        return {p for p in self.paths if p == path or p.startswith(f"{path}/")}


def _tells(file: Known) -> bool:
    return bears_stamp(file.entry.mtime_ns, file.entry.digest) or is_settled(file.entry.mtime_ns)
