"""System calls for many files at once, with Python's own functions.

Threads that take a step of the interpreter between two calls wait for each other's turn after every call, so each loop
holds nothing but one call. Numbers are returned as the bytes of a C array; an error number is 0 for success.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from operator import length_hint
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from kstore.calls import NewFile

Answer = TypeVar("Answer")

Look = tuple[int, int, int]
"""What a file must still be to be linked or cloned: its size in bytes, and the fraction of a second in its modification
time (ns). Then the permission bits of a clone; a hard link has its source's.
"""

CHANGED = -1
"""Instead of an error number: a file is not what it was."""
SKIPPED = -2
"""Nothing was to be done."""
LOOK = struct.Struct("=Qqq")
_STATUS = struct.Struct("=5qQ")
_ROW = struct.Struct("<32sQ8xHBx")
"""The parts of a manifest's record that are needed here: digest, size, mode and flags."""
NO_FILE = {errno.ENOENT, errno.EISDIR, errno.ELOOP, errno.ENOTDIR, errno.ENXIO, errno.ESPIPE, errno.EINVAL}
"""The errors of reading a name that is free, or taken by a folder, a pipe, a socket or a link to itself. Other trouble
may pass.
"""
_SECOND = 1_000_000_000
_MIN_NS, _MAX_NS = -(1 << 63), (1 << 63) - 1
_NOATIME = getattr(os, "O_NOATIME", 0)
_NOT_UNNOTICED = {errno.EPERM, errno.EACCES, errno.EINVAL}
"""It is another user's file, or a filesystem (some FUSE daemon's, or an old server's) that does not know the flag."""
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_FICLONE = 0x40049409
"""ioctl_ficlone(2)"""
_NO_DESCRIPTOR = {errno.EMFILE, errno.ENFILE}


def link_first(sources: Sequence[str], targets: Sequence[str]) -> tuple[int, int]:
    """Make hard links until one fails: how many, and the error number."""
    left = iter(sources)
    try:
        deque(map(os.link, left, targets), maxlen=0)
    except OSError as error:
        return len(sources) - length_hint(left) - 1, error.errno or errno.EIO
    return len(sources), 0


def link_each(sources: Sequence[str], targets: Sequence[str], looks: bytes) -> bytes:
    """Make hard links: a C int for each. A look is three 64-bit numbers."""
    return _make_each(_link, sources, targets, looks)


def clone_each(sources: Sequence[str], targets: Sequence[str], looks: bytes) -> bytes:
    """The same with clones, which get the source's time."""
    return _make_each(_clone, sources, targets, looks)


def _make_each(
    make: Callable[[str, str, Look], int], sources: Sequence[str], targets: Sequence[str], looks: bytes
) -> bytes:
    rows = zip(sources, targets, LOOK.iter_unpack(looks), strict=True)
    return array("i", [make(*row) for row in rows]).tobytes()


def _link(source: str, target: str, look: Look) -> int:
    try:
        return link_first([source], [target])[1] if _is_unchanged(os.lstat(source), look) else CHANGED
    except OSError:
        return CHANGED


def _clone(source: str, target: str, look: Look) -> int:
    try:
        fd = os.open(source, _READ)
    except OSError as error:
        return CHANGED if error.errno in NO_FILE else error.errno or errno.EIO
    try:
        found = os.fstat(fd)
        return _clone_open(fd, found, target, look[2]) if _is_unchanged(found, look) else CHANGED
    finally:
        os.close(fd)


def _clone_open(source: int, found: os.stat_result, target: str, mode: int) -> int:
    try:
        fd = os.open(target, _CREATE, mode)
    except OSError as error:
        return error.errno or errno.EIO
    try:
        fcntl.ioctl(fd, _FICLONE, source)
        os.utime(fd, ns=times(found.st_mtime_ns))
    except OSError as error:
        with suppress(FileNotFoundError):
            os.unlink(target)
        return error.errno or errno.EIO
    finally:
        os.close(fd)
    return 0


