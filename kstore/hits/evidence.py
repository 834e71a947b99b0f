"""What was used of what was restored, as the files of a cache root tell.

A restore creates or links a file, which sets its status-change time. Linux notes the first read after that in the
file's access time, even if mounted relatime (mount(8)). So a file whose access time is later than the end of the
restore has been read since, and any other has not. If the file had been read within the day before, nobody can tell.
Whether access times are noted at all is checked with a file of kstore's own, which is written when a restore ends and
read here.

A hard link shares its times with the blob: if another worker on this node reads the same blob meanwhile, it counts as
read here too; kstore itself leaves no trace of what it reads. All processes that share a cache root share this
evidence, counted from the last restore among them.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterable

from kstore.blobs.loose import bears_stamp
from kstore.hits.counters import Counters
from kstore.hits.lastrun import LastRun, last_run
from kstore.hits.report import Usage, UsageReport
from kstore.inspect.kinds import Kind, kind_of
from kstore.local.lastrestore import Restored
from kstore.published.manifest import GROUP, LINK, SLOT, Entry, Files, group_of
from kstore.report import CommitReport, CommitStatus, RestoreReport, RestoreStatus
from kstore.store import Store
from kstore.worker import Worker

_DAY = 24 * 3600 * 10**9
_COUNTED = "inductor"
"""The component that torch's counters are about."""
NOTHING_RESTORED = "nothing was restored into this cache root"
NO_ACCESS_TIMES = "the filesystem of the cache root notes no access times"
READ_BEFORE = "some of what was restored had been read before"
CHANGED_IN_PLACE = "kstore itself reads files that are changed in place"


def usage_of(store: Store, key: str, counted: Counters | None = None) -> UsageReport:
    """What became of what was last restored for `key` on this node. `counted` is what torch has counted in this process
    since then.

    Raises:
        KstoreError, OSError: the cache root cannot be used.
    """
    worker = store.worker(key, before_import=False)
    run = last_run(worker)
    if run is None:
        return UsageReport(key, why_unknown=NOTHING_RESTORED)
    return usage_in(worker, run, counted)


def usage_in(worker: Worker, run: LastRun, counted: Counters | None = None) -> UsageReport:
    """The same, for a run that was already found."""
    return _Evidence(worker, run).report(counted)


def unknowable(restored: RestoreReport, committed: CommitReport) -> str:
    """Why the cache root is not worth a look, or is unavailable; empty if it can tell what became of a restore."""
    if restored.status in (RestoreStatus.FAILED, RestoreStatus.TIMEOUT):
        return "the restore failed"  # The root remembers an earlier one.
    if committed.status is CommitStatus.TIMEOUT:
        return "the commit hangs"  # And it holds the root.
    return ""


class _Evidence:
    """What the files of one cache root tell about one run."""

    def __init__(self, worker: Worker, run: LastRun) -> None:
        self._worker = worker
        self._run = run
        self._blind = {name for name, folder in worker.root.folders.items() if _is_blind(worker, run.restored, folder)}
        self._why_unknown = ""

    def report(self, counted: Counters | None) -> UsageReport:
        old, new = _by_component(self._run.old), _by_component(self._run.new)
        unfinished = {path.partition("/")[0] for path in self._run.unfinished}
        usages = {name: self._usage(name, old[name], new[name]) for name in sorted({*old, *new, *unfinished})}
        if counted and (counted.hits or counted.misses):
            files = usages.get(_COUNTED, Usage())
            # Other processes of the job compile too, and only the files show that.
            misses = max(counted.misses, files.misses)
            hits = files.hits if counted.bypassed and not counted.hits else counted.hits
            usages[_COUNTED] = Usage(files.restored, hits, misses, files.compiled, counted=True)
        return UsageReport(self._worker.scope.key, self._run.generation, usages, self._why_unknown)

    def _usage(self, component: str, old: Files, new: Files) -> Usage:
        has_entries = any(_is_of_entry(path, entry) for files in (old, new) for path, entry in files.items())
        restored, anew = _entries(old, has_entries), _entries(new, has_entries)
        seen = [name not in anew and self._was_read(component, paths) for name, paths in restored.items()]
        unfinished = [path for path in self._run.unfinished if path.partition("/")[0] == component]
        misses = len(anew) + sum(os.path.isdir(self._worker.root.local_path(path)) for path in unfinished)
        hits = None if None in seen else sum(map(bool, seen))
        return Usage(len(restored), hits, misses, len(new) + len(unfinished))

    def _was_read(self, component: str, paths: Iterable[str]) -> bool | None:
        """Whether any of an entry's files has been read since the restore; None if nobody can tell."""
        if component in self._blind:
            return self._cannot_tell(NO_ACCESS_TIMES)
        # A scan recognizes by their times the files that are never changed in place, and reads the others.
        silent = [path for path in paths if self._run.old[path].flags & LINK]
        if not silent:
            return self._cannot_tell(CHANGED_IN_PLACE)
        is_unknown = False
        for path in silent:
            was_read = self._file_was_read(path)
            if was_read:
                return True
            is_unknown |= was_read is None
        return self._cannot_tell(READ_BEFORE) if is_unknown else False

    def _cannot_tell(self, why: str) -> bool | None:
        """None, because nobody can tell; the first reason is reported."""
        self._why_unknown = self._why_unknown or why
        return None

    def _file_was_read(self, path: str) -> bool | None:
        try:
            status = os.lstat(self._worker.root.local_path(path))
        except OSError:
            return False
        is_ours = bears_stamp(status.st_mtime_ns, self._run.old[path].digest)
        if status.st_atime_ns > max(self._run.restored.ended_ns, 0 if is_ours else status.st_mtime_ns):
            return True
        changed = max(status.st_mtime_ns, status.st_ctime_ns)
        is_noted = status.st_atime_ns <= changed or time.time_ns() - status.st_atime_ns > _DAY
        return False if is_noted else None


def _by_component(files: Files) -> dict[str, dict[str, Entry]]:
    found: dict[str, dict[str, Entry]] = defaultdict(dict)
    for path, entry in files.items():
        found[path.partition("/")[0]][path] = entry
    return found


def _entries(files: Files, has_entries: bool) -> dict[str, list[str]]:
    """What compilers look up at once: each kernel's folder, each graph; if there are none, each file."""
    found: dict[str, list[str]] = defaultdict(list)
    for path, entry in files.items():
        if not has_entries or _is_of_entry(path, entry):
            found[group_of(path, entry)].append(path)
    return found


def _is_of_entry(path: str, entry: Entry) -> bool:
    """Whether a file is part of an entry. A serving engine has models beside the graphs that they were made from, and
    then asks only for the models.
    """
    if entry.flags & (GROUP | SLOT):
        return True
    return bool(entry.flags & LINK) and kind_of(path) is Kind.COMPILED_MODEL


def _is_blind(worker: Worker, restored: Restored, folder: str) -> bool:
    """Whether reads leave no trace in a component's folder."""
    try:
        if os.statvfs(folder).f_flag & os.ST_NOATIME:
            return True
        return not restored.notes_reads and os.stat(folder).st_dev == os.stat(worker.root.path).st_dev
    except OSError:
        return True
