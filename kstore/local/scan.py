"""Reads a cache root: which artifacts are there, whole and finished, and what their bytes are called.

All folders are looked at first, then the lists that groups keep of their own files. The remaining files are read in an
order in which they can be uploaded meanwhile. At the end each group is judged: is it whole? What is known from before
(`remembered`) is neither listed nor read again.
"""

from __future__ import annotations

import errno
import os
import stat
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from functools import partial
from itertools import chain, compress, islice

from kstore.calls import Listing, Status, stat_each
from kstore.components import Component, Kind, Table
from kstore.components.table import KSTORE_FOLDER
from kstore.folders import list_folders
from kstore.local.cacheroot import CacheRoot
from kstore.local.clocks import clocks_of
from kstore.local.finished import is_at_work, is_recent
from kstore.local.found import BEING_WRITTEN, Listed, Part, Place, Scan, Skipped, left_out
from kstore.local.index import KNOWN, Index, KnownFolder, is_settled
from kstore.local.remembered import Remembered, Unchanged
from kstore.local.unread import Offer, Reader, Unread
from kstore.local.untouched import Untouched
from kstore.published.manifest import DEEPEST, GROUP, NEVER_IN_PLACE, Files, with_parents

_File = tuple[Status, Kind]
_UNFINISHED, _CHANGED = "it is not finished", "it changed while it was read"
_NOTHING_PLACED = Untouched()
_AT_ONCE = 1024
"""Folders that are looked at in one go."""


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
        self._ungrouped = Part(Place(component.name, folder), component)
        self._groups: list[Part] = []
        """The groups that may be whole."""
        self._listed: list[Listed] = []
        """The folders that were listed."""
        self._unchanged: list[Listed] = []
        """The folders that were taken from the index or a restore without listing, if files may list their contents."""
        self._lists: list[tuple[Listed, int]] = []
        """Files that list others: their folders, and their numbers there."""
        self._names: dict[str, str] = {}
        """Each name once: kernels have the same file names whatever they were compiled for."""
        self._once: dict[tuple[str, ...], tuple[str, ...]] = {}
        """The names of each folder's files, once for all that have the same."""
        self._kinds: dict[tuple[Kind | None, ...], tuple[Kind | None, ...]] = {}
        """The same of their kinds."""

    def look(self) -> None:
        """Look at all folders."""
        self._folders([self._ungrouped.place], self._ungrouped)

    def unread_bytes(self) -> int:
        """The size of everything that may have to be read."""
        return sum(sum(folder.sizes) for part in (self._ungrouped, *self._groups) for folder in part.folders)

    def take_first(self) -> Iterator[Unread]:
        """What is read first: the lists that groups have of their own files. If a file that one promises is missing,
        the rest need not be read.
        """
        return self._to_read(lists=True)

    def take_rest(self) -> Iterator[Unread]:
        """The other files to read, once those lists were read; none of a group that lacks a file its list promises."""
        groups, self._groups = self._groups, []
        for group in groups:
            if (group.skipped or group.promised) and (problem := next(self._problems(group), None)):
                self._leave_out(group, problem)
            else:
                self._groups.append(group)
        return self._to_read(lists=False)

    def _to_read(self, *, lists: bool) -> Iterator[Unread]:
        folders = chain.from_iterable(part.folders for part in (self._ungrouped, *self._groups))
        return (Unread(folder, number) for folder in folders for number in folder.to_read(lists=lists))

    def judge(self) -> None:
        """Decide, once everything is read, which folders vouch for their files and which groups and lists are whole."""
        changed = _changed(self._listed)
        self._judge_lists(changed)
        for folder in self._listed:
            self._settle(folder)
        self._listed.clear()
        changing = with_parents(changed | self._rewritten())
        self._found.add(self._ungrouped)
        while self._groups:
            self._judge(self._groups.pop(), changing)

    def _rewritten(self) -> set[str]:
        """The folders of groups in which a file has changed in place while others of the same group were read."""
        folders = chain.from_iterable(group.folders for group in self._groups if group.is_read)
        every = ((folder, *file) for folder in folders if not folder.is_replaced_only for file in folder.entries())
        files = [(folder.path(at), known) for folder, at, known in every if known.entry.flags not in NEVER_IN_PLACE]
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
        for folder, number in self._lists:
            near = f"{folder.path(number).rsplit('/', 2)[0]}/"
            if folder.is_known(number) and any(f"{other}/".startswith(near) for other in every):
                folder.leave_out(number, "files were added to its folder meanwhile")

    def _take_unchanged(self, place: Place, unchanged: Unchanged, part: Part) -> None:
        """Take a folder as it was, with what is known about its files."""
        known, files, is_placed = unchanged
        folder = part.add(place, known)
        folder.vouches, folder.is_placed = not is_placed, is_placed
        self._found.folders.add(place.path)
        if self._has_lists:
            self._unchanged.append(folder)
        folder.records, folder.unknown = bytearray().join(KNOWN.pack(map(files.__getitem__, known.files))), 0
        for at in range(0, len(known.folders), _AT_ONCE):
            self._folders([place.sub(name) for name in known.folders[at : at + _AT_ONCE]], part)

    def _take_listing(self, place: Place, listing: Listing, part: Part) -> None:
        """Take a folder as it was listed."""
        status = listing.status
        if not status.error or os.path.isdir(place.local):
            self._found.folders.add(place.path)
        if status.error:
            part.skipped.append(left_out(place.path, status.as_error()))
            return
        part.is_changed = True
        folders, files = self._entries(place, listing, part)
        names = tuple(files)
        names = self._once.setdefault(names, names)
        listed = part.add(place, KnownFolder(status.mtime_ns, status.ctime_ns, tuple(folders), names))
        self._listed.append(listed)
        self._files(listed, files)
        while folders:  # Each status is let go of: there may be ten thousand.
            some = [(place.sub(name), folders.pop(name)) for name in [*islice(folders, _AT_ONCE)]]
            self._folders([sub for sub, _ in some], part, [status for _, status in some])

    def _entries(self, place: Place, listing: Listing, into: Part) -> tuple[dict[str, Status], dict[str, _File]]:
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

    def _ignores_or_waits(self, place: Place, name: str, below: str, into: Part) -> bool:
        """Whether an entry of a folder is ignored. If it shows that its group is being written, the group waits."""
        if place.unit and self._component.is_busy(below) and is_at_work(f"{place.local}/{name}", self._began_ns):
            into.skipped.append(Skipped(f"{place.path}/{name}", BEING_WRITTEN))
            self._found.busy.add(place.path)
        return self._component.ignores(below)

    def _folders(self, places: Sequence[Place], part: Part, statuses: Sequence[Status] | None = None) -> None:
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

    def _enter(self, place: Place, part: Part, take: Callable[[Part], None]) -> None:
        """Take a folder and everything below it; a group becomes a part of its own."""
        if place.unit == GROUP and place.path.count("/") == place.depth:
            self._group(place, take)
        else:
            take(part)

    def _files(self, listed: Listed, files: Mapping[str, _File]) -> None:
        """Take what is known about the files of a folder; note the others, which have to be read."""
        part, has_known = listed.part, bool(files) and self._remembered.has_files
        lists, kinds, sizes = self._component.lists if self._has_lists else None, [], array("Q")
        for number, (status, kind) in enumerate(files.values()):
            is_unread = False
            if status.error:
                part.skipped.append(left_out(listed.path(number), status.as_error()))
            elif has_known and (known := self._remembered.file(listed.path(number), status)):
                listed.know(number, next(KNOWN.pack([known])))
                listed.doubt_if_young(number, known.entry.mtime_ns, known.entry.digest, self._began_ns)
            elif stat.S_ISREG(status.mode):
                is_unread = True
                if lists and lists(listed.path(number).partition("/")[2]):
                    self._lists.append((listed, number))
            else:
                part.skipped.append(Skipped(listed.path(number), "it is not a regular file"))
            kinds.append(kind if is_unread else None)
            sizes.append(status.size if is_unread else 0)
        if any(kinds):
            listed.kinds, listed.sizes = self._kinds.setdefault(tuple(kinds), tuple(kinds)), sizes

    def _settle(self, listed: Listed) -> None:
        """Note whether a folder's times alone vouch for its files from now on."""
        times = listed.known.mtime_ns, listed.known.ctime_ns
        if listed.unknown == 0 and not listed.young and all(is_settled(time, self._began_ns) for time in times):
            listed.vouches = listed.is_replaced_only

    def _group(self, place: Place, take: Callable[[Part], None]) -> None:
        """Look at a group, which is taken whole or not at all. An incomplete group need not be read."""
        group = Part(place, self._component)
        take(group)
        if not group.is_changed and not group.skipped:
            self._found.add(group)
        elif problem := next(self._problems(group), None):
            if group.has_files:
                self._leave_out(group, problem)
            else:
                group.forget()
        else:
            self._groups.append(group)

    def _problems(self, group: Part) -> Iterator[str]:
        yield from (f"{path.rpartition('/')[2]}: {reason}" for path, reason in group.skipped)
        for path in sorted(set(group.promised).difference(group.paths)) if group.promised else ():
            yield f"it lists {path}, which does not exist"
        if not any(self._component.completes(path.partition("/")[2]) for path in group.paths):
            yield _UNFINISHED

    def _judge(self, group: Part, changing: Set[str]) -> None:
        """`changing` are all folders in which something has changed, and the folders that they are in."""
        if group.skipped:
            self._leave_out(group, next(self._problems(group)))
        elif group.place.path in changing:  # two writers' files are never mixed
            self._leave_out(group, _CHANGED)
        else:
            group.mark_host_bound()
            self._found.add(group, shares=True)

    def _leave_out(self, group: Part, problem: str) -> None:
        place = group.place
        group.forget()
        if problem == _CHANGED or (problem == _UNFINISHED and is_recent(place.local, self._began_ns)):
            self._found.busy.add(place.path)
        self._found.skipped.append(Skipped(place.path, problem))


def _changed(folders: Sequence[Listed]) -> set[str]:
    """Those in which a file has since been created, removed or replaced."""
    both = zip(folders, stat_each([folder.place.local for folder in folders], follows=True), strict=True)
    return {folder.place.path for folder, status in both if status.error or not folder.known.still_is(status)}