def _is_unchanged(found: os.stat_result, look: Look) -> bool:
    is_same = stat.S_ISREG(found.st_mode) and found.st_size == look[0]
    return is_same and found.st_mtime_ns % _SECOND == look[1]


def link_rows(
    paths: Sequence[str], records: bytes, blobs: str, stage: str, needed: int, refused: int, clones: bool
) -> bytes:
    """Make hard links or clones of the loose blobs that rows of a manifest name: a C int for each."""
    make = _clone if clones else _link

    def make_row(path: str, row: tuple[bytes, int, int, int]) -> int:
        digest, size, mode, flags = row
        if flags & needed != needed or flags & refused:
            return SKIPPED
        name = digest.hex()
        return make(f"{blobs}/{name[:2]}/{name}", f"{stage}/{path}", (size, _stamp(digest), _mode(mode)))

    rows = zip(paths, _ROW.iter_unpack(records), strict=True)
    return array("i", [make_row(path, row) for path, row in rows]).tobytes()


def write_rows(
    paths: Sequence[str], records: bytes, contents: Sequence[bytes | memoryview], stage: str, second_ns: int
) -> tuple[int, int]:
    """Write the contents of rows of a manifest until one fails: how many were written, and the error number."""
    rows = [*zip(paths, [memoryview(data) for data in contents], _ROW.iter_unpack(records), strict=True)]
    for done, (path, data, (digest, _, mode, _)) in enumerate(rows):
        try:
            _write(f"{stage}/{path}", data, _mode(mode), second_ns + _stamp(digest))
        except OSError as error:
            return done, error.errno or errno.EIO
    return len(rows), 0


def _write(path: str, data: memoryview, mode: int, mtime_ns: int) -> None:
    fd = os.open(path, _CREATE, mode)
    try:
        try:
            write_all(fd, data)
            os.utime(fd, ns=times(mtime_ns))
        finally:
            os.close(fd)
    except OSError:
        with suppress(OSError):
            os.unlink(path)
        raise


def _stamp(digest: bytes) -> int:
    return int.from_bytes(digest[:4], "little") % (_SECOND - 1) + 1


def _mode(mode: int) -> int:
    return mode & 0o777 | 0o600


def mkdir_each(paths: Sequence[str]) -> bytes:
    """Make folders: a C int for each."""
    return _errors(call_each(os.mkdir, paths))


def unlink_each(paths: Sequence[str]) -> bytes:
    """Remove names: a C int for each."""
    return _errors(call_each(os.unlink, paths))


def utime_each(paths: Sequence[str], atime_ns: int, mtime_ns: int) -> bytes:
    """Set access and modification times: a C int for each."""
    return _errors(call_each(partial(os.utime, ns=(atime_ns, mtime_ns)), paths))


def stat_each(paths: Sequence[str], follows: bool) -> bytes:
    """Six 64-bit numbers for each: error, mode, size, times of modification and of status change (ns), and inode."""
    return b"".join(map(_pack, call_each(partial(os.stat, follow_symlinks=follows), paths)))


def times_below(names: bytes, folder: int, follows: bool) -> bytes | None:
    """Two 64-bit numbers for each of the names, which NULs separate: when it and its status changed; None if one has
    none.
    """
    look = partial(os.stat, dir_fd=folder, follow_symlinks=follows)
    try:
        times = ((found.st_mtime_ns, found.st_ctime_ns) for found in map(look, names.split(b"\0")))
        return array("q", map(bounded, chain.from_iterable(times))).tobytes()
    except OSError:
        return None


def list_each(folders: Sequence[str]) -> list[tuple[bytes, bytes]]:
    """For each folder, the names in it, a NUL after each, and what `stat_each` tells about the folder, then each name.

    For one that cannot be listed, only why.
    """
    return [_list_folder(folder) for folder in folders]


