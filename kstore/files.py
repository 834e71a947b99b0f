"""Reads whole files, and writes many small ones, however few may be open at once."""

from __future__ import annotations

import errno
import os
import resource
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from kstore import calls
from kstore.calls import NO_FILE, NewFile, open_unnoticed, write_first

__all__ = [
    "CORRUPT", "NO_FILE", "READ", "NewFile", "publish_files", "read_all", "read_fully", "read_whole", "write_files",
    "write_rows",
]  # fmt: skip

CORRUPT = {errno.EBADMSG, errno.EUCLEAN}
"""What ext4 and XFS say of a file whose own record is damaged (EFSBADCRC, EFSCORRUPTED), until it is repaired."""
READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
"""Nobody waits for the writer of a pipe."""


def read_whole(path: str) -> bytes:
    """Read a whole file whose bytes are checked afterwards.

    Raises:
        OSError: it cannot be read, or is a link.
    """
    fd = open_unnoticed(path, READ)
    try:
        return read_all(fd, os.fstat(fd).st_size)
    finally:
        os.close(fd)


def read_all(fd: int, size: int) -> bytes:
    """Read an open file, which has some `size` bytes, to its end."""
    data = os.read(fd, size + 1)
    if len(data) >= size or not data:
        return data
    parts = [data]
    while part := os.read(fd, 1 << 24):
        parts.append(part)
    return b"".join(parts)


def read_fully(fd: int, offset: int, length: int) -> bytes:
    """Return `length` bytes (fewer at the end) of an open file from `offset`, in as many calls as that takes."""
    data = os.pread(fd, length, offset)
    if len(data) == length or not data:
        return data
    parts = [data]
    done = len(data)
    while done < length and (data := os.pread(fd, length - done, offset + done)):
        parts.append(data)
        done += len(data)
    return b"".join(parts)


def write_files(files: Sequence[NewFile]) -> None:
    """Make all of `files`, none of which exists. No more than a few hundred at once: all may be open together.

    Raises:
        OSError: one cannot be made (ENOSPC, EROFS, EDQUOT …).
    """
    while files:
        files = files[_write_some(files) :]


def write_rows(
    paths: Sequence[str], records: bytes, contents: Sequence[bytes | memoryview], stage: str, *, second_ns: int
) -> int:
    """As `calls.write_rows`: returns how many were made. `write_files` makes the next one, or raises its error."""
    with _turns.take(alone=False):
        return calls.write_rows(paths, records, contents, stage, second_ns=second_ns)[0]


def publish_files(folder: str, files: Sequence[NewFile]) -> tuple[Sequence[int], int]:
    """As `calls.publish_first`. `write_files` makes the next one, or raises its error."""
    with _turns.take(alone=False):
        return calls.publish_first(folder, files)


class _Turns:
    """Threads write side by side, but one that got no descriptor tries again alone, when no other thread has any."""

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
    """Write the first ones; returns how many were made."""
    with _turns.take(alone=False):
        done, error = write_first(files)
    if done or not error:
        return done
    with _turns.take(alone=True):
        done, error = write_first(files)
    if not done:
        raise _no_descriptor(error, files[0].path)
    return done


def _no_descriptor(code: int, path: str) -> OSError:
    """The error, with advice if this process has too many files open. If the system has (ENFILE), its text says so."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    what = f", of which this process may have {limit}: raise that limit (`ulimit -n`)"
    return OSError(code, f"{os.strerror(code)}{what if code == errno.EMFILE else ''}", path)
