"""Reads a cache root: which artifacts are there, whole and finished, and what their bytes are called.

All folders are looked at first, then the lists that groups keep of their own files. The remaining files are read in an
order in which they can be uploaded meanwhile. At the end each group is judged: is it whole? What is known from before
(`remembered`) is neither listed nor read again.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from functools import partial
from itertools import chain, compress
from typing import NamedTuple

from kstore.calls import Listing, Status, stat_each
from kstore.components import Component, Kind, Table
from kstore.components.table import KSTORE_FOLDER
from kstore.folders import list_folders
from kstore.local.cacheroot import CacheRoot
from kstore.local.clocks import clocks_of
from kstore.local.finished import is_at_work, is_recent
from kstore.local.found import BEING_WRITTEN, Found, Listed, Place, Scan, Skipped, left_out
from kstore.local.index import Index, KnownFolder, is_settled
from kstore.local.remembered import Remembered, Unchanged
from kstore.local.unread import Offer, Reader, Unread
from kstore.local.untouched import Untouched
from kstore.published.manifest import DEEPEST, GROUP, NEVER_IN_PLACE, Files, with_parents
from kstore.similarity import suffix

_File = tuple[Status, Kind]
_UNFINISHED, _CHANGED = "it is not finished", "it changed while it was read"
_NOTHING_PLACED = Untouched()


def scan(
    root: CacheRoot,
    table: Table,
    index: Index,
    base: Callable[[], Files],
    untouched: Untouched = _NOTHING_PLACED,
    offer: Offer | None = None,
    stores: Sequence[str] = (),
) -> Scan:
    """Read all components of `root`. `base` gives what was restored into it; it is called only for unknown files.

    `stores` are the roots of stores. They may be in a folder that a user chose for a component, and are not artifacts.
    """
    remembered = Remembered(index, base, untouched)
    there = {name: folder for name, folder in root.folders.items() if _is_there(folder)}
    found = Scan(clocks=clocks_of(root.state, there))
    walks = [
        _Walk(table[name], folder, root.others_in(name, stores), remembered, found) for name, folder in there.items()
    ]
    for walk in walks:
        walk.look()
    reader = Reader(found, offer, sum(walk.unread_bytes() for walk in walks))
    reader.read(file for walk in walks for file in walk.take_first())
    reader.read(file for walk in walks for file in walk.take_rest())
    for walk in walks:
        walk.judge()
    return found


def _is_there(folder: str) -> bool:
    """Whether there is anything to scan. A folder that cannot be examined is scanned, which reports it as left out."""
    try:
        return stat.S_ISDIR(os.stat(folder).st_mode)
    except OSError as error:
        return not isinstance(error, FileNotFoundError | NotADirectoryError)


class _Part(NamedTuple):
    """A group, or everything in a component that is in no group."""

    place: Place
    found: Found
    first: list[Unread]
    """What has to be read first: lists of its own files. If a promised file is missing, the rest need not be read."""
    rest: list[Unread]
    """The other files that have to be read."""

    @property
    def has_files(self) -> bool:
        """Whether it has any files, including those that were left out."""
        return bool(self.found.known or self.first or self.rest or self.found.skipped)

    @property
    def paths(self) -> Iterator[str]:
        """The files that were not left out. The one that completes a group is most often its list: those come first."""
        return chain((file.path for file in chain(self.first, self.rest)), self.found.known)


class _Walk:
    """The scan of one component."""

    def __init__(
        self,
        component: Component,
        folder: str,
        others: set[str],
        remembered: Remembered,
        found: Scan,
    ) -> None:
        """`others` are folders that may be below this one and are not part of it: other components, and stores."""
        self._component = component
        self._others = others
        self._remembered = remembered
        self._found = found
        self._began_ns = found.clocks[component.name]
        self._has_lists = bool(component.rules["lists"])
        self._ungrouped = _Part(Place(component.name, folder), self._found, [], [])
        self._groups: list[_Part] = []
        """The groups that may be whole."""
        self._read: set[str] = set()
        """The folders of those of which something is read. All that the others have was known when they were listed."""
        self._listed: list[Listed] = []
        """The folders that were listed."""
        self._unchanged: list[Listed] = []
        """The folders that were taken from the index or a restore without listing, if files may list their contents."""
        self._lists: list[tuple[str, Found]] = []
        """Files that list others."""
        self._names: dict[str, str] = {}
        """Each name once: kernels have the same file names whatever they were compiled for."""

    def look(self) -> None:
        """Look at all folders."""
        self._folders([self._ungrouped.place], self._ungrouped)

    def unread_bytes(self) -> int:
        """The size of everything that may have to be read."""
        return sum(file.size for part in (self._ungrouped, *self._groups) for file in chain(part.first, part.rest))

    def take_first(self) -> Iterator[Unread]:
        """What is read first: the lists that groups have of their own files."""
        for part in (self._ungrouped, *self._groups):
            yield from part.first
            part.first.clear()

    def take_rest(self) -> Iterator[Unread]:
        """The other files to read, once those lists were read; none of a group that lacks a file its list promises."""
        groups, self._groups = self._groups, []
        for group in groups:
            found = group.found
            if (found.skipped or found.promised) and (problem := next(self._problems(group), None)):
                self._leave_out(group.place, problem)
            else:
                self._groups.append(group)
        for part in (self._ungrouped, *self._groups):
            part.rest.reverse()
            while part.rest:  # Each is let go of once it is taken: there may be a hundred thousand.
                yield part.rest.pop()

    def judge(self) -> None:
        """Decide, once everything is read, which folders vouch for their files and which groups and lists are whole."""
        changed = _changed(self._listed)
        self._judge_lists(changed)
        for folder in self._listed:
            self._settle(folder)
        changing = with_parents(changed | self._rewritten())
        while self._groups:
            self._judge(self._groups.pop(), changing)

    def _rewritten(self) -> set[str]:
        """The folders of groups in which a file has changed in place while others of the same group were read."""
        groups = (group.found.known for group in self._groups if group.place.path in self._read)
        every = chain.from_iterable(known.items() for known in groups)
        files = [(path, known) for path, known in every if known.entry.flags not in NEVER_IN_PLACE]
        top = self._ungrouped.place.top
        found = stat_each([top + path[path.index("/") :] for path, _ in files])
        # Not its inode, which some filesystems make up: if another file has its name, its folder has changed.
        return {
            path.rpartition("/")[0]
            for (path, known), status in zip(files, found, strict=True)
            if (status.mtime_ns, status.size) != (known.entry.mtime_ns, known.size)
        }

    def _judge_lists(self, changed: Set[str]) -> None:
        """Leave out each list near which files have appeared since, because it may name them: what a list names is
        beside it, or in a folder beside its own.
        """
        every = changed | _changed(self._unchanged) if self._lists else changed
        for path, into in self._lists:
            near = f"{path.rsplit('/', 2)[0]}/"
            if path in into.known and any(f"{folder}/".startswith(near) for folder in every):
                del into.known[path]
                into.skipped.append(Skipped(path, "files were added to its folder meanwhile"))

    def _take_unchanged(self, place: Place, unchanged: Unchanged, part: _Part) -> None:
        """Take a folder as it was, with what is known about its files."""
        folder, known, is_placed = unchanged
        (part.found.untouched if is_placed else part.found.settled_folders)[place.path] = folder
        self._found.folders.add(place.path)
        if self._has_lists:
            self._unchanged.append(Listed(place, folder, part.found))
        for name in folder.files:
            path = f"{place.path}/{name}"
            part.found.known[path] = known(path)
        if folder.folders:
            self._folders([place.sub(name) for name in folder.folders], part)

    def _take_listing(self, place: Place, listing: Listing, part: _Part) -> None:
        """Take a folder as it was listed."""
        status = listing.status
        if not status.error or os.path.isdir(place.local):
            self._found.folders.add(place.path)
        if status.error:
            part.found.skipped.append(left_out(place.path, status.as_error()))
            return
        part.found.listed = True
        folders, files = self._entries(place, listing, part.found)
        listed = Listed(place, KnownFolder(status.mtime_ns, status.ctime_ns, tuple(folders), tuple(files)), part.found)
        self._listed.append(listed)
        self._files(listed, files, part)
        if folders:
            self._folders([place.sub(name) for name in folders], part, list(folders.values()))

    def _entries(self, place: Place, listing: Listing, into: Found) -> tuple[dict[str, Status], dict[str, _File]]:
        """The subfolders and files that are not ignored."""
        folders, files = dict[str, Status](), dict[str, _File]()
        inside, unit, depth, once = place.inside, place.unit, place.depth, self._names.setdefault
        is_folder, kind_of = stat.S_ISDIR, self._component.kinds.of
        for name, status in listing.entries():
            is_file = not is_folder(status.mode)
            below = inside + name if is_file else f"{inside}{name}/"
            kind = kind_of(below, unit, depth)
            if name == KSTORE_FOLDER or (kind.is_unusual and self._ignores_or_waits(place, name, below, into)):
                continue
            if not is_file:
                folders[once(name, name)] = status
            elif status.error != errno.ENOENT:  # What is gone by now may have been a folder.
                files[once(name, name)] = status, kind
        if folders and place.path.count("/") >= DEEPEST:
            into.skipped += (Skipped(f"{place.path}/{name}", "it is too deep") for name in folders)
            folders.clear()
        return folders, files

    def _ignores_or_waits(self, place: Place, name: str, below: str, into: Found) -> bool:
        """Whether an entry of a folder is ignored. If it shows that its group is being written, the group waits."""
        if place.unit and self._component.is_busy(below) and is_at_work(f"{place.local}/{name}", self._began_ns):
            into.skipped.append(Skipped(f"{place.path}/{name}", BEING_WRITTEN))
            self._found.busy.add(place.path)
        return self._component.ignores(below)

    def _folders(self, places: Sequence[Place], part: _Part, statuses: Sequence[Status] | None = None) -> None:
        """Look at folders and everything below them; `statuses` are those of the folders, if known."""
        local = [place.local for place in places]
        ours = [path not in self._others for path in local]
        found = stat_each([*compress(local, ours)], follows=True) if statuses is None else compress(statuses, ours)
        unknown: list[Place] = []
        for place, status in zip(map(self._in_unit, compress(places, ours)), found, strict=True):
            if unchanged := self._remembered.folder(place.path, status):
                self._enter(place, part, partial(self._take_unchanged, place, unchanged))
            else:
                unknown.append(place)
        for place, listing in zip(unknown, list_folders([place.local for place in unknown]), strict=True):
            self._enter(place, part, partial(self._take_listing, place, listing))

    def _in_unit(self, place: Place) -> Place:
        unit = place.unit or self._component.unit(place.inside)
        return place if unit == place.unit else Place(place.path, place.top, unit, place.path.count("/"))

    def _enter(self, place: Place, part: _Part, take: Callable[[_Part], None]) -> None:
        """Take a folder and everything below it; a group becomes a part of its own."""
        if place.unit == GROUP and place.path.count("/") == place.depth:
            self._group(place, take)
        else:
            take(part)

    def _files(self, listed: Listed, files: Mapping[str, _File], part: _Part) -> None:
        """Take what is known about the files of a folder; note the others, which have to be read."""
        inside, found, component = f"{listed.place.path}/", part.found, self._component
        known_as = self._remembered.file if files and self._remembered.has_files else _unknown
        lists = component.lists if self._has_lists else None
        is_regular, make = stat.S_ISREG, tuple.__new__
        for name, (status, kind) in files.items():
            path = inside + name
            if status.error:
                found.skipped.append(left_out(path, status.as_error()))
            elif known := known_as(path, status):
                found.known[path] = known
                found.doubt_if_young(path, self._began_ns)
            elif is_regular(status.mode):
                if lists and lists(path.partition("/")[2]):
                    self._lists.append((path, found))
                unread = part.first if kind.is_list else part.rest
                # Unread(…), with fewer steps of the interpreter: there may be ten thousand.
                unread.append(make(Unread, (suffix(name), status.size, path, kind, component, listed)))
            else:
                found.skipped.append(Skipped(path, "it is not a regular file"))

    def _settle(self, listed: Listed) -> None:
        """Remember a folder if its times alone vouch for its files from now on."""
        place, known, into = listed
        are_settled = is_settled(known.mtime_ns, self._began_ns) and is_settled(known.ctime_ns, self._began_ns)
        if are_settled and into.vouches([f"{place.path}/{name}" for name in known.files]):
            into.settled_folders[place.path] = known

    def _group(self, place: Place, take: Callable[[_Part], None]) -> None:
        """Look at a group, which is taken whole or not at all. An incomplete group need not be read."""
        group = _Part(place, Found(), [], [])
        take(group)
        if not group.found.listed and not group.found.skipped:
            self._found.add(group.found)
        elif problem := next(self._problems(group), None):
            if group.has_files:
                self._leave_out(place, problem)
        else:
            self._groups.append(group)
            if group.first or group.rest:
                self._read.add(place.path)

    def _problems(self, group: _Part) -> Iterator[str]:
        found = group.found
        yield from (f"{path.rpartition('/')[2]}: {reason}" for path, reason in found.skipped)
        for path in sorted(set(found.promised).difference(group.paths)) if found.promised else ():
            yield f"it lists {path}, which does not exist"
        if not any(self._component.completes(path.partition("/")[2]) for path in group.paths):
            yield _UNFINISHED

    def _judge(self, group: _Part, changing: Set[str]) -> None:
        """`changing` are all folders in which something has changed, and the folders that they are in."""
        found = group.found
        # All folders of a group share its fate.
        found.settled_folders |= found.untouched
        found.untouched.clear()
        if found.skipped:
            self._leave_out(group.place, next(self._problems(group)))
        elif group.place.path in changing:  # two writers' files are never mixed
            self._leave_out(group.place, _CHANGED)
        else:
            found.mark_host_bound()
            self._found.add(found)

    def _leave_out(self, place: Place, problem: str) -> None:
        if problem == _CHANGED or (problem == _UNFINISHED and is_recent(place.local, self._began_ns)):
            self._found.busy.add(place.path)
        self._found.skipped.append(Skipped(place.path, problem))


def _unknown(path: str, status: Status) -> None:
    """What is known of a file where nothing is remembered of any."""


def _changed(folders: Sequence[Listed]) -> set[str]:
    """Those in which a file has since been created, removed or replaced."""
    both = zip(folders, stat_each([folder.place.local for folder in folders], follows=True), strict=True)
    return {folder.place.path for folder, status in both if status.error or not folder.known.still_is(status)}
