"""What has come into a cache root since its last restore.

A file that a compiler wrote since has a later status-change time than the end of the restore, and lacks the stamp that
every file from a store bears. The stamp is needed because the time also changes when others make links to a blob, or gc
removes them.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from itertools import compress

from kstore.blobs.loose import bears_stamp
from kstore.calls import stat_each
from kstore.hits.report import DRIVER
from kstore.local.lastrestore import Restored
from kstore.published.manifest import HOST, LINK, SLOT, Entry, Files
from kstore.worker import Worker

_BUILT = LINK | HOST
"""Files that use alone never changes: one that is written was compiled anew."""
_PATIENCE = 10.0
"""Seconds: a report is not worth more of a job's time while somebody else holds the cache root."""
_PERSONAL = ("inductor/dynamo/code_state_", f"{DRIVER}/")
"""What nobody compiles: what one job has learnt about its shapes (`torch._dynamo.pgo`), under its own name, and what
the CUDA driver keeps.
"""


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

    def seed_of(self, key: str) -> str:
        """The other key that the generation was one of; empty if it was one of `key`."""
        restored = self.restored.snapshot.ref.scope.key if self.restored.snapshot else key
        return "" if restored == key else restored


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
        if state.base and state.base.snapshot == restored.snapshot:
            restored = restored._replace(snapshot=state.base.snapshot)  # Then it is parsed once.
        found = worker.scan_alone(state)
    known = found.known
    files = restored.snapshot.manifest.for_host(state.host) if restored.snapshot else {}
    old = {path: entry for path, entry in files.items() if path in known}
    came = {
        path: file.entry
        for path, file in known.items()
        if (path not in old or old[path].flags & _BUILT)
        and not _is_copied(file.entry, old.get(path))
        and not path.startswith(_PERSONAL)
    }
    new = _written_after(worker, came, restored.ended_ns)
    left_out = sorted({skip.path for skip in found.skipped if not skip.path.startswith(_PERSONAL)})
    unfinished = tuple(path for path in left_out if _has_come_since(worker, path, files, restored.ended_ns))
    return LastRun(restored, old, new, unfinished)


def _is_copied(entry: Entry, restored: Entry | None) -> bool:
    """Whether a graph is the one that was restored, whoever wrote it since: compilers give it different bytes each
    time, so equal bytes were copied, as by `torch.compiler.load_cache_artifacts`.
    """
    return restored is not None and bool(restored.flags & SLOT) and entry.digest == restored.digest


def _written_after(worker: Worker, files: Files, ended_ns: int) -> Files:
    """Those of a root's files that something other than kstore wrote since. The folder of one that a compiler wrote in
    place says nothing of it, so every file is asked.
    """
    places = [worker.root.local_path(path) for path in files]
    changed = [status.ctime_ns > ended_ns for status in stat_each(places)]
    suspects = compress(zip(files.items(), places, strict=True), changed)
    written = {path: entry for (path, entry), place in suspects if _was_written_after(place, entry, ended_ns)}
    return dict(sorted(written.items()))


def _was_written_after(file: str, stored: Entry | None, ended_ns: int) -> bool:
    """Whether something other than kstore wrote a file since; `stored` is what a store has, or gets, in its place."""
    with suppress(OSError):
        status = os.lstat(file)
        is_ours = status.st_nlink > 1 or (stored is not None and bears_stamp(status.st_mtime_ns, stored.digest))
        return stat.S_ISREG(status.st_mode) and status.st_ctime_ns > ended_ns and not is_ours
    return False


def _has_come_since(worker: Worker, path: str, placed: Files, ended_ns: int) -> bool:
    """Whether any part of something that a scan leaves out, a group or a file, was written since. Files that are
    changed in place do not count: use might have changed them.
    """
    local = worker.root.local_path(path)
    below = [f"{folder}/{name}" for folder, _, names in os.walk(local) for name in names]
    files = {file: placed.get(path + file.removeprefix(local)) for file in (below if os.path.isdir(local) else [local])}
    return any(
        _was_written_after(file, stored, ended_ns)
        for file, stored in files.items()
        if stored is None or stored.flags & _BUILT
    )
