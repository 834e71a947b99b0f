"""The program's own stdin, stdout and stderr."""

from __future__ import annotations

import io
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import IO, TYPE_CHECKING, TextIO

from kstore.errors import FileError, UsageError

if TYPE_CHECKING:
    from typing_extensions import Buffer

STDOUT = "-"
"""The name of stdout where a command expects a file."""
_STREAMS = {"stdin": "r", "stdout": "w", "stderr": "w"}


def prepare_streams() -> None:
    """Make all three usable, even those that were closed when the program was started."""
    for name, mode in _STREAMS.items():
        if getattr(sys, name) is None:
            setattr(sys, name, _open_nothing(mode))
    # An old locale must not turn an ellipsis into a failure.
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError):  # It may be somebody's own stream.
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]


def leave_stdin_and_stdout() -> None:
    """Leave them to the command that has inherited them: whoever has the other end of a pipe or socket is to see when
    the command closes its own. If there is no descriptor for what takes their place, they stay open.
    """
    with suppress(OSError):
        nothing = os.open(os.devnull, os.O_RDWR)
        for lent in (0, 1):
            if _has_other_end(os.fstat(lent).st_mode):  # Closing a file might hang with its mount.
                os.dup2(nothing, lent)
        os.close(nothing)


def _has_other_end(mode: int) -> bool:
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


def is_stdout(path: str) -> bool:
    """Whether a path means stdout, also as /dev/stdout."""
    with suppress(OSError):
        return path == STDOUT or os.path.samestat(os.stat(path), os.fstat(1))
    return False


@contextmanager
def writing_stdout() -> Iterator[None]:
    """Say that it is stdout that cannot be written. A broken pipe is no error to speak of, and stays as it is."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        why = error.strerror or error
        raise FileError(f"cannot write to stdout: {why}; make room there, or send it elsewhere") from error


def check_stdout() -> None:
    """Find out whether what was printed has arrived, if it went to a file: see `check_arrived`.

    Raises:
        FileError: it has not.
    """
    if _is_file(sys.stdout):
        from kstore.bundles.partial import check_arrived

        with writing_stdout():
            check_arrived(sys.stdout)


def _is_file(stream: TextIO) -> bool:
    with suppress(AttributeError, OSError, ValueError):  # Somebody's own stream may have no descriptor.
        return stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
    return False


class Stdout(io.FileIO):
    """Stdout as a file, for bytes that another program gets."""

    def __init__(self) -> None:
        """Raises FileError if whoever started the program closed it, UsageError if it is a terminal."""
        if isinstance(sys.stdout, _Nothing):
            raise FileError("cannot write to stdout: it is closed; send it somewhere")
        if sys.stdout.isatty():  # The bytes of an untrusted file must not steer it.
            raise UsageError("no file is written to a terminal; name a FILE, or send stdout to one with > FILE")
        super().__init__(sys.stdout.fileno(), "wb", closefd=False)

    def write(self, data: Buffer, /) -> int:
        """Write as a file does, but say what fails."""
        with writing_stdout():
            return super().write(data)


def open_target(path: str, *, resumable: bool = False) -> AbstractContextManager[IO[bytes]]:
    """The file that a command was asked to write, opened by `finished_as`; or stdout, if that is meant.

    Raises:
        KstoreError: another process is writing it, or it cannot be written.
    """
    from kstore.bundles.partial import finished_as

    return _sent_to_stdout() if is_stdout(path) else finished_as(path, resumable=resumable)


@contextmanager
def _sent_to_stdout() -> Iterator[IO[bytes]]:
    from kstore.bundles.partial import check_arrived

    with io.BufferedWriter(Stdout()) as file:
        yield file
        file.flush()
        with writing_stdout():
            check_arrived(file)


class _Nothing(io.TextIOWrapper):
    """Stands in for a stream that was closed."""


def _open_nothing(mode: str) -> _Nothing:
    """A stream in the place of one that was closed. It takes the free descriptor before a store's file or a socket can;
    a child inherits it too.
    """
    descriptor = os.open(os.devnull, os.O_RDWR)
    os.set_inheritable(descriptor, True)
    return _Nothing(open(descriptor, f"{mode}b", closefd=False), encoding="utf-8")


def flush_streams(code: int) -> int:
    """Flush here: at the interpreter's end a closed pipe would print a traceback, or replace the exit code.

    Data that did not arrive is a failure; talk that nobody listens to is not.
    """
    _flush(sys.stderr)
    return code if _flush(sys.stdout) else code or 1


def _flush(stream: TextIO) -> bool:
    try:
        stream.flush()
        return True
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return False