def _list_folder(folder: str) -> tuple[bytes, bytes]:
    try:
        own, names = _pack(os.stat(folder)), os.listdir(folder)
    except OSError as error:
        return b"", _pack(error)
    statuses = stat_each([f"{folder}/{name}" for name in names], follows=False)
    return b"".join(os.fsencode(name) + b"\0" for name in names), own + statuses


def read_each(paths: Sequence[str], sizes: Sequence[int]) -> tuple[list[bytes], bytes]:
    """The bytes of each file, and what `stat_each` tells about it: EAGAIN if it is no file of that size, or changes."""
    read = call_each(_read_file, paths, sizes)
    contents = [b"" if isinstance(answer, OSError) else answer[0] for answer in read]
    return contents, b"".join(_pack(answer if isinstance(answer, OSError) else answer[1]) for answer in read)


def publish_first(folder: str, files: Sequence[NewFile]) -> tuple[bytes, int]:
    """Publish no file: if the calls are not compiled, it is not worth its code."""
    return b"", errno.EOPNOTSUPP


def write_first(files: Sequence[NewFile]) -> tuple[int, int]:
    """Make files until there is no descriptor: how many, and the error number. All are open together."""
    descriptors: list[int] = []
    try:
        error = _open_first(files, descriptors)
        files = files[: len(descriptors)]
        written = [os.write(fd, file.data) for fd, file in zip(descriptors, files, strict=True)]
        for fd, file, done in zip(descriptors, files, written, strict=True):
            if done < len(file.data):
                write_all(fd, memoryview(file.data)[done:])
        for fd, file in zip(descriptors, files, strict=True):
            if file.mtime_ns is not None:
                os.utime(fd, ns=times(file.mtime_ns))
    finally:
        _close_all(descriptors)
    return len(files), error


def times(mtime_ns: int) -> tuple[int, int]:
    """Access and modification time. A stamp may lie ahead of now: as an access time it would look like a read."""
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
        return _STATUS.pack(found.errno or errno.EIO, 0, 0, 0, 0, 0)
    times = bounded(found.st_mtime_ns), bounded(found.st_ctime_ns)
    return _STATUS.pack(0, found.st_mode, found.st_size, *times, found.st_ino)


def bounded(moment_ns: int) -> int:
    """The nearest time that 64 bits can hold, for one beyond the years 1677 and 2262: a clock may have been wrong."""
    return max(_MIN_NS, min(moment_ns, _MAX_NS))


def open_unnoticed(path: str, flags: int) -> int:
    """Open a file to read it, without a trace in its access time if that is allowed, as it is to the file's owner.

    Access times tell which files a compiler has read, and a hard link has those of the store's blob.
    """
    try:
        return os.open(path, flags | _NOATIME)
    except OSError as error:
        if error.errno not in _NOT_UNNOTICED:
            raise
        return os.open(path, flags)


def _read_file(path: str, size: int) -> tuple[bytes, os.stat_result]:
    fd = open_unnoticed(path, _READ)
    try:
        before = os.fstat(fd)
        if stat.S_ISREG(before.st_mode) and before.st_size == size:
            data, after = os.read(fd, size), os.fstat(fd)
            if len(data) == size == after.st_size and before.st_mtime_ns == after.st_mtime_ns:
                return data, after
    finally:
        os.close(fd)
    raise BlockingIOError(errno.EAGAIN, "it is not a file of that size, or it is changing", path)


def _open_first(files: Sequence[NewFile], descriptors: list[int]) -> int:
    for file in files:
        try:
            descriptors.append(os.open(file.path, _CREATE, file.mode))
        except OSError as error:
            if error.errno not in _NO_DESCRIPTOR:
                raise
            return error.errno or 0
    return 0


def write_all(fd: int, data: bytes | memoryview) -> None:
    """Write all of `data` to an open file, in as many calls as that takes."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def _close_all(descriptors: list[int]) -> None:
    """Close all of them, even if one close fails (ENOSPC on NFS)."""
    while descriptors:
        try:
            os.close(descriptors.pop())
        except OSError:
            _close_all(descriptors)
            raise
