"""What the log says, and how often: a live job commits for weeks, and may meet the same trouble each time."""

from __future__ import annotations

import logging
from copy import copy

_WHO = "kstore: "
_told: set[str] = set()


def warn_once(log: logging.Logger, message: str, *values: object) -> None:
    """Log a warning, unless this process has said just that before: then it is for debugging."""
    text = message % values if values else message
    level = logging.DEBUG if text in _told else logging.WARNING
    _told.add(text)  # before it is logged: other threads may be about to say the same
    log.log(level, "%s", text)


class _Unconfigured(logging.Handler):
    """Python prints the warnings of a program that configures no log as bare text. This says that ours are ours."""

    def emit(self, record: logging.LogRecord) -> None:
        if logging.lastResort and not _is_configured(logging.getLogger(record.name)):
            logging.lastResort.handle(_with_name(record))


def _is_configured(log: logging.Logger | None) -> bool:
    """Whether anybody else takes what is logged there."""
    while log:
        if not all(isinstance(handler, _Unconfigured) for handler in log.handlers):
            return True
        log = log.parent if log.propagate else None
    return False


def _with_name(record: logging.LogRecord) -> logging.LogRecord:
    text, named = record.getMessage(), copy(record)
    named.msg, named.args = text if text.startswith(_WHO) else f"{_WHO}{text}", ()
    return named


logging.getLogger("kstore").addHandler(_Unconfigured(logging.WARNING))
