"""Where the ranks of a job leave word for each other: in the store, or in the store of their process group."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, Protocol

from kstore.backends import Backend
from kstore.errors import StoreUnavailable
from kstore.storage import Storage, reporting_trouble

FOLDER = "groups"
IMPORTED = "import-"
"""How the name of a note begins if it names a pack that an import has stored."""
_LOOKED = "seen"
_NOTE = re.compile(rf"[0-9a-f]{{32}}(\..+)?|{IMPORTED}[0-9a-f]{{32}}-.+|{_LOOKED}")
"""A name that kstore makes in that folder: that of an agreement's note, or one of the other two kinds."""
_PREFIX = "kstore/"
_MOST_BYTES = 1 << 20
"""The most bytes of a note: a sparse file can have any size."""
_STALE_FOR = 5.0
"""Seconds after which a rank that waits makes its client look at the folder afresh."""


class Board(Protocol):
    """Small notes by name. All errors are `StoreUnavailable`."""

    def put(self, name: str, note: bytes) -> None:
        """Create or replace a note."""

    def put_if_absent(self, name: str, note: bytes) -> bytes:
        """Create a note unless there is one; returns the one that is there now."""

    def get(self, name: str) -> bytes | None:
        """The note, None if there is none yet."""


class StoreBoard:
    """Notes in the kstore store: they need neither torch, nor a port, nor a process group."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._looked = time.monotonic()

    def put(self, name: str, note: bytes) -> None:
        """Create or replace a note; makes the store if there is none yet."""
        with self._reporting():
            self._storage.create()
            self._storage.backend.put(f"{FOLDER}/{name}", note)

    def put_if_absent(self, name: str, note: bytes) -> bytes:
        """Create a note unless there is one."""
        with self._reporting():
            self._storage.create()
            if self._storage.backend.put_if_absent(f"{FOLDER}/{name}", note):
                return note
            return self._storage.backend.get(f"{FOLDER}/{name}", 0, _MOST_BYTES)

    def get(self, name: str) -> bytes | None:
        """The note, None if there is none yet."""
        with self._reporting():
            try:
                return self._storage.backend.get(f"{FOLDER}/{name}", 0, _MOST_BYTES)
            except FileNotFoundError:
                self._look_afresh()
                return None

    def _look_afresh(self) -> None:
        """An NFS client remembers for up to a minute that a name was not there, until it writes to the folder."""
        if time.monotonic() - self._looked > _STALE_FOR and self._storage.settings:
            self._storage.backend.put(f"{FOLDER}/{_LOOKED}", b"")
            self._looked = time.monotonic()

    def _reporting(self) -> AbstractContextManager[None]:
        return reporting_trouble(self._storage.location, "agree with the other ranks through")


class GroupBoard:
    """Notes in the key-value store of an initialised process group.

    No collective is used: one that times out would put the group's own out of step, and NCCL's run on the GPU.
    """

    def __init__(self, store: Any) -> None:
        self._store = store

    def put(self, name: str, note: bytes) -> None:
        """Create or replace a note."""
        with _reporting_group():
            self._store.set(_PREFIX + name, note)

    def put_if_absent(self, name: str, note: bytes) -> bytes:
        """Create a note unless there is one."""
        with _reporting_group():
            return bytes(self._store.compare_set(_PREFIX + name, "", note.decode()))

    def get(self, name: str) -> bytes | None:
        """The note, None if there is none yet: `get` alone would wait, and keep other threads from the store."""
        with _reporting_group():
            return bytes(self._store.get(_PREFIX + name)) if self._store.check([_PREFIX + name]) else None


def sweep_notes(backend: Backend, before: int) -> None:
    """Remove the notes that were written before `before`, a time by the store's clock in nanoseconds."""
    for name in (f"{FOLDER}/{child.name}" for child in backend.list(FOLDER) if _NOTE.fullmatch(child.name)):
        with suppress(FileNotFoundError):
            if backend.stat(name).mtime_ns < before:
                backend.delete(name)


@contextmanager
def _reporting_group() -> Iterator[None]:
    """torch's stores raise RuntimeErrors, such as DistNetworkError if the rank that hosts them is gone."""
    try:
        yield
    except (RuntimeError, ValueError, OSError) as error:
        raise StoreUnavailable(f"the store of the process group cannot be used: {error}") from error
