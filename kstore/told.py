"""What the log says once in a process. A live job commits for weeks, and may meet the same trouble each time."""

from __future__ import annotations

import logging

_told: set[str] = set()


def warn_once(log: logging.Logger, text: str) -> None:
    """Log a warning, unless this process has done so before: then it is for debugging."""
    log.log(logging.DEBUG if text in _told else logging.WARNING, "%s", text)
    _told.add(text)
