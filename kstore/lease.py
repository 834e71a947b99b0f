"""A lease: who does something that need not be done twice. Nothing relies on it for safety.

It is a file that is created only if absent, and whose age, by the store's own clock, says whether its holder is
still there.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from kstore.creator import creator
from kstore.storage import Storage

_SECOND = 1_000_000_000


class Lease:
    """One name under `leases/`, to be held by one process at a time."""

    def __init__(self, storage: Storage, name: str, ttl: float) -> None:
        """`ttl` is in seconds: a holder that has not renewed it for so long is gone."""
        self._storage = storage
        self._backend = storage.backend
        self._name = f"leases/{name}"
        self._ttl = ttl
        self._nonce = secrets.token_hex(16)

    def acquire(self) -> bool:
        """Take it if nobody holds it, or its holder is gone."""
        content = json.dumps({"holder": creator(), "nonce": self._nonce}).encode()
        if self._backend.put_if_absent(self._name, content):
            return True
        with suppress(FileNotFoundError):
            if self._storage.clock() - self._backend.stat(self._name).mtime_ns <= self._ttl * _SECOND:
                return False
            self._backend.delete(self._name)
        return self._backend.put_if_absent(self._name, content)

    def holder(self) -> str:
        """`user@host` of whoever holds it; empty if nobody does."""
        return str(self._content().get("holder", ""))

    def release(self) -> None:
        """Give it up, if it is still ours."""
        if self._content().get("nonce") == self._nonce:
            self._backend.delete(self._name)

    @contextmanager
    def held(self) -> Iterator[bool]:
        """Whether it could be taken; released at the end."""
        taken = self.acquire()
        try:
            yield taken
        finally:
            if taken:
                self.release()

    def _content(self) -> dict[str, Any]:
        with suppress(FileNotFoundError, ValueError):
            content = json.loads(self._backend.get(self._name))
            return content if isinstance(content, dict) else {}
        return {}
