"""The lock of a cache root: one restore or commit at a time. It is on local disk, never on the store."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

import filelock

from kstore.components.table import KSTORE_FOLDER
from kstore.deadline import Waiting
from kstore.errors import CacheRootError, WaitTimeout
from kstore.lazy import cached_property
from kstore.local.leftovers import sweep, sweep_elsewhere
from kstore.local.turn import acquire

LOCK_TIMEOUT = 600.0
"""Seconds that a worker waits for another one that restores into or commits from the same root."""
_TRY = 0.05
"""Seconds after which a waiting worker looks whether there is still something to wait for."""


class Changed(Exception):
    """Somebody else has worked on the root in the meantime."""


class LockedFolder:
    """A cache root's `.kstore` folder, in which the lock is."""

    def __init__(self, folder: str, components: Iterable[str], records: Sequence[str], waiting: Waiting) -> None:
        """A restore or commit that does anything replaces one of the files `records`.

        What killed restores have left is swept from `folder`, and from the folders of `components`.
        """
        self._folder = folder
        self._components = tuple(components)
        self._records = records
        self._waiting = waiting

    @cached_property
    def _lock(self) -> filelock.BaseFileLock:
        return filelock.FileLock(os.path.join(self._folder, "lock"))

    @contextmanager
    def locked(self, timeout: float = LOCK_TIMEOUT) -> Iterator[None]:
        """Hold the root.

        Raises:
            WaitTimeout: somebody else held it for `timeout` seconds.
            CacheRootError: the folder cannot be used.
        """
        with self.locked_unless(lambda: False, timeout):
            yield

    @contextmanager
    def locked_unless(
        self, is_done: Callable[[], bool], timeout: float = LOCK_TIMEOUT, ask: Callable[[], object] = lambda: None
    ) -> Iterator[bool]:
        """Hold the root, as `locked` does, unless `is_done` once another process had it. Yields whether it is held.

        `ask` is called once it is known that somebody else has the root.
        """
        is_held = self._acquire(timeout, is_done, ask)
        try:
            is_needed = is_held and not is_done()
            if is_needed:
                sweep(self._folder, LOCK_TIMEOUT)
                for folder in self._components:
                    sweep_elsewhere(os.path.join(folder, KSTORE_FOLDER))
            yield is_needed
        finally:
            if is_held:
                self._lock.release()

    def _acquire(self, timeout: float, is_done: Callable[[], bool], ask: Callable[[], object]) -> bool:
        until = time.monotonic() + timeout
        with self._waiting.held_up(f"waiting for another process that has {self._lock.lock_file}"):
            if self._try_to_acquire(0):
                return True
            ask()
            while not self._try_to_acquire(min(timeout, _TRY)):
                if is_done():
                    return False
                if time.monotonic() >= until:
                    held = f"has held it for {timeout:.0f} s; check whether it hangs" if timeout else "holds it now"
                    raise WaitTimeout(f"{self._lock.lock_file} is locked: another process {held}")
        return True

    def _try_to_acquire(self, timeout: float) -> bool:
        try:
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
        except OSError as error:
            raise CacheRootError(f"the cache root cannot be used: {error}") from error
        return acquire(self._lock, timeout)

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Let others have the root while this worker, which holds it, waits for something.

        Raises:
            Changed: somebody has restored or committed meanwhile; the root is held again.
            WaitTimeout: somebody else held it for too long.
        """
        before = self._version()
        self._lock.release()
        yield
        self._acquire(LOCK_TIMEOUT, lambda: False, lambda: None)
        if self._version() != before:
            raise Changed

    def _version(self) -> list[tuple[int, int]]:
        """Differs after every restore and commit that did anything."""
        found = []
        for path in self._records:
            with suppress(FileNotFoundError):
                status = os.stat(path)
                found.append((status.st_ino, status.st_mtime_ns))
        return found
