from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator

import pytest


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whenever a file is locked, a child is forked that lives on: it has a copy of the descriptor."""
    flock, copies = fcntl.flock, list[int]()

    def lock(file: int, how: int) -> None:
        flock(file, how)
        if how != fcntl.LOCK_UN:
            copies.append(os.dup(file))

    monkeypatch.setattr(fcntl, "flock", lock)
    yield
    for copy in copies:
        os.close(copy)
