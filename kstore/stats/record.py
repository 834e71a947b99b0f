"""Counts a restore in the store, once the caller has its answer.

This happens in its own thread, which only the end of the process waits for, and not for long: a store that hangs, or
may not be written, must not trouble the job.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
from typing import TYPE_CHECKING

from kstore.deadline import block_signals, start
from kstore.report import RestoreReport
from kstore.scope import Scope
from kstore.settings import Mode
from kstore.stats.pages import add
from kstore.stats.totals import COUNTED, Sample

if TYPE_CHECKING:
    from kstore.storage import Storage
    from kstore.store import Store

log = logging.getLogger(__name__)

PATIENCE = 1.0
"""Seconds that the end of a process waits."""
_running: set[threading.Thread] = set()


def record(store: Store, report: RestoreReport) -> None:
    """Count a restore, in a thread, unless the settings say that nothing is to be written."""
    try:
        _record(store, report)
    except Exception as error:  # While the interpreter ends, no thread can be started.
        log.debug("a restore of %s is not counted", report.key, exc_info=error)


def _record(store: Store, report: RestoreReport) -> None:
    settings = store.settings
    # If another rank was in trouble, nothing was missing.
    if settings.mode is Mode.READ or not settings.stats or report.status not in COUNTED or report.error:
        return
    thread = threading.Thread(target=_work, args=(store.storage, report), name="kstore-stats", daemon=True)
    start(thread)
    # Other threads that restore might add to it meanwhile.
    _running.difference_update([other for other in list(_running) if not other.is_alive()])
    if not _running:
        atexit.unregister(finish)
        atexit.register(finish)
    _running.add(thread)


def finish(seconds: float = PATIENCE) -> None:
    """Wait until everything is counted, but not for long."""
    until = time.monotonic() + seconds
    while _running:
        _running.pop().join(max(0.0, until - time.monotonic()))


def _work(storage: Storage, report: RestoreReport) -> None:
    block_signals()
    try:
        if storage.is_there():  # A missing store is not made only to count a miss.
            add(storage.backend, Scope(report.gpu, report.key, report.environment), Sample.of(report))
    except Exception as error:
        log.debug("a restore of %s is not counted", report.key, exc_info=error)
