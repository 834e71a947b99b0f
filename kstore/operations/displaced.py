"""A moved or copied cache root: what holds its path is written anew, or compilers would go on using the old place.

Triton reads a kernel's files from exactly where its list says they are. If they were moved, it misses them. If they
were copied, it reads them from the original root, for as long as that exists.
"""

from __future__ import annotations

import logging
import os
from contextlib import ExitStack

from kstore.calls import Status
from kstore.local.found import Scan
from kstore.local.index import Known
from kstore.local.relocate import to_local
from kstore.local.stages import find_elsewhere, open_stages
from kstore.worker import Worker

log = logging.getLogger(__name__)


def put_right(worker: Worker, found: Scan) -> None:
    """Make the files that a scan found displaced say where they are. One that cannot be written stays as it is."""
    displaced = [path for path in found.displaced if path in found.known]
    if not displaced:
        return
    components = {path.partition("/")[0] for path in displaced}
    with ExitStack() as stack:
        stage, elsewhere = stack.enter_context(worker.state.staging()), find_elsewhere(worker.root, components)
        stages, _ = open_stages(worker.root, worker.state, components, elsewhere, stage, stack)
        for path in displaced:
            component, _, _ = path.partition("/")
            if component in stages:
                _rewrite(worker, found, path, f"{stages[component]}/displaced")
    worker.state.note_own_changes()
    log.info("%d files of %s, which was moved or copied, now say where they are", len(displaced), worker.root.path)


def _rewrite(worker: Worker, found: Scan, path: str, staged: str) -> None:
    entry, local = found.known[path].entry, worker.root.local_path(path)
    stored = worker.read_stored(path, entry)
    if stored is None:  # it has changed since, and whoever changed it wrote where it is
        return
    try:
        with open(staged, "wb") as file:
            file.write(to_local(stored, worker.root.folders[path.partition("/")[0]]))
            os.fchmod(file.fileno(), entry.mode)
        with worker.waiting.visible():
            if not found.known[path].still_is(Status.of(os.lstat(local))):  # a compiler has just replaced it
                return
            os.replace(staged, local)
        status = os.stat(local)
    except OSError as error:
        log.warning("%s holds the paths of another folder, and cannot be written: %s", local, error.strerror)
        return
    found.known[path] = Known(entry._replace(mtime_ns=status.st_mtime_ns), status.st_size, status.st_ino)
    found.unsettled.add(path)
    found.settled_folders.pop(path.rpartition("/")[0], None)
