"""What the blocks of `watch` and of `synchronized` have in common: their arguments, and how one ends."""

from __future__ import annotations

import logging
import math
from enum import StrEnum

from kstore.errors import UsageError
from kstore.live.endings import has_ended
from kstore.report import CommitReport, CommitStatus

log = logging.getLogger("kstore")


class OnError(StrEnum):
    """What becomes of what was compiled if the body raises."""

    COMMIT = "commit"
    """It is published: its kernels are good all the same."""
    DISCARD = "discard"
    """Nothing is published at the end. What was published live stays; what stays in the cache root is part of its next
    commit.
    """


def parse_on_error(value: str) -> OnError:
    """The choice that `value` names. Raises UsageError if it names none."""
    try:
        return OnError(value)
    except ValueError:
        raise UsageError(f"on_error is {value!r}; it must be {' or '.join(OnError)}") from None


def parse_seconds(name: str, value: float) -> float:
    """A number of seconds above 0. Raises UsageError for anything else."""
    if not isinstance(value, int | float) or not 0 < value < math.inf:
        raise UsageError(f"{name} is {value!r}; it must be a number of seconds above 0")
    return float(value)


def tell_forked(key: str, process: int) -> None:
    """Called in a child that leaves a block which `process` entered. Warns if that process has ended, as when a daemon
    is made: nobody commits then.
    """
    if has_ended(process):
        log.warning(
            "kstore: nothing is committed to %s: this process was forked in its block, and the one that entered it has "
            "ended; fork first, or run `kstore commit %s`", key, key,
        )  # fmt: skip


def raised(error: BaseException | None) -> BaseException | None:
    """What the body raised. A generator that is closed before its end has raised nothing."""
    return None if isinstance(error, GeneratorExit) else error


def is_failure(error: BaseException | None) -> bool:
    """Whether the body failed; `sys.exit()` is no failure."""
    return error is not None and not (isinstance(error, SystemExit) and not error.code)


def discarded(key: str) -> CommitReport:
    """The report of a job that publishes nothing."""
    return CommitReport(CommitStatus.DISCARDED, key)
