"""When a key was last restored: an empty file per scope, whose time is the store's. Best effort, for `gc --unused`."""

from __future__ import annotations

import logging
from contextlib import suppress

from kstore.backends import Backend
from kstore.scope import Scope

log = logging.getLogger(__name__)


def mark_used(backend: Backend, scope: Scope) -> None:
    """Note that a scope was restored just now; a store that cannot be written is none the worse."""
    try:
        backend.put(_name(scope), b"")
    except OSError as error:
        log.debug("%s cannot be marked as used: %s", scope, error)


def mark_used_again(backend: Backend, scope: Scope) -> bool:
    """The same of one that was restored before; False if it was not, or another user has marked it."""
    try:
        return backend.touch(_name(scope))
    except OSError:
        return False


def last_used(backend: Backend, scope: Scope) -> int:
    """By the store's clock, in nanoseconds; 0 if it was never restored."""
    with suppress(FileNotFoundError):
        return backend.stat(_name(scope)).mtime_ns
    return 0


def _name(scope: Scope) -> str:
    return f"used/{scope.folder.removeprefix('refs/')}"
