"""When a cache root that is being written to is uploaded from, and when it is published. Pure: it has no clock."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

BATCH = 128
"""Changes, roughly files, that gather before they are uploaded ahead: each batch may become a pack of its own."""
SHARE = 0.01
"""The share of processor time that may go into rounds: whatever one cost, a hundred times that passes before the next.
"""
_FIRST_PAUSE = 1.0
"""Seconds before what failed is tried again; twice as long each time after that."""
_MOST_DOUBLED = 32
"""How often it is doubled: a store may be away for days."""
IDLE = 86400.0
"""Seconds until there is a round though nothing has changed: gc is to know that what a server runs on is in use."""


class Step(Enum):
    """What is done in a round."""

    AHEAD = "ahead"
    """Upload what is finished, and publish nothing."""
    CHECKPOINT = "checkpoint"
    """Publish a generation."""


class Plan(NamedTuple):
    """The next round. Times are in seconds of one clock, whichever it is."""

    step: Step
    at: float


class Schedule:
    """Decides from a count of changes, the time of the last one, and what has become of the rounds."""

    def __init__(self, settle: float, every: float, now: float) -> None:
        """A checkpoint comes once nothing has changed for `settle` seconds, and `every` seconds after a change."""
        self._settle = settle
        self._every = every
        self._since: float | None = None
        self._published = 0
        self._uploaded = 0
        self._not_before = 0.0
        self._failures = 0
        self._began_at = now
        """When the last round began."""
        self._cost = 0.0
        """What the last one that succeeded cost, in seconds of processor time."""
        self._was_watched = True
        """Whether a watch was on meanwhile: without one, nobody sees what is written in place."""

    def plan(self, changes: int, last: float, now: float) -> Plan | None:
        """The next round, given how often the tree has changed and when it last did; None while nothing is new."""
        if changes == self._published:
            return None
        if self._since is None:
            self._since = now
        checkpoint = max(min(last + self._settle, self._since + self._every), self._not_before)
        ahead = max(now, self._not_before)
        if changes - self._uploaded >= BATCH and ahead < checkpoint:
            return Plan(Step.AHEAD, ahead)
        return Plan(Step.CHECKPOINT, checkpoint)

    def once_more(self, now: float) -> Plan | None:
        """A checkpoint even though nothing is new, if a file may have been written in place during the last round."""
        return None if self._was_watched else Plan(Step.CHECKPOINT, max(now, self._not_before))

    def rest(self, is_uneasy: bool) -> float:
        """Seconds after which there is a round though no change was seen; with `is_uneasy`, there may be one to see."""
        return max(self._every, self._cost / SHARE) if is_uneasy else IDLE

    def is_overdue(self, now: float, is_uneasy: bool) -> bool:
        """Whether it is time for that round."""
        return now - self._began_at >= self.rest(is_uneasy)

    def begun(self, now: float) -> None:
        """A round begins."""
        self._began_at = now

    def done(self, step: Step, changes: int, now: float, cost: float, *, is_watched: bool) -> None:
        """A round has dealt with the first `changes` changes, at a cost of `cost` seconds of processor time. With
        `is_watched`, what was written meanwhile is among the later changes, even if it was written in place.
        """
        self._cost = cost
        self._was_watched = is_watched
        self._failures = 0
        self._not_before = now
        self.spent(now, cost)
        self._uploaded = changes
        if step is Step.CHECKPOINT:
            self._published = changes
            self._since = None

    def spent(self, now: float, cost: float) -> None:
        """Something other than a round has cost this many seconds of processor time."""
        self._not_before = max(self._not_before, now + cost / SHARE)

    def failed(self, now: float) -> None:
        """A round could not be finished: it is tried again, later each time, but at least as often as checkpoints."""
        self._not_before = now + min(_FIRST_PAUSE * 2.0**self._failures, max(self._every, _FIRST_PAUSE))
        self._failures = min(self._failures + 1, _MOST_DOUBLED)
