"""How far a restore or commit has come. The work writes it, a progress bar in another thread reads it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Progress:
    """Of artifacts to place, or blobs to upload."""

    done: int = 0
    total: int = 0
    """0 while it is not known yet."""
