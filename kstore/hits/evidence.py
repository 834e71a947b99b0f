"""Reads from the files of a cache root what was used and what is new.

A file that was restored was created or linked then, which sets its status-change time, and Linux notes the first
read of a file after that in its access time, also where it is mounted relatime (mount(8)). So a file whose access time
is later than the end of the restore has been read since, and another has not. Of one that had been read before, within
a day, nobody can tell.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress

from kstore.hits.counters import Counters
from kstore.hits.report import Usage, UsageReport
from kstore.local.scan import Scan
from kstore.local.state import Restored
from kstore.manifest import Entry, Files, Flag, unit_of
from kstore.store import Store
from kstore.worker import Worker

_GROUP, _SLOT, _LINK = int(Flag.GROUP), int(Flag.SLOT), int(Flag.LINK)
_DAY = 24 * 3600 * 10**9
_COUNTED = "inductor"
"""The component that torch's counters are about."""
NO_ACCESS_TIMES = "the cache root is mounted noatime"
READ_BEFORE = "some of what was restored had been read before"


def usage_of(store: Store, key: str, counted: Counters | None = None) -> UsageReport:
    """What became of what was last restored for `key` on this node. `counted`: by torch, in this process, since.

    Raises:
        KstoreError, OSError: the cache root cannot be used.
    """
    worker = store.worker(key, before_import=False)
    with worker.state.locked():
        restored = worker.state.restored()
        state = worker.state.load()
        found = worker.scan(state) if restored else Scan()
    if restored is None:
        return UsageReport(worker.scope.key, why_unknown="nothing was restored into this cache root")
    return _Evidence(worker, restored, _restored_files(restored, state.host)).report(found, counted)


def _restored_files(restored: Restored, host: str) -> Files:
    return restored.snapshot.manifest.for_host(host) if restored.snapshot else {}


class _Evidence:
    """What the files of one cache root tell of one restore."""

    def __init__(self, worker: Worker, restored: Restored, files: Files) -> None:
        self._worker = worker
        self._restored = restored
        self._files = files
        self._is_blind = {name: _has_no_access_times(folder) for name, folder in worker.root.folders.items()}
        self._why_unknown = ""

    def report(self, found: Scan, counted: Counters | None) -> UsageReport:
        old = _by_component(self._files)
        new = _by_component({path: known.entry for path, known in found.known.items() if self._is_new(path)})
        usages = {name: self._usage(name, old[name], new[name]) for name in sorted(old.keys() | new.keys())}
        if counted and (counted.hits or counted.misses):
            files = usages.get(_COUNTED, Usage())
            usages[_COUNTED] = Usage(files.restored, counted.hits, counted.misses, files.compiled, counted=True)
        snapshot = self._restored.snapshot
        return UsageReport(
            self._worker.scope.key, snapshot.ref.generation if snapshot else 0, usages, self._why_unknown
        )

    def _usage(self, component: str, old: Files, new: Files) -> Usage:
        has_entries = any(entry.flags & (_GROUP | _SLOT) for entry in (*old.values(), *new.values()))
        restored, anew = _entries(old, has_entries), _entries(new, has_entries)
        seen = [self._was_read(component, paths) for paths in restored.values()]
        return Usage(len(restored), None if None in seen else sum(map(bool, seen)), len(anew), len(new))

    def _was_read(self, component: str, paths: Iterable[str]) -> bool | None:
        """Whether any of an entry's files has been read since the restore; None if nobody can tell."""
        if self._is_blind.get(component, True):
            self._why_unknown = self._why_unknown or NO_ACCESS_TIMES
            return None
        # A scan knows by their time those that are never changed in place, and reads the others.
        answers = [self._file_was_read(path) for path in paths if self._files[path].flags & _LINK]
        if True in answers:
            return True
        if None in answers or not answers:
            self._why_unknown = self._why_unknown or READ_BEFORE
            return None
        return False

    def _file_was_read(self, path: str) -> bool | None:
        try:
            status = os.lstat(self._worker.root.local_path(path))
        except OSError:
            return False
        if status.st_atime_ns > self._restored.mark_ns:
            return True
        changed = max(status.st_mtime_ns, status.st_ctime_ns)
        is_noted = status.st_atime_ns <= changed or time.time_ns() - status.st_atime_ns > _DAY
        return False if is_noted else None

    def _is_new(self, path: str) -> bool:
        if path in self._files:
            return False
        with suppress(OSError):
            return os.lstat(self._worker.root.local_path(path)).st_ctime_ns > self._restored.mark_ns
        return False


def _by_component(files: Files) -> dict[str, Files]:
    found: dict[str, Files] = defaultdict(dict)
    for path, entry in files.items():
        found[path.partition("/")[0]][path] = entry
    return found


def _entries(files: Files, has_entries: bool) -> dict[str, list[str]]:
    """What compilers look up at once: each kernel's folder, each graph; where there are none, each file."""
    found: dict[str, list[str]] = defaultdict(list)
    for path, entry in files.items():
        if not has_entries or entry.flags & (_GROUP | _SLOT):
            found[_entry_name(path, entry)].append(path)
    return found


def _entry_name(path: str, entry: Entry) -> str:
    return unit_of(path, entry) if entry.flags & _GROUP else path


def _has_no_access_times(folder: str) -> bool:
    try:
        return bool(os.statvfs(folder).f_flag & os.ST_NOATIME)
    except OSError:
        return True
