"""The program's own stdin, stdout and stderr."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import IO, Any, TextIO

STDOUT = "-"
"""Its name where a command asks for a file."""
_STREAMS = {"stdin": "r", "stdout": "w", "stderr": "w"}


def prepare_streams() -> None:
    """See that all three can be used, whatever whoever started the program has closed."""
    for name, mode in _STREAMS.items():
        if getattr(sys, name) is None:
            setattr(sys, name, _open_nothing(mode))
    # An old locale must not turn an ellipsis into a failure.
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError):  # of somebody's own
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]


def is_stdout(path: str) -> bool:
    """Also as /dev/stdout."""
    with suppress(OSError):
        return path == STDOUT or os.path.samestat(os.stat(path), os.fstat(1))
    return False


def _open_nothing(mode: str) -> IO[Any]:
    """It takes the descriptor that is free, before a file of the store's or a socket can; a child gets it too."""
    descriptor = os.open(os.devnull, os.O_RDWR)
    os.set_inheritable(descriptor, True)
    return open(descriptor, mode, encoding="utf-8", closefd=False)


def flush_streams(code: int) -> int:
    """Flush here: at the interpreter's end a closed pipe would print a traceback, or replace the exit code.

    Data that did not arrive is a failure; that nobody listens to talk is none.
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
