"""Whether somebody is at work on a local file or folder. The kernel forgets it however the process ends."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def held(path: str) -> Iterator[None]:
    """Mark a path as being worked on in the block. If its filesystem has no locks, others take it for a leftover."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)  # Only `is_held` takes it, and only for a moment.
        yield
    finally:
        _let_go(descriptor)


def is_held(path: str) -> bool:
    """Whether somebody is at work on it."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return isinstance(error, BlockingIOError)
    finally:
        _let_go(descriptor)
    return False


def _let_go(descriptor: int) -> None:
    """Unlock it and close it: a child forked meanwhile has a copy, and would hold the lock for as long as it lives."""
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)
