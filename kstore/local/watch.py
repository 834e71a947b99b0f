"""Tells when something below a folder changes, with as little work as possible in the compiler's process.

What changed is not kept: the scan finds out. So it does no harm that inotify drops events when too many come at
once, but for the watches of new folders: changes in those would go unseen. Then, and where a limit keeps a folder
from being watched, the watch says that it is blind.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from kstore.components.table import KSTORE_FOLDER

_LOGGERS = ("watchdog.observers.inotify_c", "watchdog.observers.inotify")
_IN_CREATE = 0x100
_LIMITS = {
    errno.ENOSPC: "inotify's limit of watches is reached (fs.inotify.max_user_watches)",
    errno.EMFILE: "inotify's limit of instances is reached (fs.inotify.max_user_instances)",
}


class FolderWatch:
    """Calls `changed` for each change below `folders`, and `blind` with a reason once it can no longer be relied on.

    Both are called in a thread of the watch.
    """

    def __init__(self, folders: Iterable[str], changed: Callable[[], None], blind: Callable[[str], None]) -> None:
        self._folders = _outermost(folders)
        self._changed = changed
        self._blind = blind
        self._observer: Any = None
        self._filter = _LogFilter(blind)

    def start(self) -> None:
        """Watch from now on. Its threads inherit the caller's signal mask and priority."""
        try:
            self._start()
        except Exception as error:  # Also watchdog's own, as where there is no inotify: a job needs no watch.
            number = error.errno if isinstance(error, OSError) else None
            self._blind(_LIMITS.get(number or 0) or f"the cache root cannot be watched: {error}")

    def _start(self) -> None:
        from watchdog import events
        from watchdog.observers import Observer

        # Of a folder that appears while it is added twice: nobody's fault, and no harm.
        warnings.filterwarnings("ignore", "Callback with id .* already exists", RuntimeWarning)
        changed = self._changed

        class Handler(events.FileSystemEventHandler):
            def dispatch(self, event: events.FileSystemEvent) -> None:
                if f"/{KSTORE_FOLDER}" not in os.fsdecode(event.src_path):
                    changed()

        # A file is finished when it is closed, renamed or linked; what happens to it before is not worth a wake-up.
        kinds = [
            events.FileClosedEvent, events.FileCreatedEvent, events.FileMovedEvent,
            events.DirCreatedEvent, events.DirMovedEvent,
        ]  # fmt: skip
        observer = Observer()
        self._observer = observer
        for name in _LOGGERS:
            logging.getLogger(name).addFilter(self._filter)
        for folder in filter(_is_there, self._folders):
            observer.schedule(Handler(), folder, recursive=True, event_filter=kinds)
        observer.start()

    def check(self) -> None:
        """See whether every folder can be watched: where a limit is reached, new ones are passed over in silence."""
        if self._observer is None:
            return
        if not self._observer.is_alive() or not all(emitter.is_alive() for emitter in self._observer.emitters):
            self._blind("the watch has ended")
        elif _limit_is_reached(self._folders[0]):
            self._blind(_LIMITS[errno.ENOSPC])

    def stop(self) -> None:
        """Watch no longer."""
        if self._observer is not None:
            # It joins threads that were never started if `start` failed half-way.
            with suppress(Exception):
                self._observer.stop()
        for name in _LOGGERS:
            logging.getLogger(name).removeFilter(self._filter)


class _LogFilter(logging.Filter):
    """watchdog tells its log alone when events were lost; that an event came while it stopped is no error."""

    def __init__(self, blind: Callable[[str], None]) -> None:
        super().__init__()
        self._blind = blind

    def filter(self, record: logging.LogRecord) -> bool:
        """Take the message for us."""
        message = record.getMessage()
        if "overflow" in message:
            self._blind("inotify lost events (fs.inotify.max_queued_events)")
        return "overflow" not in message and "inactive" not in message


def _is_there(folder: str) -> bool:
    """Make it, as its compiler would, if it is a component elsewhere that has not been used yet."""
    with suppress(OSError):
        os.makedirs(folder, exist_ok=True)
    return os.path.isdir(folder)


def _outermost(folders: Iterable[str]) -> list[str]:
    """Without those that are in others. A link that leads to a folder would be watched itself."""
    found: list[str] = []
    for folder in sorted({os.path.realpath(folder) for folder in folders}):
        if not any(folder.startswith(f"{other}/") for other in found):
            found.append(folder)
    return found


def _limit_is_reached(folder: str) -> bool:
    """Whether one more watch cannot be had. watchdog keeps that to itself for all folders but the topmost."""
    libc = ctypes.CDLL(None, use_errno=True)
    instance = libc.inotify_init1(os.O_CLOEXEC)
    if instance < 0:
        return False
    try:
        watch = libc.inotify_add_watch(instance, os.fsencode(folder), _IN_CREATE)
        return bool(watch < 0 and ctypes.get_errno() == errno.ENOSPC)
    finally:
        os.close(instance)
