"""A cache root from another host: what was built there must not be loaded here, nor published as built here.

A root on a node's disk outlives a change of image or processor, and a volume moves from node to node.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress

from kstore.errors import KstoreError
from kstore.local.found import Scan, after_own_changes
from kstore.local.state import State
from kstore.operations.displaced import put_right
from kstore.worker import Worker

log = logging.getLogger(__name__)


def lock_and_hand_over(worker: Worker) -> None:
    """To be called before a restore redirects compilers to the root: the store may hang, other ranks may never answer.

    Another process that holds the root is waited for only if the root comes from elsewhere.
    """
    with suppress(OSError, KstoreError):
        if _comes_from_elsewhere(worker):
            with worker.state.locked():
                hand_over(worker)
        else:
            worker.mark_machine()


def hand_over(worker: Worker) -> None:
    """Take over the root, which the caller has locked, for a job that goes on with it though nothing is restored."""
    if take_over(worker):
        worker.state.last_restore.save_host_hint(worker.host_hint)


def take_over(worker: Worker) -> bool:
    """Take out of the root what was built on another host, or names another place. Returns whether that succeeded."""
    with suppress(OSError, KstoreError):
        if not _comes_from_elsewhere(worker):
            return True
        state = worker.state.load()
        found = worker.scan_alone(state)
        left = drop_foreign(worker, state, found)
        put_right(worker, found)
        if state.host:
            worker.state.save_host(worker.host.fingerprint, left)
        if not left:
            worker.mark_machine()
        return not left
    return False


def _comes_from_elsewhere(worker: Worker) -> bool:
    """Whether the root, or a component's folder outside it, may have been on another host or in another place. Nothing
    is remembered about a new root.
    """
    hint = worker.state.last_restore.host_hint()
    is_other = (hint or worker.state.host()) and hint != worker.host_hint
    return bool(is_other or worker.state.was_moved() or worker.moved_here())


def drop_foreign(worker: Worker, state: State, found: Scan) -> dict[str, bytes]:
    """Take out what was built on another host, before anybody loads it. Returns what cannot be, with its digests."""
    left = {}
    for path, digest in worker.foreign(state, found, built_here=False).items():
        try:
            with worker.waiting.visible(), suppress(FileNotFoundError):
                os.unlink(worker.root.local_path(path))
        except OSError as error:
            log.warning("%s was built on another host, and cannot be removed: %s", path, error)
            left[path] = digest
            found.settled_folders.pop(path.rpartition("/")[0], None)
        del found.known[path]
        worker.state.own_until = after_own_changes()
    return left
