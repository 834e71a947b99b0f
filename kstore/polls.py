"""How often a thousand workers ask a store for news: soon at first, then seldom, and never in step."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from random import SystemRandom

from kstore.deadline import Waiting
from kstore.errors import UsageError

_FIRST, _LONGEST, _GROWTH = 0.1, 2.0, 1.3  # seconds, seconds, factor
RANDOM = SystemRandom()
"""Not `random`: its sequence belongs to the job."""


def check_wait(seconds: float) -> float:
    """Return `seconds` if one can wait for that long.

    Raises:
        UsageError: it is negative, or no number.
    """
    if not isinstance(seconds, int | float) or not 0 <= seconds < threading.TIMEOUT_MAX / 2:
        raise UsageError(f"wait={seconds!r} is not a number of seconds from 0 on")
    return seconds


def polls(seconds: float, waiting: Waiting) -> Iterator[None]:
    """Now, again and again, and a last time when `seconds` are over.

    Raises:
        Abandoned: nobody waits any more for what is asked for.
    """
    end = time.monotonic() + seconds
    pause = _FIRST
    while True:
        yield
        left = end - time.monotonic()
        if left <= 0:
            return
        time.sleep(min(left, pause * RANDOM.uniform(0.5, 1)))
        waiting.check()
        pause = min(_LONGEST, pause * _GROWTH)
