"""Opens files to read them unnoticed, and writes many small ones: all are opened, then all written, then all closed.

The loops hold nothing but a system call each, so that threads spend their time in the filesystem side by side
and not waiting for each other's turn in the interpreter.
"""

from __future__ import annotations

import errno
import os
import resource
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

NO_FILE = {errno.ENOENT, errno.EISDIR, errno.ELOOP, errno.ENOTDIR, errno.ENXIO, errno.ESPIPE, errno.EINVAL}
"""What reading says of a name that is free, or taken by a folder, a pipe, a socket or a link to itself. Other trouble
may pass."""
_NOT_UNNOTICED = {errno.EPERM, errno.EACCES, errno.EINVAL}
"""It is another user's file, or a filesystem (some FUSE daemon's, or an old server's) that does not know of it."""
_NO_DESCRIPTOR = {errno.EMFILE, errno.ENFILE}
_SECOND = 1_000_000_000
_NOATIME = getattr(os, "O_NOATIME", 0)
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


def open_unnoticed(path: str, flags: int) -> int:
    """Open a file to read it, without a trace in its access time where that is allowed: it is its owner's to do so.

    What access times tell is which files a compiler has read, and a hard link has those of the store's blob.
    """
    try:
        return os.open(path, flags | _NOATIME)
    except OSError as error:
        if error.errno not in _NOT_UNNOTICED:
            raise
        return os.open(path, flags)


class NewFile(NamedTuple):
    """A file to be made."""

    path: str
    data: bytes | memoryview
    mode: int
    """Permission bits."""
    mtime_ns: int | None
    """Modification time, in nanoseconds since 1970; None for now."""


def write_files(files: Sequence[NewFile]) -> None:
    """Make all of `files`, none of which exists. No more than a few hundred at once: all are open together.

    Raises:
        OSError: one cannot be made (ENOSPC, EROFS, EDQUOT …).
    """
    while files:
        files = files[_write_some(files) :]


class _Turns:
    """Threads write side by side; but one that got no descriptor tries again alone, when no other has any."""

    def __init__(self) -> None:
        self.begin_anew()

    def begin_anew(self) -> None:
        """For a forked child: it has none of its parent's other threads, and would wait for them for ever."""
        self._changed = threading.Condition()
        self._writers = 0
        self._is_alone = False

    @contextmanager
    def take(self, *, alone: bool) -> Iterator[None]:
        """Wait for a turn, and have it in the block."""
        with self._changed:
            self._changed.wait_for(lambda: not (self._writers if alone else self._is_alone))
            self._writers += 1
            self._is_alone = alone
        try:
            yield
        finally:
            with self._changed:
                self._writers -= 1
                self._is_alone = False
                self._changed.notify_all()


_turns = _Turns()
os.register_at_fork(after_in_child=_turns.begin_anew)


def _write_some(files: Sequence[NewFile]) -> int:
    """The first ones: how many were made."""
    try:
        with _turns.take(alone=False):
            return _write_first(files)
    except OSError as error:
        if error.errno not in _NO_DESCRIPTOR:
            raise
    with _turns.take(alone=True):
        return _write_first(files)


def _write_first(files: Sequence[NewFile]) -> int:
    """As many as the process may have open: how many were made."""
    descriptors: list[int] = []
    try:
        _open_first(files, descriptors)
        files = files[: len(descriptors)]
        written = [os.write(fd, file.data) for fd, file in zip(descriptors, files, strict=True)]
        for fd, file, done in zip(descriptors, files, written, strict=True):
            if done < len(file.data):
                _write_rest(fd, memoryview(file.data)[done:])
        for fd, file in zip(descriptors, files, strict=True):
            if file.mtime_ns is not None:
                os.utime(fd, ns=times(file.mtime_ns))
    finally:
        _close_all(descriptors)
    return len(files)


def _open_first(files: Sequence[NewFile], descriptors: list[int]) -> None:
    for file in files:
        try:
            descriptors.append(os.open(file.path, _CREATE, file.mode))
        except OSError as error:
            if error.errno not in _NO_DESCRIPTOR:
                raise
            if not descriptors:
                raise _with_limit(error) from error
            return


def _with_limit(error: OSError) -> OSError:
    """The same, and what to do: of a whole system that has too many files open the error's own text says so."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    what = f", of which this process may have {limit}: raise that limit (`ulimit -n`)"
    return OSError(error.errno, f"{error.strerror}{what if error.errno == errno.EMFILE else ''}", error.filename)


def times(mtime_ns: int) -> tuple[int, int]:
    """Access and modification time. A stamp may lie ahead of now: as an access time it would tell of a read."""
    return mtime_ns // _SECOND * _SECOND, mtime_ns


def _write_rest(fd: int, rest: memoryview) -> None:
    while rest:
        rest = rest[os.write(fd, rest) :]


def _close_all(descriptors: list[int]) -> None:
    """A close may be what fails (ENOSPC on NFS): the others are closed all the same."""
    while descriptors:
        try:
            os.close(descriptors.pop())
        except OSError:
            _close_all(descriptors)
            raise
