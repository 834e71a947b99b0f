"""How far a restore or commit has come. The work writes it, a progress bar in another thread reads it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple


class Awaited(NamedTuple):
    """Whom a restore waits for."""

    holder: str = ""
    """`user@host` of the worker that compiles; empty if none does, as far as is known."""
    since: float = 0.0
    """When that began, by this process's `time.monotonic`."""
    generation: int = 0
    """The newest that is published so far, which is not the one that is waited for; 0 for none."""


@dataclass(slots=True)
class Progress:
    """Counts artifacts to place, or blobs to upload."""

    done: int = 0
    total: int = 0
    """0 while it is not known yet."""
    awaited: Awaited | None = None
    """None while nobody is waited for."""
    on_wait: Callable[[Awaited], None] | None = None
    """Called once when waiting begins."""

    def wait_for(self, awaited: Awaited) -> None:
        """Say who is waited for, from now on."""
        first, self.awaited = self.awaited is None, awaited
        if first and self.on_wait:
            self.on_wait(awaited)
