"""What is known of a cache root's files without reading them.

A folder in which files are only ever created or replaced is not even listed again while its own times, or the time that
a restore gave it, are unchanged. A file is not read again if the index knows its status, or if it still bears the stamp
of the blob that a restore made it from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from kstore.blobs.loose import bears_stamp
from kstore.calls import Status
from kstore.lazy import cached_property
from kstore.local.index import Index, Known, KnownFolder
from kstore.local.untouched import Untouched
from kstore.published.manifest import LINK, Entry, Files, is_list


class Unchanged(NamedTuple):
    """A folder in which nothing has changed."""

    folder: KnownFolder
    files: Mapping[str, Known]
    """What is known of its files, by name."""
    is_placed: bool
    """Whether it is as a restore placed it; otherwise it is as it was scanned."""


class Remembered:
    """What is known of one cache root."""

    def __init__(self, index: Index, base: Callable[[], Files], untouched: Untouched) -> None:
        """`base` gives what was restored; it is called only for files that are not in the index."""
        self._index = index
        self._base = base
        self._untouched = untouched

    def folder(self, path: str, status: Status) -> Unchanged | None:
        """A folder with that status; None if it has to be listed."""
        scanned = self._index.folders.get(path)
        if scanned and not status.error and scanned.still_is(status):
            return Unchanged(scanned, self._index.files.in_folder(path), is_placed=False)
        placed = self._untouched.folder(path, status)
        return Unchanged(placed, self._untouched.files(path), is_placed=True) if placed else None

    @cached_property
    def has_files(self) -> bool:
        """Whether anything is known of any file."""
        return bool(self._index.files or self._base())

    def file(self, path: str, status: Status) -> Known | None:
        """A file with that status; None if it has to be read."""
        known = self._index.files.get(path)
        # A list of a group's files is read whenever its folder has changed: do they all still exist?
        if known and not is_list(known.entry.flags) and known.still_is(status):
            return known
        entry = self._base().get(path)
        return _restored(entry, status) if entry else None


def _restored(entry: Entry, status: Status) -> Known | None:
    """A file that a restore made of this entry's blob and nobody has changed: its time bears the digest's stamp."""
    is_same = entry.flags & LINK and entry.size == status.size and bears_stamp(status.mtime_ns, entry.digest)
    return Known.placed(entry, status) if is_same else None
