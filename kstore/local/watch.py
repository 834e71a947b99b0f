"""Tells when something below a folder changes, so that nothing needs to run until then.

Being told about each event would cost a compiler in the same process several percent. So a watch is for the time in
which nothing changes: it calls once, and is then stopped. `Activity` follows what comes after.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from typing import Any

from kstore.components.table import KSTORE_FOLDER
from kstore.errors import reason_of
from kstore.told import warn_once

log = logging.getLogger(__name__)

_LOGGERS = ("watchdog.observers.inotify_c", "watchdog.observers.inotify")
_IN_CREATE = 0x100
_NAMELESS = "#"
_OVERFLOW = "inotify lost events (fs.inotify.max_queued_events): the cache root is looked through"
_LIMITS = {
    errno.ENOSPC: "inotify's limit of watches is reached (fs.inotify.max_user_watches)",
    errno.EMFILE: "inotify's limit of instances is reached (fs.inotify.max_user_instances)",
}


class Blind(Exception):
    """Changes cannot be seen, for the reason given."""


class FolderWatch:
    """Calls `changed` when something changes below `folders`, at least once, in a thread of its own."""

    def __init__(self, folders: Iterable[str], changed: Callable[[], None]) -> None:
        self._folders = outermost(folders)
        self._changed = changed
        self._observer: Any = None
        self._filter = _LogFilter(changed)

    def start(self) -> None:
        """Watch from now on. Its threads inherit the caller's signal mask and priority.

        Raises:
            Blind: not every folder can be watched.
        """
        try:
            self._start()
        except Exception as error:  # Also watchdog's own, such as where there is no inotify.
            log.debug("the cache root cannot be watched", exc_info=error)
            number = error.errno if isinstance(error, OSError) else None
            why = _LIMITS.get(number or 0) or f"the cache root cannot be watched: {reason_of(error)}"
            raise Blind(why) from error
        if self._folders and _limit_is_reached(self._folders[0]):
            raise Blind(_LIMITS[errno.ENOSPC])

    def _start(self) -> None:
        from watchdog import events
        from watchdog.observers import Observer

        _ignore_warnings()
        changed = self._changed

        class Handler(events.FileSystemEventHandler):
            def __init__(self, folder: str) -> None:
                self._above = len(folder)

            def dispatch(self, event: events.FileSystemEvent) -> None:
                path = os.fsdecode(event.src_path)
                is_nameless = event.event_type == events.EVENT_TYPE_CLOSED and _is_nameless(path)
                if KSTORE_FOLDER not in path[self._above :].split("/") and not is_nameless:
                    changed()

        # A file is finished when it is closed, renamed or linked; what happens before that is not worth a wake-up. A
        # folder that is removed takes its watch along, and may be made anew.
        kinds = [
            events.FileClosedEvent, events.FileCreatedEvent, events.FileMovedEvent, events.FileDeletedEvent,
            events.DirCreatedEvent, events.DirMovedEvent, events.DirDeletedEvent,
        ]  # fmt: skip
        for name in _LOGGERS:
            logging.getLogger(name).addFilter(self._filter)
        self._observer = Observer()
        for folder in filter(_is_there, self._folders):
            self._observer.schedule(Handler(folder), folder, recursive=True, event_filter=kinds)
        self._observer.start()

    def stop(self) -> None:
        """Stop watching."""
        if self._observer is not None:
            # It joins threads that were never started if `start` failed half-way.
            with suppress(Exception):
                self._observer.stop()
        for name in _LOGGERS:
            logging.getLogger(name).removeFilter(self._filter)


class _LogFilter(logging.Filter):
    """watchdog reports lost events in its log only. That an event came while it was stopping is no error."""

    def __init__(self, changed: Callable[[], None]) -> None:
        super().__init__()
        self._changed = changed

    def filter(self, record: logging.LogRecord) -> bool:
        """Act on a message about lost events; keep it, and the harmless one, out of the log."""
        message = record.getMessage()
        if "overflow" in message:
            warn_once(log, _OVERFLOW)  # All that events are for is to say that something has changed.
            self._changed()
        return "overflow" not in message and "inactive" not in message


@cache
def _ignore_warnings() -> None:
    """Silence the warning about a folder that appears while it is added twice: nobody's fault, and harmless.

    Once per process: whenever a filter is added, Python repeats all warnings that it shows only once.
    """
    warnings.filterwarnings("ignore", "Callback with id .* already exists", RuntimeWarning)


def outermost(folders: Iterable[str]) -> list[str]:
    """The folders that are in no others, links resolved: of a link to a folder, the link itself would be watched."""
    found: list[str] = []
    for folder in sorted({os.path.realpath(folder) for folder in folders}):
        if not any(folder.startswith(f"{other}/") for other in found):
            found.append(folder)
    return found


def _is_nameless(path: str) -> bool:
    """Whether a file that was closed never had a name: inotify calls it by its inode. Scans open such files."""
    return os.path.basename(path).startswith(_NAMELESS) and not os.path.lexists(path)


def _is_there(folder: str) -> bool:
    """Whether a folder exists. A component elsewhere that has not been used yet is made, as its compiler would."""
    with suppress(OSError):
        os.makedirs(folder, exist_ok=True)
    return os.path.isdir(folder)


def _limit_is_reached(folder: str) -> bool:
    """Whether one more watch cannot be had. watchdog reports that for the topmost folder only."""
    libc = ctypes.CDLL(None, use_errno=True)
    instance = libc.inotify_init1(os.O_CLOEXEC)
    if instance < 0:
        return False
    try:
        watch = libc.inotify_add_watch(instance, os.fsencode(folder), _IN_CREATE)
        return bool(watch < 0 and ctypes.get_errno() == errno.ENOSPC)
    finally:
        os.close(instance)
