"""Folders that nobody has touched since a restore placed them: their time says so, without an entry in the index.

A restore builds folders where nobody looks, and gives all of them one modification time of its own, in the past. Moving
a folder to its place does not change that time; every name that comes, goes or is replaced sets it to the present. So a
folder that still has the restore's time holds what the base has below it. Some programs set such a time back after a
change (rsync, or systemd-tmpfiles when it cleans up): that leaves a status-change time, which nobody can set.
"""

from __future__ import annotations

import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import NamedTuple

from kstore.calls import Status, utime_each
from kstore.lazy import cached_property
from kstore.local.index import Known, KnownFolder
from kstore.published.byfolder import ByFolder
from kstore.published.manifest import BELOW, Entry, Files, changed_in_place, compacted, parents_of
from kstore.threads import submit

_SECOND = 1_000_000_000
_AT_ONCE = 512
"""Folders that are marked in one go, by one of two threads."""


class Mark(NamedTuple):
    """What identifies the folders that a restore has placed."""

    mtime_ns: int = 0
    """Their modification time; 0 if there are none."""
    placed_ns: int = 0
    """When all were in place, by the clock of the cache root's filesystem: no status-change time is later."""

    def stands(self, mtime_ns: int, ctime_ns: int) -> bool:
        """Whether a folder with these times is as a restore has placed it."""
        return mtime_ns == self.mtime_ns != 0 and ctime_ns <= self.placed_ns


UNMARKED = Mark()
"""No folder is known."""


def mark_folders(folders: Sequence[str], staged: Callable[[str], str], pool: Executor) -> int:
    """Give folders, each of which is where `staged` says, a modification time that no change leaves; returns it, in
    nanoseconds.

    A filesystem that refuses or truncates it shows another time: those folders will be read.
    """
    moment = (time.time_ns() // _SECOND - 2) * _SECOND + secrets.randbelow(_SECOND - 1) + 1

    def mark(some: Sequence[str]) -> None:
        utime_each([*map(staged, some)], moment, moment)

    some = (folders[at : at + _AT_ONCE] for at in range(0, len(folders), _AT_ONCE))
    for marking in [submit(pool, mark, each) for each in some]:
        marking.result()
    return moment


def is_placed(mark: Mark, status: Status) -> bool:
    """Whether a folder with that status is as a restore has placed it."""
    return not status.error and mark.stands(status.mtime_ns, status.ctime_ns)


class Untouched:
    """What a restore has placed into one cache root."""

    def __init__(self, mark: Mark = UNMARKED, files: Callable[[], Files] = dict) -> None:
        """`files` gives everything that was placed."""
        self._mark = mark
        self._files = files

    def folder(self, path: str, status: Status) -> KnownFolder | None:
        """What is in a folder with that status; None if it must be read."""
        names = self._names.get(path) if is_placed(self._mark, status) else None
        return KnownFolder(status.mtime_ns, status.ctime_ns, *names) if names else None

    def files(self, folder: str) -> dict[str, Known]:
        """The placed files of a folder, by name. Their inodes were not asked for: a file is looked at if something
        beside it has changed.
        """
        return {name: _known(entry) for name, entry in self._compacted.in_folder(folder).items()}

    @cached_property
    def _compacted(self) -> ByFolder[Entry]:
        return compacted(self._files())

    @cached_property
    def _names(self) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
        """The names of subfolders and files in each folder whose files are only ever created or replaced."""
        changing = changed_in_place(self._compacted).folders
        files = {folder: tuple(names) for folder, names, _ in self._compacted.by_folder() if folder is not None}
        folders = defaultdict[str, set[str]](set)
        for path in files:
            for folder in parents_of(path):
                folders[folder].add(path[len(folder) + 1 :].partition("/")[0])
        every = (files.keys() | folders.keys()) - changing
        return {path: (tuple(folders.get(path, ())), files.get(path, ())) for path in every}


def _known(entry: Entry) -> Known:
    if entry.flags & BELOW:  # which store had its blob says nothing about what a commit finds
        entry = entry._replace(flags=entry.flags & ~BELOW)
    return Known(entry, entry.size, 0)
