"""Which program runs Python code in a process of its own."""

from __future__ import annotations

import os
import sys

_NAMES = ("python", "pypy")


def own_interpreter() -> str:
    """The program of this process, if that is Python; empty if it is another one that has Python in it.

    A bundle (PyInstaller's, cx_Freeze's) or a server (uWSGI) takes options of Python's for its own, or for none, and
    starts the whole job once more: which would ask again.
    """
    program = sys.executable or ""
    is_python = os.path.basename(program).startswith(_NAMES) and not getattr(sys, "frozen", False)
    return program if is_python else ""
