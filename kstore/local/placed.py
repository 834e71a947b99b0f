"""What a restore has brought into a cache root, and what it has not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from kstore.blobs.loose import bears_stamp
from kstore.local.found import Skipped
from kstore.local.index import Known, is_settled
from kstore.local.link import LinkMode
from kstore.published.manifest import Files


class Brought(NamedTuple):
    """What a thread has brought of some artifacts. Most often that is all of them."""

    modes: Mapping[LinkMode, int]
    """How many came which way."""
    lacking: Collection[str] = ()
    """Those that it could not bring."""
    known: Mapping[str, Known] = {}
    """Those that are changed in place, for the index."""


@dataclass(slots=True)
class Placed:
    """What arrived."""

    wanted: Files = field(default_factory=dict)
    """What was to arrive."""
    lacking: set[str] = field(default_factory=set)
    """Those of them that did not."""
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

    @property
    def paths(self) -> Set[str]:
        """What arrived, by path."""
        return self.wanted.keys() - self.lacking if self.lacking else self.wanted.keys()

    @property
    def count(self) -> int:
        """How many artifacts arrived."""
        return len(self.wanted) - len(self.lacking)

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
            self.lacking |= self._in(path)
            self.marked_ns = 0
        self.lacking |= self.occupied
        self.known = {path: file for path, file in self.known.items() if path not in self.lacking}

    def _in(self, path: str) -> set[str]:
        """The paths that have arrived of a file or folder."""
        return {p for p in self.paths if p == path or p.startswith(f"{path}/")}


def _tells(file: Known) -> bool:
    return bears_stamp(file.entry.mtime_ns, file.entry.digest) or is_settled(file.entry.mtime_ns)
