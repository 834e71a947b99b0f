"""Everything that a commit imports, to be imported before anybody waits for a commit.

A process that is told to end while it imports something holds the interpreter's lock for imports: a thread that commits
meanwhile would wait for that lock, and the signal's handler for the thread.
"""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module

_MODULES = ("kstore.operations.commit", "kstore.live.places", "pwd", "lmdb._envid")
"""The last two are what getpass and newer versions of lmdb import themselves."""


def import_commit() -> None:
    """Import it now. If something cannot be imported, the commit will say so."""
    for module in _MODULES:
        with suppress(ImportError, OSError):
            import_module(module)
