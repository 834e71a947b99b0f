"""A file that appears under its name when it is finished; until then it is kept beside it as `<name>.partial`.

The next writer goes on from what a killed writer left there, or begins anew. One process at a time writes it.
"""

from __future__ import annotations

import errno
import fcntl
import io
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING, Any

from kstore.errors import FileError, KstoreError

if TYPE_CHECKING:
    from typing_extensions import Buffer

SUFFIX = ".partial"
_BUSY = {errno.EAGAIN, errno.EACCES}


@contextmanager
def finished_as(path: str, *, resumable: bool) -> Iterator[IO[bytes]]:
    """The file that is to become `path`. If it is `resumable`, it holds what an earlier writer left, and a writer that
    fails leaves what it has written; the position is at the beginning.

    If `path` is not a regular file, such as a pipe, it is written to directly: it cannot be read. A link stays a link.

    Raises:
        KstoreError: another process is writing it, or it cannot be written.
    """
    if path.endswith(os.sep):
        raise FileError(f"cannot write {path}: that is the name of a folder; name a file")
    path = os.path.realpath(path)
    if os.path.exists(path) and not stat.S_ISREG(os.stat(path).st_mode):
        with _reporting(path):
            file = _File(path, "wb")
        with io.BufferedWriter(file) as pipe:
            yield pipe
        return
    partial = path + SUFFIX
    with _opened(partial) as whole:
        try:
            if not resumable:
                with _reporting(path):
                    whole.truncate(0)
            yield whole
            with _reporting(path):
                whole.truncate()
                whole.flush()
                check_arrived(whole)
                os.rename(partial, path)
        except BaseException:
            if not resumable:
                with suppress(OSError):
                    os.unlink(partial)
            raise


def check_arrived(file: IO[Any]) -> None:
    """Find out whether what was written has arrived: NFS reports a failed write only when a descriptor is closed.

    Raises:
        OSError: it has not (ENOSPC, EDQUOT, EIO).
    """
    os.close(os.dup(file.fileno()))


class _File(io.FileIO):
    """Says which file cannot be written."""

    def write(self, data: Buffer, /) -> int:
        with _reporting(str(self.name)):
            return super().write(data)


@contextmanager
def _reporting(path: str) -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror}; check the folder and the free space") from error


def _opened(path: str) -> io.BufferedRandom:
    while True:
        with _reporting(path):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        file = _File(descriptor, "r+b")
        file.name = path
        try:
            _lock(descriptor, path)
            if _is_there(descriptor, path):
                return io.BufferedRandom(file)
        except BaseException:
            file.close()
            raise
        file.close()  # Another writer, which held the lock, has finished it since we opened it.


def _lock(fd: int, path: str) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        # If there are no locks, as on some network filesystems, nobody is kept out.
        if error.errno in _BUSY:
            raise KstoreError(f"another process is writing {path}; let it finish, or choose another file") from error


def _is_there(fd: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False
