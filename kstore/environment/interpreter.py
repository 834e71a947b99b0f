"""Which program runs Python code in a process of its own."""

from __future__ import annotations

import os
import sys

_NAMES = ("python", "pypy")


def own_interpreter() -> str:
    """The program of this process if it is Python; empty if it is another program with Python embedded.

    A bundle (PyInstaller, cx_Freeze) or a server (uWSGI) takes Python's options for its own, or ignores them, and
    starts the whole job once more, which would ask again.
    """
    program = sys.executable or ""
    is_python = os.path.basename(program).startswith(_NAMES) and not getattr(sys, "frozen", False)
    return program if is_python else ""
