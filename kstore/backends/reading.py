"""Reads the files of a store in a folder, a part at a time, and closes them."""

from __future__ import annotations

import errno
import os
import stat
import time
from contextlib import suppress
from threading import BoundedSemaphore
from typing import TYPE_CHECKING

from kstore.backends.base import NEAR
from kstore.calls import open_unnoticed
from kstore.files import read_fully
from kstore.threads import begin

if TYPE_CHECKING:
    from kstore.backends.posix import PosixBackend

_CLOSING = BoundedSemaphore(8)
"""Files that are being closed, for which nobody waits."""


class OpenedFile:
    """A file that is being read."""

    def __init__(self, backend: PosixBackend, name: str) -> None:
        """Open it.

        Raises:
            OSError: it cannot be opened, or does not exist.
        """
        self._fd = -1
        self._backend = backend
        self._name = name
        began = time.monotonic()
        self._fd = _open_to_read(backend.path(name))
        self._took = time.monotonic() - began
        try:
            found = os.fstat(self._fd)
            if not stat.S_ISREG(found.st_mode):
                raise FileNotFoundError(errno.ENOENT, "not a regular file", backend.path(name))
        except OSError:
            self.close()
            raise
        self.size = found.st_size

    def read(self, offset: int, length: int) -> bytes:
        """Return `length` bytes (fewer at the end) from `offset`."""
        try:
            return _read_there(self._fd, self._name, offset, min(length, max(self.size - offset, 0)))
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
        return self._backend.get(self._name, offset, length)

    def close(self) -> None:
        """Close its descriptor."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            _close(fd, self._took)

    __del__ = close


def read_part(path: str, offset: int, length: int | None) -> bytes:
    """Return `length` bytes of a file from `offset`, or all that follow."""
    began = time.monotonic()
    fd = _open_to_read(path)
    try:
        left = max(os.fstat(fd).st_size - offset, 0)
        return _read_there(fd, path, offset, left if length is None else min(length, left))
    finally:
        _close(fd, time.monotonic() - began)


def _read_there(fd: int, name: str, offset: int, length: int) -> bytes:
    """Return `length` bytes of an open file from `offset`, where it has as many.

    Raises:
        OSError: it cannot be read, or ended before that. What is published never gets shorter, so that is no damage. It
            is what is said of a stale file: whoever looks up the name again may get all of it.
    """
    data = read_fully(fd, offset, length)
    if len(data) < length:
        raise OSError(errno.ESTALE, f"it ends in its middle, {length - len(data)} bytes early", name)
    return data


def _close(fd: int, took: float) -> None:
    """Close a file that has been read, in a thread that nobody waits for if opening or reading it took long.

    If that took long (`took`, in seconds), closing may too, because FUSE then asks over the network as well. What was
    read stays read, whatever FUSE answers.
    """
    if took > NEAR and _CLOSING.acquire(blocking=False):
        begin(_close_aside, fd)
    else:
        with suppress(OSError):
            os.close(fd)


def _close_aside(fd: int) -> None:
    try:
        with suppress(OSError):
            os.close(fd)
    finally:
        _CLOSING.release()


def _open_to_read(path: str) -> int:
    """Open a file to read it, without waiting for the writer of a pipe that is in its place."""
    return open_unnoticed(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
