"""Keeps what comes through a pipe in a temporary file: a bundle is read at arbitrary places, and twice."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO

from kstore.errors import FileError

STDIN = "-"
_CHUNK = 1 << 20


def open_anywhere(path: str) -> IO[bytes]:
    """The file, or a copy of what comes through a pipe. Stdin may be either.

    Raises:
        OSError: it cannot be read.
        FileError: there is no room for a copy.
    """
    is_stdin = path == STDIN
    file = open(0 if is_stdin else path, "rb", buffering=0, closefd=not is_stdin)
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode) and not file.tell():  # Somebody may have read a part of stdin.
        return file
    with file:
        return _copied(file.fileno(), "stdin" if is_stdin else path)


def _copied(fd: int, name: str) -> IO[bytes]:
    with _keeping(name):
        copy = tempfile.TemporaryFile(prefix="kstore-import-")
    try:
        while data := os.read(fd, _CHUNK):
            with _keeping(name):
                copy.write(data)
        with _keeping(name):
            copy.flush()
    except BaseException:
        with suppress(OSError):  # What could not be written is written once more, and that is not what matters.
            copy.close()
        raise
    return copy


@contextmanager
def _keeping(name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise FileError(
            f"cannot keep what comes from {name} in a temporary file: {error.strerror}; set TMPDIR to another folder"
        ) from error
