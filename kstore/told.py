"""What the log says once in a process. A live job commits for weeks, and may meet the same trouble each time."""

from __future__ import annotations

import logging

_told: set[str] = set()


def warn_once(log: logging.Logger, message: str, *values: object) -> None:
    """Log a warning, unless this process has said just that before: then it is for debugging."""
    text = message % values if values else message
    level = logging.DEBUG if text in _told else logging.WARNING
    _told.add(text)  # before it is logged: other threads may be about to say the same
    log.log(level, "%s", text)
