"""What a scan of a cache root has found."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from kstore.blobs.loose import bears_stamp
from kstore.local.index import KNOWN, Index, Known, KnownFolder, compact_known, entries_of, is_settled
from kstore.published.byfolder import ByFolder
from kstore.published.manifest import FLAGS_AT, HOST, NEVER_IN_PLACE, Files

if TYPE_CHECKING:
    from kstore.components import Component, Kind

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
class Listed:
    """A folder and what is known of its files, each of which is named by its number among them."""

    place: Place
    known: KnownFolder
    """Its names, and its times from before it was listed."""
    part: Part
    records: bytearray
    """Of its files; zeros as long as nothing is known of one."""
    unknown: int
    """How many of its files nothing is known of."""
    kinds: tuple[Kind | None, ...] = ()
    """Of its files, if any has to be read; None for the others."""
    sizes: Sequence[int] = ()
    """Of the same, in bytes."""
    young: set[int] | None = None
    """Files too young for their status to be trusted later."""
    vouches: bool = False
    """Whether its times alone vouch for its files from now on."""
    is_placed: bool = False
    """Whether it is still as a restore placed it."""

    def path(self, number: int) -> str:
        """The path of a file."""
        return f"{self.place.path}/{self.known.files[number]}"

    def to_read(self, *, lists: bool) -> Iterator[int]:
        """The files that have to be read: those that list others of their group, or the rest."""
        return (number for number, kind in enumerate(self.kinds) if kind and kind.is_list == lists)

    def know(self, number: int, record: bytes) -> None:
        """Take what is known of a file."""
        self.records[_of(number)] = record
        self.unknown -= 1

    def is_known(self, number: int) -> bool:
        """Whether anything is known of a file."""
        return any(self.records[_of(number)])

    def leave_out(self, number: int, reason: str) -> None:
        """Forget what is known of a file."""
        self.records[_of(number)] = bytes(KNOWN.size)
        self.unknown += 1
        self.part.skipped.append(Skipped(self.path(number), reason))

    def doubt(self, number: int) -> None:
        """Note that a file may change later without another status."""
        self.young = self.young or set()
        self.young.add(number)

    def doubt_if_young(self, number: int, mtime_ns: int, digest: bytes, began_ns: int) -> None:
        """The same if it was so young when the scan began that a later change could have left the same time, or may
        have changed within a tick of the clock.
        """
        if not is_settled(mtime_ns, began_ns) and not bears_stamp(mtime_ns, digest):
            self.doubt(number)

    @property
    def flags(self) -> bytearray:
        """The flags of each file."""
        return self.records[FLAGS_AT :: KNOWN.size]

    @property
    def is_replaced_only(self) -> bool:
        """Whether all files that are known are never changed in place."""
        return NEVER_IN_PLACE.issuperset(self.flags)

    def entries(self) -> Iterator[tuple[int, Known]]:
        """The files that are known, with their numbers."""
        return ((number, known) for number, known in enumerate(KNOWN.unpack(self.records)) if self.is_known(number))


def _of(number: int) -> slice:
    """Where the record of a file is."""
    return slice(number * KNOWN.size, (number + 1) * KNOWN.size)


@dataclass(slots=True)
class Part:
    """A group, or everything in a component that is in no group. There may be ten thousand groups at once."""

    place: Place
    component: Component
    folders: list[Listed] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    promised: list[str] = field(default_factory=list)
    """Files that a `__grp__` file names, and that were missing when its folder was listed."""
    is_changed: bool = False
    """Whether any folder has changed since it was last scanned."""

    @property
    def is_read(self) -> bool:
        """Whether any file has to be read. All that other groups have was known when they were listed."""
        return any(folder.kinds for folder in self.folders)

    @property
    def has_files(self) -> bool:
        """Whether it has any files, including those that were left out."""
        return bool(self.skipped) or any(folder.known.files for folder in self.folders)

    @property
    def paths(self) -> Iterator[str]:
        """Its files. The one that completes a group is most often its list: those come first."""
        every = (folder.path(number) for folder in self.folders for number in range(len(folder.known.files)))
        lists = (folder.path(number) for folder in self.folders for number in folder.to_read(lists=True))
        return chain(lists, every)

    def add(self, place: Place, known: KnownFolder) -> Listed:
        """Add a folder, of whose files nothing is known yet."""
        count = len(known.files)
        folder = Listed(place, known, self, bytearray(count * KNOWN.size), count)
        self.folders.append(folder)
        return folder

    def forget(self) -> None:
        """Let go of its folders, which would otherwise stay in memory because they know their part."""
        self.folders.clear()

    def mark_host_bound(self) -> None:
        """If one file is host-bound, the whole group is: it is restored whole or not at all."""
        if any(flags & HOST for folder in self.folders for flags in folder.flags):
            for folder in self.folders:
                folder.records[FLAGS_AT :: KNOWN.size] = bytes(flags | HOST for flags in folder.flags)


@dataclass(slots=True)
class Scan:
    """What was found in the whole cache root. Paths are artifact paths, `<component>/…`."""

    known: ByFolder[Known] = field(default_factory=compact_known)
    unsettled: set[str] = field(default_factory=set)
    """Files too young for their status to be trusted later."""
    settled_folders: dict[str, KnownFolder] = field(default_factory=dict)
    """Folders whose times vouch for their files."""
    untouched: dict[str, KnownFolder] = field(default_factory=dict)
    """Folders that are still as a restore placed them."""
    skipped: list[Skipped] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)
    """When the scan began, by `time.monotonic`: it may have missed what was written since."""
    clocks: dict[str, int] = field(default_factory=dict)
    """The same by the clock of the filesystem that each component is on, in nanoseconds."""
    folders: set[str] = field(default_factory=set)
    busy: set[str] = field(default_factory=set)
    """Folders of groups that somebody is writing."""
    displaced: list[str] = field(default_factory=list)
    """Files that hold the paths of another folder: the root was moved or copied after they were written."""

    def add(self, part: Part, *, shares: bool = False) -> None:
        """Take what was found in a part of the root. With `shares`, its folders share one fate: as not all are
        untouched, none counts as that.
        """
        for folder in part.folders:
            self._add(folder, is_untouched=folder.is_placed and not shares)
        self.skipped += part.skipped
        part.forget()

    def _add(self, folder: Listed, *, is_untouched: bool) -> None:
        path, (known, records) = folder.place.path, (folder.known, folder.records)
        self.unsettled.update(map(folder.path, folder.young or ()))
        if folder.vouches or folder.is_placed:
            (self.untouched if is_untouched else self.settled_folders)[path] = known
        if not folder.unknown and known.files:
            self.known.put_folder(path, known.files, records)
        else:
            self.known.put((folder.path(number), file) for number, file in folder.entries())

    @property
    def files(self) -> Files:
        """Every artifact."""
        return entries_of(self.known)

    @property
    def index(self) -> Index:
        """For the next scan. Save it before anything else becomes known."""
        known = self.known  # not copied for nothing: there may be a hundred thousand
        if self.unsettled:
            known = known.without(self.unsettled)
        return Index(known, self.settled_folders | self.untouched)

    @property
    def index_beside_base(self) -> Index:
        """The same for a scan that has the same base, which describes the folders that nobody has touched."""
        if not self.untouched:
            return self.index
        return Index(self.index.files.without_folders(self.untouched), self.settled_folders)
