"""Sees what changes in the cache root of a job: by a watch until something does, then by the times of folders."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import NamedTuple

from kstore.deadline import is_apart
from kstore.live.places import Places
from kstore.live.schedule import SHARE
from kstore.local.activity import Activity
from kstore.local.watch import Blind, FolderWatch
from kstore.store import Store

log = logging.getLogger(__name__)

_BEAT = 2.5
"""Seconds at most between two looks at a tree in which something changes."""


class Seen(NamedTuple):
    """What has changed in the cache root."""

    changes: int
    last: float
    """When the last one was seen, by `time.monotonic`."""


class Lookout:
    """Looks at the folders of one key. Only one thread calls it."""

    def __init__(self, store: Store, key: str, *, settle: float, every: float, wake: Callable[[], None]) -> None:
        """`settle` and `every` are in seconds: see `Schedule`. `wake` is called, in another thread, when something
        changes while the watch is on.
        """
        self._store = store
        self._key = key
        self._settle = settle
        self._every = every
        self._call = wake
        self._places = Places()
        self._found_at = 0.0
        """When it was last found out where to look, by `time.monotonic`."""
        self._activity = Activity(())
        self._watch: FolderWatch | None = None
        self._is_woken = False
        self.seen = Seen(0, 0.0)
        """All that has changed so far."""
        self.beat = settle
        """Seconds until it should look again, while something changes."""
        self.is_blind = False
        """Whether nothing can be watched here."""

    @property
    def folders(self) -> list[str]:
        """Where it looks; empty until that is found out."""
        return self._places.folders

    @property
    def is_watching(self) -> bool:
        """Whether the watch is on."""
        return self._watch is not None

    def find_folders(self) -> None:
        """Find out where to look.

        Raises:
            KstoreError: the cache root cannot be used.
        """
        self._found_at = time.monotonic()
        if self._places.find(self._store, self._key):
            self.stop_watch()
            self._activity = Activity(self._places.folders)

    def catch_up(self) -> None:
        """Look whether something has changed, unless the watch would have said so.

        Raises:
            KstoreError: the cache root cannot be used.
        """
        if not self._places.folders or time.monotonic() - self._found_at >= self._every:
            self.find_folders()
        if self._is_woken:
            self.stop_watch()
            self._note(1)
        if self._watch is None:
            self.look()

    def look(self) -> None:
        """Look at the times of all folders."""
        spent = time.thread_time()
        self._note(self._activity.look())
        # Twice in the time that it takes to settle, unless that is too much work.
        self.beat = max(min(self._settle / 2, _BEAT), (time.thread_time() - spent) / SHARE)

    def _note(self, changes: int) -> None:
        if changes:
            self.seen = Seen(self.seen.changes + changes, time.monotonic())

    def start_watch(self) -> None:
        """Turn the watch on, if there can be one; else this is blind."""
        self._is_woken = False
        self._watch = FolderWatch(self._places.folders, self._wake)
        try:
            if not is_apart():
                raise Blind("gevent or eventlet has patched this process, so nothing can be watched")
            self._watch.start()
        except Blind as reason:
            self.stop_watch()
            self.is_blind = True
            log.warning("%s; the cache root is looked through every %g s instead", reason, self._every)

    def stop_watch(self) -> None:
        """Turn it off, if it is on."""
        watch, self._watch, self._is_woken = self._watch, None, False
        if watch:
            watch.stop()

    def _wake(self) -> None:
        """Called by the watch, in its thread, for each change; the first one is enough."""
        if not self._is_woken:
            self._is_woken = True
            self._call()
