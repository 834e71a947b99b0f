"""When a key was last restored, or confirmed by a commit that had nothing new: an empty file per scope, whose time is
the store's. Best effort, for `gc --unused`. All are in one folder: far away, making another costs a restore.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from kstore.backends import Backend
from kstore.digest import HEXADECIMAL, digest_of
from kstore.published.ref import folder_of
from kstore.scope import Scope
from kstore.threads import Pool, submit

log = logging.getLogger(__name__)

FOLDER = "used"
_PATIENCE = 5.0
"""Seconds: the most that a store which can be read and takes no mark costs a restore."""


def mark_used(backend: Backend, scope: Scope) -> None:
    """Note that a scope was used just now; it does no harm if the store cannot be written."""
    name = mark_name(scope)
    try:
        if not (backend.put_if_absent(name, b"") or mark_used_again(backend, scope)):
            backend.put(name, b"")  # Only the user that made a mark may touch it.
    except OSError as error:
        log.debug("%s cannot be marked as used: %s", scope, error)


def mark_used_again(backend: Backend, scope: Scope) -> bool:
    """As `mark_used`, for one that was used before; False if it was not, or another user has marked it."""
    try:
        return backend.touch(mark_name(scope))
    except OSError:
        return False


class Marker:
    """Marks scopes as used while a restore looks and fetches: that is several round trips to the store."""

    def __init__(self, backend: Backend, scope: Scope, *, is_idle: bool) -> None:
        """`scope` is marked at once if it was restored before, or something was published, even if there is nothing to
        restore by now. A marker that `is_idle` marks nothing.
        """
        self._backend = backend
        self._scope = scope
        self._is_idle = is_idle
        self._pool = Pool(1)
        self._marked: Future[Any] | None = None
        """What nobody has waited for yet."""

    def __enter__(self) -> Self:
        if not self._is_idle:
            self._marked = submit(self._pool, self._mark_at_once)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(wait=False)  # It may hang in a dead mount.
        if kind is None or issubclass(kind, Exception):
            self._wait()  # Nothing may be written once a restore has ended: the store may be unmounted by then.

    def mark(self, scope: Scope) -> Callable[[], None]:
        """Mark what is being restored; returns a function that waits until that is done, but not for long."""
        if self._marked:
            self._marked = submit(self._pool, self._mark, scope, self._marked)
        return self._wait

    def leave(self) -> None:
        """Wait for nothing: the store is in trouble, and what was begun may hang."""
        self._marked = None

    def _wait(self) -> None:
        marked, self._marked = self._marked, None
        if marked:
            with suppress(TimeoutError):
                marked.result(_PATIENCE)

    def _mark_at_once(self) -> bool:
        """Whether there was something to mark."""
        if mark_used_again(self._backend, self._scope):
            return True
        with suppress(OSError):
            if any(self._backend.list(folder_of(self._scope))):
                mark_used(self._backend, self._scope)
                return True
        return False

    def _mark(self, scope: Scope, at_once: Future[Any]) -> None:
        if not (scope == self._scope and at_once.result()):
            mark_used(self._backend, scope)


def last_used(backend: Backend, scope: Scope) -> int:
    """When a scope was last used, by the store's clock in nanoseconds; 0 if never."""
    with suppress(FileNotFoundError):
        return backend.stat(mark_name(scope)).mtime_ns
    return 0


def sweep_marks(backend: Backend, scopes: Iterable[Scope], before: int) -> None:
    """Remove marks made earlier than `before`, by the store's clock in nanoseconds, except those of these `scopes`: the
    others have nothing to restore any more. What cannot be removed stays.
    """
    kept = set(map(mark_name, scopes))
    try:
        names = (f"{FOLDER}/{child.name}" for child in backend.list(FOLDER) if HEXADECIMAL.fullmatch(child.name))
        marks = [name for name in names if name not in kept]
        for name, found in zip(marks, backend.stat_many(marks), strict=True):
            if found and found.mtime_ns < before:
                backend.delete(name)
    except OSError as error:
        log.debug("marks cannot be removed: %s", error)


def mark_name(scope: Scope) -> str:
    """The object whose time is the mark."""
    return f"{FOLDER}/{digest_of(scope.path.encode()).hex()}"
