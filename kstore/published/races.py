"""Races for the next generation: of many writers one wins at a time, and each of the others merges again."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Protocol

from kstore.errors import StoreUnavailable
from kstore.polls import RANDOM
from kstore.scope import Scope

MAX_RACES = 1000
"""Attempts to publish a generation. Nobody loses so many to others: if all fail, a folder does not list what is in it.
"""
_EAGER = 16
"""Races that a writer may lose without waiting: among so few others it would only lose time."""
_PATIENCE = 8
"""How many times as long as an attempt takes its writer waits before the next one, at most."""
_LONGEST = 2.0
"""Seconds: no wait is longer, since a job that is told to end may be about to publish."""
_MOST_IN_VAIN = 2
"""Times that a writer waits for those before it in vain: one that has been stopped would hold up all others each time.
"""


class Line(Protocol):
    """Those of one host that are to publish, one after the other."""

    def wait(self, seconds: float) -> bool:
        """Wait for one's turn, but no longer than that; returns whether it has come."""

    def leave(self) -> None:
        """Let the next one go."""


def races(line: Line | None = None) -> Iterator[None]:
    """The attempts of one writer to publish; if they all fail, it is `outraced`.

    Whoever loses stands in `line`, and whoever loses again and again lets others go first, each for another while. When
    a large fleet commits all at once, nearly every attempt would be in vain otherwise, and each is work for the store
    and for the host.
    """
    in_vain = 0
    try:
        for lost in range(1, MAX_RACES + 1):
            began = time.monotonic()
            yield
            took = time.monotonic() - began
            patience = min(max(lost - _EAGER, 0), _PATIENCE)
            time.sleep(min(_LONGEST, RANDOM.uniform(0, patience) * took))
            if line and in_vain < _MOST_IN_VAIN:
                in_vain += not line.wait(_LONGEST)
    finally:
        if line:
            line.leave()


def outraced(scope: Scope) -> StoreUnavailable:
    """The error of a writer that has lost `MAX_RACES` times."""
    return StoreUnavailable(
        f"{MAX_RACES} attempts to publish {scope} each found the generation taken; check whether its refs can be listed"
    )
