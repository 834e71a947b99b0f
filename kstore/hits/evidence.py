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
from dataclasses import dataclass

from kstore.hits.counters import Counters
from kstore.hits.report import Usage, UsageReport
from kstore.local.state import Restored
from kstore.manifest import Entry, Files, Flag, unit_of
from kstore.store import Store
from kstore.worker import Worker

_GROUP, _SLOT, _LINK = int(Flag.GROUP), int(Flag.SLOT), int(Flag.LINK)
_DAY = 24 * 3600 * 10**9
_COUNTED = "inductor"
"""The component that torch's counters are about."""
NOTHING_RESTORED = "nothing was restored into this cache root"
NO_ACCESS_TIMES = "the cache root is mounted noatime"
READ_BEFORE = "some of what was restored had been read before"


def usage_of(store: Store, key: str, counted: Counters | None = None) -> UsageReport:
    """What became of what was last restored for `key` on this node. `counted`: by torch, in this process, since.

    Raises:
        KstoreError, OSError: the cache root cannot be used.
    """
    worker = store.worker(key, before_import=False)
    run = last_run(worker)
    if run is None:
        return UsageReport(key, why_unknown=NOTHING_RESTORED)
    return _Evidence(worker, run).report(counted)


@dataclass(frozen=True, slots=True)
class LastRun:
    """What a cache root tells of the time since its last restore."""

    restored: Restored
    old: Files
    """What was restored, as far as this host can use it."""
    new: Files
    """What has come since."""

    @property
    def generation(self) -> int:
        """What was restored; 0 for nothing."""
        return self.restored.snapshot.ref.generation if self.restored.snapshot else 0


def last_run(worker: Worker) -> LastRun | None:
    """The run that goes on, or that has just ended, in the worker's cache root; None if nobody has restored into it.

    Raises:
        KstoreError, OSError: the cache root cannot be used.
    """
    with worker.state.locked():
        restored = worker.state.restored()
        if restored is None:
            return None
        state = worker.state.load()
        found = worker.scan(state)
    old = restored.snapshot.manifest.for_host(state.host) if restored.snapshot else {}
    came = (path for path in found.known.keys() - old.keys() if _came_after(worker, path, restored.mark_ns))
    return LastRun(restored, old, {path: found.known[path].entry for path in sorted(came)})


def _came_after(worker: Worker, path: str, mark_ns: int) -> bool:
    with suppress(OSError):
        return os.lstat(worker.root.local_path(path)).st_ctime_ns > mark_ns
    return False


class _Evidence:
    """What the files of one cache root tell of one run."""

    def __init__(self, worker: Worker, run: LastRun) -> None:
        self._worker = worker
        self._run = run
        self._is_blind = {name: _has_no_access_times(folder) for name, folder in worker.root.folders.items()}
        self._why_unknown = ""

    def report(self, counted: Counters | None) -> UsageReport:
        old, new = _by_component(self._run.old), _by_component(self._run.new)
        usages = {name: self._usage(name, old[name], new[name]) for name in sorted(old.keys() | new.keys())}
        if counted and (counted.hits or counted.misses):
            files = usages.get(_COUNTED, Usage())
            usages[_COUNTED] = Usage(files.restored, counted.hits, counted.misses, files.compiled, counted=True)
        return UsageReport(self._worker.scope.key, self._run.generation, usages, self._why_unknown)

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
        answers = [self._file_was_read(path) for path in paths if self._run.old[path].flags & _LINK]
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
        if status.st_atime_ns > self._run.restored.mark_ns:
            return True
        changed = max(status.st_mtime_ns, status.st_ctime_ns)
        is_noted = status.st_atime_ns <= changed or time.time_ns() - status.st_atime_ns > _DAY
        return False if is_noted else None


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
