"""A cache root from another host, or place, is taken over: what is foreign there is taken out before anybody loads it,
and what names the other place is put right. From then on the root is this host's.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress

from kstore.errors import KstoreError
from kstore.local.found import Scan
from kstore.local.state import State
from kstore.operations.displaced import put_right
from kstore.operations.foreign import comes_from_elsewhere, foreign_at_restore, mark_machine
from kstore.told import warn_once
from kstore.worker import Worker

log = logging.getLogger(__name__)


def lock_and_take_over(worker: Worker) -> None:
    """To be called before a restore redirects compilers to the root: the store may hang, other ranks may never answer.

    Another process that holds the root is waited for only if the root comes from elsewhere.
    """
    with suppress(OSError, KstoreError):
        if comes_from_elsewhere(worker):
            with worker.state.locked():
                take_over_unrestored(worker)
        else:
            mark_machine(worker)
            worker.state.last_restore.note_first_host(worker.host.hint)


def take_over_unrestored(worker: Worker) -> None:
    """Take over the root, which the caller has locked, for a job that goes on with it though nothing is restored."""
    if take_over(worker):
        worker.state.last_restore.save_host_hint(worker.host.hint)


def take_over(worker: Worker) -> bool:
    """Take out of the root what was built on another host, or names another place. Returns whether that succeeded."""
    with suppress(OSError, KstoreError):
        if not comes_from_elsewhere(worker):
            return True
        state = worker.state.load()
        found = worker.scan_alone(state)
        left = drop_foreign(worker, state, found)
        put_right(worker, found)
        if state.host:
            worker.state.save_host(worker.host.fingerprint, left)
        if not left:
            mark_machine(worker)
        return not left
    return False


def drop_foreign(worker: Worker, state: State, found: Scan) -> dict[str, bytes]:
    """Take out what was built on another host, before anybody loads it. Returns what cannot be, with its digests."""
    left, foreign = {}, foreign_at_restore(worker, state, found)
    for path, digest in foreign.items():
        try:
            with worker.waiting.visible(), suppress(FileNotFoundError):
                os.unlink(worker.root.local_path(path))
        except OSError as error:
            warn_once(log, "%s was built on another host, and cannot be removed: %s", path, error)
            left[path] = digest
            found.settled_folders.pop(path.rpartition("/")[0], None)
        worker.state.note_own_changes()
    found.known.drop(foreign)
    return left
