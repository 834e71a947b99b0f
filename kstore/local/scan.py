"""Reads a cache root: which artifacts are there, whole and finished, and what their bytes are called.

A file whose status the index knows is not read again. A folder in which files are only ever created or replaced
is not even listed again while its own times stand, or that which a restore gave it.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from kstore.blobs.loose import bears_stamp
from kstore.components import Component, Kind, Table
from kstore.components.table import KSTORE_FOLDER
from kstore.digest import digest_of
from kstore.local.cacheroot import CacheRoot
from kstore.local.finished import Unfinished, check_unlocked, check_whole_object, read_finished
from kstore.local.index import Index, Known, KnownFolder, is_settled
from kstore.local.relocate import group_children, to_stored
from kstore.local.untouched import Untouched
from kstore.manifest import MAX_MTIME_NS, MIN_MTIME_NS, Entry, Files, Flag

_GROUP, _HOST, _LINK, _RELOCATE = int(Flag.GROUP), int(Flag.HOST), int(Flag.LINK), int(Flag.RELOCATE)
_BELOW = int(Flag.BELOW)
_NEVER_IN_PLACE = _LINK | _RELOCATE
_EXECUTABLE = 0o111
_WRITING_TIME = 3600.0
_UNFINISHED = "it is not finished"
_SMALL = 16 << 10
_OBJECT_FILES = (".so", ".o")
_NOTHING_PLACED = Untouched()


class Skipped(NamedTuple):
    """An artifact, or a group of them, that was left out, and why."""

    path: str
    reason: str


@dataclass(slots=True)
class Scan:
    """What was found. Paths are artifact paths, `<component>/…`."""

    known: dict[str, Known] = field(default_factory=dict)
    unsettled: set[str] = field(default_factory=set)
    """Files too young for their status to be trusted later."""
    folders: set[str] = field(default_factory=set)
    settled_folders: dict[str, KnownFolder] = field(default_factory=dict)
    untouched: dict[str, KnownFolder] = field(default_factory=dict)
    """Folders that are as a restore has placed them."""
    skipped: list[Skipped] = field(default_factory=list)
    busy: set[str] = field(default_factory=set)
    """Folders of the groups that somebody is writing."""
    promised: list[str] = field(default_factory=list)
    """Files that a `__grp__` file says are there."""
    listed: bool = False
    """Whether any folder has changed since it was last scanned."""
    hashed: int = 0
    """How many files were read."""
    room: int = 0
    """Bytes of small files that may still be kept."""
    kept: dict[bytes, bytes] = field(default_factory=dict)
    """Digest → stored form of files that were read, so that a commit need not read them again."""

    @property
    def files(self) -> Files:
        """Every artifact."""
        return {path: known.entry for path, known in self.known.items()}

    @property
    def index(self) -> Index:
        """For the next scan."""
        known = {path: file for path, file in self.known.items() if path not in self.unsettled}
        return Index(known, self.settled_folders | self.untouched)

    @property
    def index_beside_base(self) -> Index:
        """The same for a scan that has the same base: that tells of the folders that nobody has touched."""
        if not self.untouched:
            return self.index
        files = {p: file for p, file in self.index.files.items() if p.rpartition("/")[0] not in self.untouched}
        return Index(files, self.settled_folders)

    def add(self, other: Scan) -> None:
        """Take over what another part of the scan found."""
        self.known |= other.known
        self.unsettled |= other.unsettled
        self.settled_folders |= other.settled_folders
        self.untouched |= other.untouched
        self.hashed += other.hashed


def scan(
    root: CacheRoot,
    table: Table,
    index: Index,
    base: Callable[[], Files],
    room: int = 0,
    untouched: Untouched = _NOTHING_PLACED,
) -> Scan:
    """Read all components of `root`. `base` gives what was restored into it; it is asked only for unknown files.

    Up to `room` bytes of what is read are kept, small files only: with those, opening takes longer than reading.
    """
    found = Scan(room=room)
    for name, folder in root.folders.items():
        if _is_there(folder):
            others = {other for other in root.folders.values() if other != folder}
            component = _ComponentScan(table[name], folder, others, index, base, untouched, found)
            component.folder(_Place(name, folder), found)
    return found


def _is_there(folder: str) -> bool:
    """Whether there is anything to scan. A folder that cannot be looked at is scanned, which names it as left out."""
    try:
        return stat.S_ISDIR(os.stat(folder).st_mode)
    except OSError as error:
        return not isinstance(error, FileNotFoundError | NotADirectoryError)


class _Place(NamedTuple):
    """A folder being scanned."""

    path: str
    local: str
    unit: int = 0
    """`Flag.GROUP` or `Flag.SLOT` inside one, else 0."""
    depth: int = 0
    """How many folders deep that unit is below its component."""
    inside: str = ""
    """Its path below the component's folder with a final "/"; empty for that folder itself."""

    def sub(self, name: str) -> _Place:
        path, local, inside = f"{self.path}/{name}", f"{self.local}/{name}", f"{self.inside}{name}/"
        return _Place(path, local, self.unit, self.depth, inside)


