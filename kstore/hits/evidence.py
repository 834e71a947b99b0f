"""Reads from the files of a cache root what was used and what is new.

A restore creates or links a file, which sets its status-change time. Linux notes the first read after that in the
file's access time, even if mounted relatime (mount(8)). So a file whose access time is later than the end of the
restore has been read since, and any other has not. If the file had been read within the day before, nobody can tell.
Whether access times are noted at all is checked with a file of kstore's own, which is written when a restore ends and
read here.

A file that a compiler wrote since has a later status-change time and lacks the stamp that every file from a store
bears. The stamp is needed because the time also changes when others make links to a blob, or gc removes them.

A hard link shares its times with the blob: if another worker on this node reads the same blob meanwhile, it counts as
read here too; kstore itself leaves no trace of what it reads. All processes that share a cache root share this
evidence, counted from the last restore among them.
"""

from __future__ import annotations

import os
import stat
import time
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from kstore.blobs.loose import bears_stamp
from kstore.hits.counters import Counters
from kstore.hits.report import DRIVER, Usage, UsageReport
from kstore.inspect.kinds import Kind, kind_of
from kstore.local.lastrestore import Restored
from kstore.published.manifest import Entry, Files, Flag, group_of
from kstore.report import CommitReport, CommitStatus, RestoreReport, RestoreStatus
from kstore.store import Store
from kstore.worker import Worker

_GROUP, _SLOT, _LINK = int(Flag.GROUP), int(Flag.SLOT), int(Flag.LINK)
_BUILT = _LINK | int(Flag.HOST)
"""Files that use alone never changes: one that is written was compiled anew."""
_DAY = 24 * 3600 * 10**9
_COUNTED = "inductor"
"""The component that torch's counters are about."""
_PATIENCE = 10.0
"""Seconds: a report is not worth more of a job's time while somebody else holds the cache root."""
_PERSONAL = ("inductor/dynamo/code_state_", f"{DRIVER}/")
"""What nobody compiles: what one job has learnt about its shapes (`torch._dynamo.pgo`), under its own name, and what
the CUDA driver keeps.
"""
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


@dataclass(frozen=True, slots=True)
class LastRun:
    """What a cache root tells about the time since its last restore."""

    restored: Restored
    old: Files
    """What was restored, as far as this host can use it."""
    new: Files
    """What has come since."""
    unfinished: tuple[str, ...] = ()
    """What has come since and is not finished: groups that are not whole, and files, each given as an artifact path."""

    @property
    def published(self) -> Files:
        """What was to be restored, except for what is bound to a host."""
        return self.restored.snapshot.manifest.files if self.restored.snapshot else {}

    @property
    def generation(self) -> int:
        """The generation that was restored; 0 for none."""
        return self.restored.snapshot.ref.generation if self.restored.snapshot else 0


def last_run(worker: Worker) -> LastRun | None:
    """The run in the worker's cache root that goes on or has just ended; None if nobody has restored into it.

    Raises:
        KstoreError, OSError: the cache root cannot be used.
    """
    with worker.state.locked(_PATIENCE):
        restored = worker.state.last_restore.load()
        if restored is None:
            return None
        state = worker.state.load()
        found = worker.scan_alone(state)
    known = found.known
    files = restored.snapshot.manifest.for_host(state.host) if restored.snapshot else {}
    old = {path: entry for path, entry in files.items() if path in known}
    came = (
        path
        for path, file in known.items()
        if (path not in old or old[path].flags & _BUILT)
        and not _is_copied(file.entry, old.get(path))
        and not path.startswith(_PERSONAL)
        and _was_written_after(worker.root.local_path(path), file.entry, restored.mark_ns)
    )
    left_out = sorted({skip.path for skip in found.skipped if not skip.path.startswith(_PERSONAL)})
    unfinished = tuple(path for path in left_out if _has_come_since(worker, path, files, restored.mark_ns))
    return LastRun(restored, old, {path: known[path].entry for path in sorted(came)}, unfinished)


def _is_copied(entry: Entry, restored: Entry | None) -> bool:
    """Whether a graph is the one that was restored, whoever wrote it since: compilers give it different bytes each
    time, so equal bytes were copied, as by `torch.compiler.load_cache_artifacts`.
    """
    return restored is not None and bool(restored.flags & _SLOT) and entry.digest == restored.digest


def _was_written_after(file: str, stored: Entry | None, mark_ns: int) -> bool:
    """Whether something other than kstore wrote a file since; `stored` is what a store has, or gets, in its place."""
    with suppress(OSError):
        status = os.lstat(file)
        is_ours = status.st_nlink > 1 or (stored is not None and bears_stamp(status.st_mtime_ns, stored.digest))
        return stat.S_ISREG(status.st_mode) and status.st_ctime_ns > mark_ns and not is_ours
    return False


def _has_come_since(worker: Worker, path: str, placed: Files, mark_ns: int) -> bool:
    """Whether any part of something that a scan leaves out, a group or a file, was written since. Files that are
    changed in place do not count: use might have changed them.
    """
    local = worker.root.local_path(path)
    below = [f"{folder}/{name}" for folder, _, names in os.walk(local) for name in names]
    files = {file: placed.get(path + file.removeprefix(local)) for file in (below if os.path.isdir(local) else [local])}
    return any(
        _was_written_after(file, stored, mark_ns)
        for file, stored in files.items()
        if stored is None or stored.flags & _BUILT
    )


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
        silent = [path for path in paths if self._run.old[path].flags & _LINK]
        if not silent:
            return self._cannot_tell(CHANGED_IN_PLACE)
        answers = [self._file_was_read(path) for path in silent]
        if True in answers:
            return True
        return self._cannot_tell(READ_BEFORE) if None in answers else False

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
        if status.st_atime_ns > max(self._run.restored.mark_ns, 0 if is_ours else status.st_mtime_ns):
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
    is_model = entry.flags & _LINK and kind_of(path) is Kind.COMPILED_MODEL
    return bool(entry.flags & (_GROUP | _SLOT) or is_model)


def _is_blind(worker: Worker, restored: Restored, folder: str) -> bool:
    """Whether reads leave no trace in a component's folder."""
    try:
        if os.statvfs(folder).f_flag & os.ST_NOATIME:
            return True
        return not restored.notes_reads and os.stat(folder).st_dev == os.stat(worker.root.path).st_dev
    except OSError:
        return True
