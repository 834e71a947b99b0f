"""Reads a cache root: which artifacts are there, whole and finished, and what their bytes are called.

A file whose status the index knows is not read again. A folder in which files are only ever created or replaced
is not even listed again while its own times stand, or that which a restore gave it.

All folders are looked at first. Then what has to be read is read, in the order in which it compresses best, so that it
can be uploaded meanwhile. At last it is said which groups are whole.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence, Set
from typing import NamedTuple

from kstore.blobs.loose import bears_stamp
from kstore.calls import Status, stat_each
from kstore.components import Component, Table
from kstore.components.table import KSTORE_FOLDER
from kstore.local.artifact import read_artifact
from kstore.local.cacheroot import CacheRoot
from kstore.local.finished import Content, Unfinished, read_in_batches
from kstore.local.found import BEING_WRITTEN, Found, Place, Scan, Skipped
from kstore.local.index import Index, Known, KnownFolder, is_settled
from kstore.local.untouched import Untouched
from kstore.published.manifest import Files, Flag
from kstore.similarity import similarity

_GROUP, _HOST, _LINK, _RELOCATE = int(Flag.GROUP), int(Flag.HOST), int(Flag.LINK), int(Flag.RELOCATE)
_BELOW = int(Flag.BELOW)
_WRITING_TIME = 3600.0
_UNFINISHED = "it is not finished"
_NOTHING_PLACED = Untouched()

Offer = Callable[[bytes, bytes], None]
"""Is given the digest and the stored form of what is read, each once it is read."""


def scan(
    root: CacheRoot,
    table: Table,
    index: Index,
    base: Callable[[], Files],
    untouched: Untouched = _NOTHING_PLACED,
    offer: Offer | None = None,
    stores: Sequence[str] = (),
) -> Scan:
    """Read all components of `root`. `base` gives what was restored into it; it is asked only for unknown files.

    `stores` may be in a folder that a user chose for a component: they are no artifacts. One that hangs must not be
    looked at where all folders are the root's own.
    """
    found = Scan()
    shared = _Shared(index, base, untouched, offer, found)
    walks, outside = [], root.outside
    for name, folder in root.folders.items():
        if _is_there(folder):
            others = {other for other in root.folders.values() if other != folder}
            if name in outside:
                others |= {*_below(folder, stores)}
            walk = _Walk(table[name], folder, others, shared)
            walk.folder(Place(name, folder), found)
            walks.append(walk)
    unread = sorted((file for walk in walks for file in walk.unread), reverse=True)
    for walk in walks:
        walk.unread.clear()
    for file, content in read_in_batches(_taken(unread)):
        file.walk.read(file, content)
    for walk in walks:
        walk.judge()
    return found


def _below(folder: str, stores: Sequence[str]) -> Iterator[str]:
    """Those of the stores that are below a folder, by the names that lead to them from there."""
    top = f"{os.path.realpath(folder)}/"
    for store in map(os.path.realpath, stores):
        if store.startswith(top):
            yield f"{folder}/{store.removeprefix(top)}"


def _taken(unread: list[_Unread]) -> Iterator[tuple[_Unread, str, int]]:
    """From the end. What was read is not held any longer: there may be a hundred thousand."""
    while unread:
        file = unread.pop()
        yield file, f"{file.folder.place.top}/{file.path.partition('/')[2]}", file.size


def _is_there(folder: str) -> bool:
    """Whether there is anything to scan. A folder that cannot be looked at is scanned, which names it as left out."""
    try:
        return stat.S_ISDIR(os.stat(folder).st_mode)
    except OSError as error:
        return not isinstance(error, FileNotFoundError | NotADirectoryError)


class _Listed(NamedTuple):
    """A folder that was listed, as it was before."""

    place: Place
    found: KnownFolder
    into: Found


class _Unread(NamedTuple):
    """A file that has to be read; sorted by similarity."""

    suffix: str
    size: int
    path: str
    walk: _Walk
    folder: _Listed


class _Shared(NamedTuple):
    """What the scans of all components know, and what becomes of them: see `scan`."""

    known: Index
    base: Callable[[], Files]
    untouched: Untouched
    offer: Offer | None
    found: Scan


class _Walk:
    """The scan of one component."""

    def __init__(self, component: Component, folder: str, others: set[str], shared: _Shared) -> None:
        """`others` may be below this folder: those of other components, which are scanned by themselves, and stores."""
        self._component = component
        self._component_folder = folder
        self._others = others
        self._began_ns = time.time_ns()
        self._index, self._base, self._untouched, self._offer, self._found = shared
        self._listed: list[_Listed] = []
        self._groups: list[tuple[Place, Found, list[_Listed]]] = []
        self._lists: list[tuple[str, _Listed]] = []
        """Files that list others."""
        self._names: dict[str, str] = {}
        """Each once: a kernel has the same ones whatever it was compiled for."""
        self.unread: list[_Unread] = []

    def folder(self, place: Place, into: Found) -> None:
        """Look at a folder and all below it."""
        try:
            status = os.stat(place.local)
            self._found.folders.add(place.path)
            known = self._index.folders.get(place.path)
            is_known = known is not None and known.still_is(status)
            placed = None if is_known else self._untouched.folder(place.path, status)
            entries = None if is_known or placed else self._entries(place, into)
        except OSError as error:
            into.skipped.append(Skipped(place.path, _reason(error)))
            return
        if entries:
            self._take_entries(place, status, *entries, into)
        elif placed:
            self._take_folder(place, placed, self._untouched.known, into, into.untouched)
        elif known:
            self._take_folder(place, known, self._index.files.__getitem__, into, into.settled_folders)

    def read(self, file: _Unread, content: Content | None = None) -> None:
        """Take one of the files that have to be read; `content` is what was read of it, if it was."""
        place, listed, into = file.folder
        try:
            relative = file.path.partition("/")[2]
            kind = self._component.kind(relative, place.unit, place.depth)
            artifact = read_artifact(self._component, self._component_folder, relative, kind, content)
        except (Unfinished, OSError, MemoryError) as error:
            into.skipped.append(Skipped(file.path, _reason(error)))
            return
        self._found.hashed += 1
        into.promised += (f"{place.path}/{child}" for child in artifact.promised if child not in listed.files)
        self._take(file.path, artifact.known, into)
        if artifact.is_displaced:
            self._found.displaced.append(file.path)
            into.unsettled.add(file.path)  # or nobody would read it again, where a commit comes first
        if self._offer:
            self._offer(artifact.known.entry.digest, artifact.stored)

    def judge(self) -> None:
        """Once all is read: which folders vouch for their files, and which groups are whole."""
        for path, folder in self._lists:
            if path in folder.into.known and _has_changed(folder):
                del folder.into.known[path]
                folder.into.skipped.append(Skipped(path, "files have come to its folder meanwhile"))
        for folder in self._listed:
            self._settle(folder)
        while self._groups:
            self._judge(*self._groups.pop())

    def _take_folder(
        self,
        place: Place,
        folder: KnownFolder,
        known: Callable[[str], Known],
        into: Found,
        folders: dict[str, KnownFolder],
    ) -> None:
        """Take a folder as it was, with what is known of its files."""
        for name in folder.files:
            path = f"{place.path}/{name}"
            into.known[path] = known(path)
        folders[place.path] = folder
        for name in folder.folders:
            self._subfolder(place.sub(name), into)

    def _take_entries(
        self, place: Place, status: os.stat_result, folders: list[str], files: dict[str, Status], into: Found
    ) -> None:
        """Take a folder with that status as it was listed since."""
        into.listed = True
        found = KnownFolder(status.st_mtime_ns, status.st_ctime_ns, tuple(folders), tuple(files))
        listed = _Listed(place, found, into)
        self._listed.append(listed)
        for name, file in files.items():
            self._file(listed, name, file)
        for name in folders:
            self._subfolder(place.sub(name), into)

    def _entries(self, place: Place, into: Found) -> tuple[list[str], dict[str, Status]]:
        """The subfolders' names, and the files, that are not ignored."""
        folders, files, inside, local = [], {}, place.inside, place.local
        names = [self._names.setdefault(name, name) for name in os.listdir(local)]
        for name, status in zip(names, stat_each([f"{local}/{name}" for name in names]), strict=True):
            if status.error == errno.ENOENT:  # Of what has gone meanwhile nobody knows whether it was a folder.
                continue
            is_folder = stat.S_ISDIR(status.mode)
            below = f"{inside}{name}/" if is_folder else inside + name
            if place.unit and self._component.is_busy(below) and _is_recent(f"{local}/{name}"):
                into.skipped.append(Skipped(f"{place.path}/{name}", BEING_WRITTEN))
                self._found.busy.add(place.path)
            if name == KSTORE_FOLDER or self._component.ignores(below):
                continue
            if is_folder:
                folders.append(name)
            else:
                files[name] = status
        return folders, files

    def _subfolder(self, place: Place, into: Found) -> None:
        if place.local in self._others:
            return
        if not place.unit and (unit := self._component.unit(place.inside)):
            place = place._replace(unit=unit, depth=place.path.count("/"))
            if unit == _GROUP:
                self._group(place)
                return
        self.folder(place, into)

    def _file(self, listed: _Listed, name: str, status: Status) -> None:
        """Take what is known of a file; else it is to be read."""
        place, _, into = listed
        path = f"{place.path}/{name}"
        if status.error:
            into.skipped.append(Skipped(path, _reason(OSError(status.error, os.strerror(status.error)))))
            return
        known = self._known(path, status)
        if known:
            self._take(path, known, into)
            return
        if not stat.S_ISREG(status.mode):
            into.skipped.append(Skipped(path, "it is no regular file"))
            return
        file = _Unread(*similarity(path, status.size), self, listed)
        relative = path.partition("/")[2]
        if self._component.lists(relative):
            self._lists.append((path, listed))
            self.read(file)  # before the folders are looked at whose files it lists
        elif self._component.method("relocate", relative):
            self.read(file)  # it may promise what is not there: then the rest need not be read
        else:
            self.unread.append(file)

    def _known(self, path: str, status: Status) -> Known | None:
        """What the file's status tells of it, without reading it."""
        known = self._index.files.get(path)
        # What lists its group's files is read whenever its folder has changed: is all of it still there?
        if known and not known.entry.flags & _RELOCATE and known.still_is(status):
            return known
        return self._restored(path, status)

    def _restored(self, path: str, status: Status) -> Known | None:
        """What a restore put here and nobody has changed: its time bears its digest's stamp."""
        entry = self._base().get(path)
        if entry is None or not entry.flags & _LINK or entry.size != status.size:
            return None
        if not bears_stamp(status.mtime_ns, entry.digest):
            return None
        # Which store had its blob says nothing of what a commit finds.
        entry = entry._replace(mtime_ns=status.mtime_ns, flags=entry.flags & ~_BELOW)
        return Known(entry, status.size, status.inode)

    def _take(self, path: str, known: Known, into: Found) -> None:
        into.known[path] = known
        if not self._is_settled(known.entry.mtime_ns) and not bears_stamp(known.entry.mtime_ns, known.entry.digest):
            into.unsettled.add(path)

    def _is_settled(self, moment_ns: int) -> bool:
        """Asked of what was seen since: by now a tick may have passed in which it has changed."""
        return is_settled(moment_ns, self._began_ns)

    def _settle(self, listed: _Listed) -> None:
        """Remember a folder whose times alone vouch for its files from now on."""
        place, found, into = listed
        times = found.mtime_ns, found.ctime_ns
        if all(map(self._is_settled, times)) and all(into.vouches(f"{place.path}/{name}") for name in found.files):
            into.settled_folders[place.path] = found

    def _group(self, place: Place) -> None:
        """Look at a group, to take all of it or none. One that is not complete need not be read."""
        group, before, listed_before = Found(), len(self.unread), len(self._listed)
        self.folder(place, group)
        paths = group.known.keys() | {file.path for file in self.unread[before:]}
        if not group.listed and not group.skipped:
            self._found.add(group)
        elif problem := next(self._problems(group, paths), None):
            del self.unread[before:]
            if paths or group.skipped:
                self._leave_out(place, problem)
        else:
            self._groups.append((place, group, self._listed[listed_before:]))

    def _problems(self, group: Found, paths: Set[str]) -> Iterator[str]:
        yield from (f"{path.rpartition('/')[2]}: {reason}" for path, reason in group.skipped)
        yield from (f"it lists {path}, which is not there" for path in group.promised if path not in paths)
        if not any(self._component.completes(path.partition("/")[2]) for path in paths):
            yield _UNFINISHED

    def _judge(self, place: Place, group: Found, folders: list[_Listed]) -> None:
        # What becomes of a group is said of all its folders.
        group.settled_folders |= group.untouched
        group.untouched.clear()
        if group.skipped:
            self._leave_out(place, next(self._problems(group, group.known.keys())))
        elif any(map(_has_changed, folders)):  # two writers' files are never mixed
            self._leave_out(place, "it changed while it was read")
        else:
            _mark_host_bound(group)
            self._found.add(group)

    def _leave_out(self, place: Place, problem: str) -> None:
        if problem == _UNFINISHED and _is_recent(place.local):
            self._found.busy.add(place.path)
        self._found.skipped.append(Skipped(place.path, problem))


def _has_changed(folder: _Listed) -> bool:
    """Whether a file has come, gone or been replaced since it was listed."""
    try:
        return not folder.found.still_is(os.stat(folder.place.local))
    except OSError:
        return True


def _reason(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "it has gone"
    if isinstance(error, MemoryError):
        return "it does not fit in memory"
    return f"it cannot be read: {error.strerror}" if isinstance(error, OSError) else str(error)


def _is_recent(path: str) -> bool:
    """A writer that was killed leaves its temporary name for ever; no file takes an hour to write."""
    try:
        return time.time() - os.lstat(path).st_mtime < _WRITING_TIME
    except OSError:
        return False


def _mark_host_bound(group: Found) -> None:
    """One host-bound file makes its whole group so: it is restored whole or not at all."""
    if any(known.entry.flags & _HOST for known in group.known.values()):
        for path, known in group.known.items():
            flags = known.entry.flags | _HOST
            group.known[path] = known._replace(entry=known.entry._replace(flags=flags))
