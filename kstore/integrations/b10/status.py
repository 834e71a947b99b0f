"""How an operation ended, in b10-transfer's words, and what keeps its trouble away from the job."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from enum import Enum, auto
from functools import wraps
from typing import ParamSpec, TypeVar

from kstore.deadline import is_interruption
from kstore.errors import KstoreError, reason_of

log = logging.getLogger("kstore")

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class OperationStatus(Enum):
    """How an operation ended."""

    SUCCESS = auto()
    ERROR = auto()
    DOES_NOT_EXIST = auto()
    """Nothing was saved for this deployment, GPU and software yet."""
    SKIPPED = auto()
    """There was nothing to do."""


class CacheError(KstoreError):
    """An operation failed. Logged, never raised to the caller; it exists for code that names it."""


class CacheValidationError(CacheError):
    """A variable is malformed or leaves its bounds, or there is too little room."""


class CacheOperationInterrupted(Exception):
    """An operation was stopped. Nothing here raises it: room is checked before an operation, not during it."""


def get_b10_logger(name: str) -> logging.Logger:
    """The logger of that name, as the program has configured it."""
    return logging.getLogger(name)


def never_raises(
    what: str, otherwise: Callable[[str], Result]
) -> Callable[[Callable[Parameters, Result]], Callable[Parameters, Result]]:
    """Turn an exception into one line of the log, and into what `otherwise` makes of its text."""

    def decorate(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        @wraps(function)
        def guarded(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
            try:
                return function(*args, **kwargs)
            except Exception as error:
                if is_interruption(error):
                    raise
                text = reason_of(error)
                with suppress(Exception):  # A log handler of the job's may fail.
                    log.error("kstore: %s failed, the job goes on without it: %s", what, text)
                    log.debug("kstore: %s", what, exc_info=True)
                return otherwise(text)

        return guarded

    return decorate