class _ComponentScan:
    def __init__(
        self,
        component: Component,
        folder: str,
        others: set[str],
        index: Index,
        base: Callable[[], Files],
        untouched: Untouched,
        found: Scan,
    ) -> None:
        self._component = component
        self._component_folder = folder
        self._others = others
        """Folders of other components: they may be below this one, and are scanned by themselves."""
        self._listed_at = 0
        """Modification time, in nanoseconds, of the folder whose files are being read, before it was listed."""
        self._began_ns = time.time_ns()
        self._index = index
        self._base = base
        self._untouched = untouched
        self._found = found

    def folder(self, place: _Place, into: Scan) -> None:
        """Scan a folder and all below it."""
        try:
            status = os.stat(place.local)
            self._found.folders.add(place.path)
            known = self._index.folders.get(place.path)
            if known is not None and known.still_is(status):
                self._take_known(place, known, into)
            elif placed := self._untouched.folder(place.path, status):
                self._take_untouched(place, placed, into)
            else:
                self._take_listed(place, status, into)
        except FileNotFoundError:
            into.skipped.append(Skipped(place.path, "it has gone"))
        except OSError as error:
            into.skipped.append(Skipped(place.path, f"it cannot be read: {error.strerror}"))

    def _take_known(self, place: _Place, known: KnownFolder, into: Scan) -> None:
        index = self._index.files
        for name in known.files:
            path = f"{place.path}/{name}"
            into.known[path] = index[path]
        into.settled_folders[place.path] = known
        for name in known.folders:
            self._subfolder(place.sub(name), into)

    def _take_untouched(self, place: _Place, placed: KnownFolder, into: Scan) -> None:
        for name in placed.files:
            path = f"{place.path}/{name}"
            into.known[path] = self._untouched.known(path)
        into.untouched[place.path] = placed
        for name in placed.folders:
            self._subfolder(place.sub(name), into)

    def _take_listed(self, place: _Place, status: os.stat_result, into: Scan) -> None:
        into.listed = True
        times = status.st_mtime_ns, status.st_ctime_ns
        self._listed_at = status.st_mtime_ns
        folders, files = self._list(place, into)
        settled = all(map(self._is_settled, times))
        for entry in files:
            settled &= self._file(place, entry, into)
        if settled:
            names = tuple(entry.name for entry in files)
            into.settled_folders[place.path] = KnownFolder(*times, tuple(folders), names)
        for name in folders:
            self._subfolder(place.sub(name), into)

    def _is_settled(self, moment_ns: int) -> bool:
        """Asked of what was seen since: by now a tick may have passed in which it has changed."""
        return is_settled(moment_ns, self._began_ns)

    def _list(self, place: _Place, into: Scan) -> tuple[list[str], list[os.DirEntry[str]]]:
        """The subfolders' names, and the files, that are not ignored."""
        folders, files, inside = [], [], place.inside
        with os.scandir(place.local) as entries:
            for entry in entries:
                is_folder = entry.is_dir(follow_symlinks=False)
                name = f"{entry.name}/" if is_folder else entry.name
                if place.unit and self._component.is_busy(inside + name) and _is_recent(entry):
                    into.skipped.append(Skipped(f"{place.path}/{name}", "it is being written"))
                    self._found.busy.add(place.path)
                if entry.name == KSTORE_FOLDER or self._component.ignores(inside + name):
                    continue
                if is_folder:
                    folders.append(entry.name)
                else:
                    files.append(entry)
        return folders, files

    def _subfolder(self, place: _Place, into: Scan) -> None:
        if place.local in self._others:
            return
        if not place.unit and (unit := self._component.unit(place.inside)):
            place = place._replace(unit=unit, depth=place.path.count("/"))
            if unit == _GROUP:
                self._group(place)
                return
        self.folder(place, into)

    def _group(self, place: _Place) -> None:
        """Take all of a group, or none of it."""
        group = Scan()
        self.folder(place, group)
        if not group.known and not group.skipped:
            return
        if group.listed:  # what becomes of a group is said of all its folders
            group.settled_folders |= group.untouched
            group.untouched.clear()
        problem = next(self._problems(group), None) if group.listed or group.skipped else None
        if problem:
            if problem == _UNFINISHED and time.time() - os.stat(place.local).st_mtime < _WRITING_TIME:
                self._found.busy.add(place.path)
            self._found.skipped.append(Skipped(place.path, problem))
        else:
            if group.listed:
                _mark_host_bound(group)
            self._found.add(group)

    def _problems(self, group: Scan) -> Iterator[str]:
        yield from (f"{path.rpartition('/')[2]}: {reason}" for path, reason in group.skipped)
        yield from (f"it lists {path}, which is not there" for path in group.promised if path not in group.known)
        if not any(self._component.completes(path.partition("/")[2]) for path in group.known):
            yield _UNFINISHED

    def _file(self, place: _Place, entry: os.DirEntry[str], into: Scan) -> bool:
        """Take one file. Returns whether its folder's time alone vouches for it from now on."""
        path = f"{place.path}/{entry.name}"
        try:
            known = self._known(path, entry) or self._read(place, entry, into)
        except (Unfinished, FileNotFoundError) as reason:
            into.skipped.append(Skipped(path, str(reason)))
            return False
        except OSError as error:
            into.skipped.append(Skipped(path, f"it cannot be read: {error.strerror}"))
            return False
        into.known[path] = known
        if not self._is_settled(known.entry.mtime_ns) and not bears_stamp(known.entry.mtime_ns, known.entry.digest):
            into.unsettled.add(path)
            return False
        return bool(known.entry.flags & _NEVER_IN_PLACE)

    def _known(self, path: str, entry: os.DirEntry[str]) -> Known | None:
        """What the file's status tells of it, without reading it."""
        known = self._index.files.get(path)
        if known is None and path not in self._base():
            return None
        status = entry.stat(follow_symlinks=False)
        # What lists its group's files is read whenever its folder has changed: is all of it still there?
        if known and not known.entry.flags & _RELOCATE and known.still_is(status):
            return known
        return self._restored(path, status)

    def _restored(self, path: str, status: os.stat_result) -> Known | None:
        """What a restore put here and nobody has changed: its time bears its digest's stamp."""
        entry = self._base().get(path)
        if entry is None or not entry.flags & _LINK or entry.size != status.st_size:
            return None
        if not bears_stamp(status.st_mtime_ns, entry.digest):
            return None
        # Which store had its blob says nothing of what a commit finds.
        entry = entry._replace(mtime_ns=_mtime_ns(status), flags=entry.flags & ~_BELOW)
        return Known(entry, status.st_size, status.st_ino)

    def _read(self, place: _Place, found: os.DirEntry[str], into: Scan) -> Known:
        if not found.is_file(follow_symlinks=False):
            raise Unfinished("it is no regular file")
        name = found.name
        relative = place.inside + name
        kind = self._component.kind(relative, place.unit, place.depth)
        if lock := self._component.method("lock", relative):
            lock = lock.format(stem=name.partition(".")[0], folder=place.inside[:-1])
            check_unlocked(f"{self._component_folder}/{lock}")
        data, status = read_finished(f"{place.local}/{name}")
        if self._component.lists(relative) and os.stat(place.local).st_mtime_ns != self._listed_at:
            raise Unfinished("files have come to its folder meanwhile")
        into.hashed += 1
        if not data and kind.flags & _NEVER_IN_PLACE:
            raise Unfinished("it is empty")
        if kind.flags & _HOST and name.endswith(_OBJECT_FILES):
            check_whole_object(data)
        stored = self._relocated(place, relative, data, into) if kind.flags & _RELOCATE else data
        entry = _entry(stored, status, kind)
        self._keep(entry.digest, stored)
        return Known(entry, len(data), status.st_ino)

    def _keep(self, digest: bytes, stored: bytes) -> None:
        if len(stored) <= min(_SMALL, self._found.room):
            self._found.room -= len(stored)
            self._found.kept[digest] = stored

    def _relocated(self, place: _Place, relative: str, data: bytes, into: Scan) -> bytes:
        try:
            stored = to_stored(self._component.method("relocate", relative) or "", data, relative)
            into.promised += (f"{place.path}/{child}" for child in group_children(stored))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise Unfinished(f"it cannot be understood ({error})") from error
        return stored


