"""Files of a local cache root that a restore placed and that now have different content.

Only files that are never changed in place are looked at. If a compiler has replaced one, the replacement is the
worker's own, so a file counts as placed by a restore only if

- its time bears its blob's stamp,
- or no name has been added to its folder, or removed from it, since the restore,
- or its status is the one with which a scan found the right content.
"""

from __future__ import annotations

import os
from contextlib import suppress

from kstore.blobs.loose import bears_stamp
from kstore.calls import Status
from kstore.files import read_whole
from kstore.local.relocate import to_local
from kstore.local.state import State
from kstore.local.untouched import Untouched
from kstore.published.manifest import LINK, NEVER_IN_PLACE, RELOCATE, Entry, Files, unit_of
from kstore.published.snapshot import Snapshot
from kstore.worker import Worker

_EXECUTABLE = 0o111


def altered_files(worker: Worker, *, remove: bool) -> list[str]:
    """The altered files of the worker's cache root. With `remove`, they are taken out, each with its group, so that
    the compiler or the next restore makes them anew.
    """
    state = worker.state.load()
    base = worker.base(state)
    if base is None:
        return []
    files = worker.managed_files_of(base.manifest)
    altered = _Placed(worker, state, base, files).altered()
    if remove:
        _remove(worker, files, {unit_of(path, files[path]) for path in altered})
    return altered


def _remove(worker: Worker, files: Files, units: set[str]) -> None:
    for path, entry in files.items():
        if unit_of(path, entry) in units:
            with suppress(FileNotFoundError):
                os.unlink(worker.root.local_path(path))


class _Placed:
    """What a restore or a commit knew about the files of a root."""

    def __init__(self, worker: Worker, state: State, base: Snapshot, files: Files) -> None:
        self._worker = worker
        self._index = state.index
        fixed = {path: _fixed(worker, path, entry) for path, entry in files.items()}
        self._files = {path: entry for path, entry in fixed.items() if entry.flags in NEVER_IN_PLACE}
        self._untouched = Untouched(worker.untouched(state, base), lambda: fixed)

    def altered(self) -> list[str]:
        """The files whose content differs from their blob."""
        return [path for path, entry in self._files.items() if self._is_altered(path, entry)]

    def _is_altered(self, path: str, entry: Entry) -> bool:
        with suppress(OSError, MemoryError):  # A file that is missing, or just cannot be read, is not altered.
            stored = self._worker.read_stored(path, entry)
            if stored is not None:
                return bool(entry.flags & RELOCATE) and self._names_other_paths(path, stored)
            read_whole(self._worker.root.local_path(path))
            return self._was_placed(path, entry)
        return False

    def _names_other_paths(self, path: str, stored: bytes) -> bool:
        """A compiler may write paths differently from a restore, and mean the same."""
        placed = to_local(stored, self._worker.root.folders[path.partition("/")[0]])
        return read_whole(self._worker.root.local_path(path)) != placed and self._is_in_untouched_folder(path)

    def _was_placed(self, path: str, entry: Entry) -> bool:
        """To be asked after the file was read: a compiler may have replaced it meanwhile."""
        found = Status.of(os.lstat(self._worker.root.local_path(path)))
        if entry.flags & LINK and found.size == entry.size and bears_stamp(found.mtime_ns, entry.digest):
            return True
        known = self._index.files.get(path)
        if known and known.entry.digest == entry.digest and known.still_is(found):
            return True
        return self._is_in_untouched_folder(path)

    def _is_in_untouched_folder(self, path: str) -> bool:
        folder = path.rpartition("/")[0]
        return self._untouched.folder(folder, Status.of(os.stat(self._worker.root.local_path(folder)))) is not None


def _fixed(worker: Worker, path: str, entry: Entry) -> Entry:
    """The entry, with the flag for files that are never changed in place if the rules say so. An executable file has
    lost that flag, because it must be copied.
    """
    component, _, relative = path.partition("/")
    if entry.mode & _EXECUTABLE and worker.table[component].kind(relative, 0, 0).flags & LINK:
        return entry._replace(flags=entry.flags | LINK)
    return entry
