"""A turn: something that several processes are to do to a cache root, and that one of them does for all."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import filelock

from kstore.errors import CacheRootError

_PREFIX = "turn-"


class Turn:
    """One such thing, with a name that all of them know."""

    def __init__(self, folder: str, name: str) -> None:
        self._lock = filelock.FileLock(os.path.join(folder, f"{_PREFIX}{name}"))

    @contextmanager
    def taken(self) -> Iterator[bool]:
        """Whether it is this process that does it, which holds the turn meanwhile.

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
        """Wait until whoever has it is done, or dead, for up to `timeout` seconds."""
        with suppress(OSError), self._lock.acquire(timeout):
            pass


def acquire(lock: filelock.BaseFileLock, timeout: float) -> bool:
    """Whether it could be had within `timeout` seconds.

    Raises:
        CacheRootError: it cannot be locked.
    """
    try:
        lock.acquire(timeout)
    except filelock.Timeout:
        return False
    except (OSError, NotImplementedError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise CacheRootError(
            f"{lock.lock_file} cannot be locked: {why}; set KSTORE_CACHE_ROOT to a folder on a local disk"
        ) from error
    return True


def is_left_turn(path: str, age: float) -> bool:
    """Whether it is the file of a turn that is older, in seconds, than anybody waits."""
    return os.path.basename(path).startswith(_PREFIX) and time.time() - os.stat(path).st_mtime > age
