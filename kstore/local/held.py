"""Whether somebody is at work on a local file or folder. The kernel forgets it when the process ends in any way."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def held(path: str) -> Iterator[None]:
    """Mark it as being worked on in the block. Where a filesystem has no locks, others take it for left over."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)  # Only `is_held` has it, and for a moment.
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
    """A child that was forked meanwhile has a copy of it, which holds the lock for as long as the child lives."""
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)