def _entry(stored: bytes, status: os.stat_result, kind: Kind) -> Entry:
    mode = stat.S_IMODE(status.st_mode) & 0o777
    # The mode belongs to the inode, and a blob's is read-only for all: what must be executable is copied.
    flags = kind.flags & ~_LINK if mode & _EXECUTABLE else kind.flags
    return Entry(digest_of(stored), len(stored), _mtime_ns(status), mode, flags, kind.unit)


def _mtime_ns(status: os.stat_result) -> int:
    """A clock that is wrong by centuries leaves times that no manifest can hold."""
    return max(MIN_MTIME_NS, min(status.st_mtime_ns, MAX_MTIME_NS))


def _is_recent(entry: os.DirEntry[str]) -> bool:
    """A writer that was killed leaves its temporary name for ever; no file takes an hour to write."""
    try:
        return time.time() - entry.stat(follow_symlinks=False).st_mtime < _WRITING_TIME
    except FileNotFoundError:
        return False


def _mark_host_bound(group: Scan) -> None:
    """One host-bound file makes its whole group so: it is restored whole or not at all."""
    if any(known.entry.flags & _HOST for known in group.known.values()):
        for path, known in group.known.items():
            flags = known.entry.flags | _HOST
            group.known[path] = known._replace(entry=known.entry._replace(flags=flags))
