"""What a scan of a cache root has found."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple

from kstore.blobs.loose import bears_stamp
from kstore.local.index import Index, Known, KnownFolder, is_settled
from kstore.published.manifest import HOST, NEVER_IN_PLACE, Files

BEING_WRITTEN = "it is being written"


class Place(NamedTuple):
    """A folder being scanned."""

    path: str
    top: str
    """The component's local folder."""
    unit: int = 0
    """`Flag.GROUP` or `Flag.SLOT` inside one, else 0."""
    depth: int = 0
    """How many folders below its component that unit is."""

    @property
    def local(self) -> str:
        """Its local path."""
        _, slash, inside = self.path.partition("/")
        return self.top + slash + inside

    @property
    def inside(self) -> str:
        """Its path below the component's folder with a final "/"; empty for that folder itself."""
        _, slash, inside = self.path.partition("/")
        return inside + slash

    def sub(self, name: str) -> Place:
        """One of its subfolders."""
        return Place(f"{self.path}/{name}", self.top, self.unit, self.depth)


class Skipped(NamedTuple):
    """An artifact, or a group of them, that was left out, and why."""

    path: str
    reason: str


def left_out(path: str, error: Exception) -> Skipped:
    """An artifact, or a folder, that was left out for an error."""
    if isinstance(error, FileNotFoundError):
        return Skipped(path, "it is gone")
    if isinstance(error, MemoryError):
        return Skipped(path, "it does not fit in memory")
    return Skipped(path, f"it cannot be read: {error.strerror}" if isinstance(error, OSError) else str(error))


@dataclass(slots=True)
class Found:
    """What was found in a part of a cache root, such as a group; there may be ten thousand groups at once. Paths are
    artifact paths, `<component>/…`.
    """

    known: dict[str, Known] = field(default_factory=dict)
    unsettled: set[str] = field(default_factory=set)
    """Files too young for their status to be trusted later."""
    settled_folders: dict[str, KnownFolder] = field(default_factory=dict)
    untouched: dict[str, KnownFolder] = field(default_factory=dict)
    """Folders that are still as a restore placed them."""
    skipped: list[Skipped] = field(default_factory=list)
    promised: list[str] = field(default_factory=list)
    """Files that a `__grp__` file names, and that were missing when its folder was listed."""
    listed: bool = False
    """Whether any folder has changed since it was last scanned."""

    def doubt_if_young(self, path: str, began_ns: int) -> None:
        """Note a known file as unsettled if it was so young when the scan began that a later change could leave the
        same time on it: it may have changed within a tick of the clock.
        """
        entry = self.known[path].entry
        if not is_settled(entry.mtime_ns, began_ns) and not bears_stamp(entry.mtime_ns, entry.digest):
            self.unsettled.add(path)

    def vouches(self, paths: Collection[str]) -> bool:
        """Whether from now on the times of the folder that these files are in tell whether they have changed."""
        known = [*map(self.known.get, paths)]
        flags = {file.entry.flags for file in known if file}
        return None not in known and flags <= NEVER_IN_PLACE and self.unsettled.isdisjoint(paths)

    def mark_host_bound(self) -> None:
        """If one file is host-bound, the whole group is: it is restored whole or not at all."""
        if any(known.entry.flags & HOST for known in self.known.values()):
            for path, known in self.known.items():
                self.known[path] = known._replace(entry=known.entry._replace(flags=known.entry.flags | HOST))

    def add(self, other: Found) -> None:
        """Take over what another part of the scan found."""
        self.known |= other.known
        self.unsettled |= other.unsettled
        self.settled_folders |= other.settled_folders
        self.untouched |= other.untouched


class Listed(NamedTuple):
    """A folder, with its times from before it was listed."""

    place: Place
    known: KnownFolder
    into: Found
    """The part of the scan that has its files."""


@dataclass(slots=True)
class Scan(Found):
    """What was found in the whole cache root."""

    began: float = field(default_factory=time.monotonic)
    """When the scan began, by `time.monotonic`: it may have missed what was written since."""
    clocks: dict[str, int] = field(default_factory=dict)
    """The same by the clock of the filesystem that each component is on, in nanoseconds."""
    folders: set[str] = field(default_factory=set)
    busy: set[str] = field(default_factory=set)
    """Folders of groups that somebody is writing."""
    displaced: list[str] = field(default_factory=list)
    """Files that hold the paths of another folder: the root was moved or copied after they were written."""
    forgotten: int = 0
    """How many files were found and are no longer in `known`."""

    def forget(self) -> None:
        """Forget the statuses that only the index needs, once it is saved: there may be a hundred thousand. Those of
        files that a restore placed are needed until the base is saved.
        """
        if not self.untouched:
            changing = {path: known for path, known in self.known.items() if known.entry.flags not in NEVER_IN_PLACE}
            self.forgotten += len(self.known) - len(changing)
            self.known = changing

    @property
    def files(self) -> Files:
        """Every artifact."""
        return {path: known.entry for path, known in self.known.items()}

    @property
    def index(self) -> Index:
        """For the next scan. Save it before anything else becomes known."""
        known = self.known  # not copied for nothing: there may be a hundred thousand
        if self.unsettled:
            known = {path: file for path, file in known.items() if path not in self.unsettled}
        return Index(known, self.settled_folders | self.untouched)

    @property
    def index_beside_base(self) -> Index:
        """The same for a scan that has the same base, which describes the folders that nobody has touched."""
        if not self.untouched:
            return self.index
        files = {p: file for p, file in self.index.files.items() if p.rpartition("/")[0] not in self.untouched}
        return Index(files, self.settled_folders)
