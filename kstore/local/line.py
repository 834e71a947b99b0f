"""A line of those processes of this host and user that publish to the same place: each lets the one before it go first.

If all of them try at once, nearly every attempt is in vain, and takes the host's and the store's time from the one that
is not. Nothing relies on the line: whoever cannot stand in it, or has waited too long, just tries.
"""

from __future__ import annotations

import os
from contextlib import suppress

import filelock

from kstore.digest import digest_of
from kstore.errors import CacheRootError
from kstore.local.numbered import make_private, numbered_bases
from kstore.local.turn import acquire

_LOOK = 0.02
"""Seconds between two looks whether it is our turn: an attempt takes longer, and most often several wait."""


class Line:
    """One worker's place in the line for something that has a name, which all of them know."""

    def __init__(self, name: str) -> None:
        self._name = digest_of(os.fsencode(name)).hex()[:32]
        self._lock: filelock.BaseFileLock | None = None

    def wait(self, seconds: float) -> bool:
        """Wait until it is this worker's turn, but no longer than that; returns whether it is. It stays so."""
        with suppress(OSError, CacheRootError):
            if self._lock is None:
                folder = make_private(numbered_bases()[1])
                self._lock = filelock.FileLock(os.path.join(folder, f"line-{self._name}"))
            return self._lock.is_locked or acquire(self._lock, seconds, _LOOK)
        return False

    def leave(self) -> None:
        """Let the next one go."""
        if self._lock and self._lock.is_locked:
            self._lock.release()
