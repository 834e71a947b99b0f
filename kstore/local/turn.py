"""A turn: something that several processes are to do to a cache root, and that one of them does for all of them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import filelock

from kstore.errors import CacheRootError

_PREFIX = "turn-"


class Turn:
    """One turn, with a name that all these processes know."""

    def __init__(self, folder: str, name: str) -> None:
        self._lock = filelock.FileLock(os.path.join(folder, f"{_PREFIX}{name}"))

    @contextmanager
    def taken(self) -> Iterator[bool]:
        """Yield whether this process is the one that does it; if so, it holds the turn for the block.

        Raises:
            CacheRootError: the folder cannot be used.
        """
        is_ours = acquire(self._lock, 0)
        try:
            yield is_ours
        finally:
            if is_ours:
                self._lock.release()

    def wait(self, timeout: float) -> None:
        """Wait for up to `timeout` seconds until whoever has the turn is done, or dead."""
        with suppress(OSError), self._lock.acquire(timeout):
            pass


def acquire(lock: filelock.BaseFileLock, timeout: float, look: float = 0.05) -> bool:
    """Take a lock, and return whether it could be had within `timeout` seconds; `look` are those between two looks.

    Raises:
        CacheRootError: it cannot be locked.
    """
    try:
        lock.acquire(timeout, poll_interval=look)
    except filelock.Timeout:
        return False
    except (OSError, NotImplementedError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise CacheRootError(
            f"{lock.lock_file} cannot be locked: {why}; set KSTORE_CACHE_ROOT to a folder on a local disk"
        ) from error
    return True


def is_left_turn(path: str, age: float) -> bool:
    """Whether it is the file of a turn, and older than `age` seconds, longer than anybody waits."""
    return os.path.basename(path).startswith(_PREFIX) and time.time() - os.stat(path).st_mtime > age
