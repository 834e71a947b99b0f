"""System calls for many files at once, with Python's own functions.

Threads that take a step of the interpreter between two calls wait for each other's turn after every one, so the loops
hold nothing but a call each. Numbers are returned as the bytes of a C array, an error number being 0 for success.
"""

from __future__ import annotations

import errno
import os
import struct
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from operator import length_hint
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from kstore.calls import NewFile

Answer = TypeVar("Answer")

_STATUS = struct.Struct("=5q")
_SECOND = 1_000_000_000
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_NO_DESCRIPTOR = {errno.EMFILE, errno.ENFILE}


def link_first(sources: Sequence[str], targets: Sequence[str]) -> tuple[int, int]:
    """Hard links, until one cannot be made: how many, and the error number."""
    left = iter(sources)
    try:
        deque(map(os.link, left, targets), maxlen=0)
    except OSError as error:
        return len(sources) - length_hint(left) - 1, error.errno or errno.EIO
    return len(sources), 0


def mkdir_each(paths: Sequence[str]) -> bytes:
    """Folders; an int of C for each."""
    return _errors(call_each(os.mkdir, paths))


def utime_each(paths: Sequence[str], atime_ns: int, mtime_ns: int) -> bytes:
    """Access and modification times; an int of C for each."""
    return _errors(call_each(partial(os.utime, ns=(atime_ns, mtime_ns)), paths))


def stat_each(paths: Sequence[str], folder: int, follows: bool) -> bytes:
    """Five 64-bit numbers for each: error, mode, size, time of modification and of status change, in nanoseconds."""
    look = partial(os.stat, dir_fd=folder if folder >= 0 else None, follow_symlinks=follows)
    return b"".join(map(_pack, call_each(look, paths)))


def write_first(files: Sequence[NewFile]) -> tuple[int, int]:
    """New files, until there is no descriptor: how many, and the error number. All are open together."""
    descriptors: list[int] = []
    try:
        error = _open_first(files, descriptors)
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
    return len(files), error


def times(mtime_ns: int) -> tuple[int, int]:
    """Access and modification time. A stamp may lie ahead of now: as an access time it would tell of a read."""
    return mtime_ns // _SECOND * _SECOND, mtime_ns


def call_each(function: Callable[..., Answer], *columns: Sequence[Any]) -> list[Answer | OSError]:
    """What `function` answers for each row of the columns, or the error that it raises."""
    answers: list[Answer | OSError] = []
    rows = [iter(column) for column in columns]
    while length_hint(rows[0]):
        try:
            answers.extend(map(function, *rows))  # what was answered before an error stays in the list
        except OSError as error:
            answers.append(error)
    return answers


def _errors(answers: Sequence[OSError | None]) -> bytes:
    return array("i", [error.errno or errno.EIO if error else 0 for error in answers]).tobytes()


def _pack(found: os.stat_result | OSError) -> bytes:
    if isinstance(found, OSError):
        return _STATUS.pack(found.errno or errno.EIO, 0, 0, 0, 0)
    return _STATUS.pack(0, found.st_mode, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def _open_first(files: Sequence[NewFile], descriptors: list[int]) -> int:
    for file in files:
        try:
            descriptors.append(os.open(file.path, _CREATE, file.mode))
        except OSError as error:
            if error.errno not in _NO_DESCRIPTOR:
                raise
            return error.errno or 0
    return 0


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
