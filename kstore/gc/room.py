"""What gc does in a store without room: it must not wait for room before it deletes, since only deleting makes room.

So what gc has to write is left undone if there is no room for it, and what it may already delete is deleted. Nothing is
deleted that would otherwise stay: a list without a fence is not ripe, what is on no list stays, and so does what could
not be moved out of the way.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from kstore.condemned import fenced_at, fences
from kstore.errors import StoreUnavailable
from kstore.gc.report import GcReport
from kstore.lease import Lease
from kstore.storage import Storage
from kstore.words import long_duration

log = logging.getLogger(__name__)

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT}


class Room:
    """What one gc has found out about the room in its store."""

    def __init__(self) -> None:
        self.lacking = ""
        """Why something was left undone; empty if nothing was."""

    @contextmanager
    def needed(self) -> Iterator[None]:
        """A block that ends where there is no room for what it writes; the rest of it is left undone."""
        try:
            yield
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            self.lacking = error.strerror or repr(error)
            log.debug("left undone: %s", error)


@contextmanager
def alone(lease: Lease, room: Room) -> Iterator[bool]:
    """Hold gc's lease in the block; yields whether no other gc has it. If there is no room for a lease, two may run,
    and nothing is lost by that.
    """
    taken = True  # It may be, even if taking it fails or is interrupted.
    try:
        with room.needed():
            taken = lease.acquire()
        yield taken
    finally:
        if taken:
            with room.needed():
                lease.release()


def store_time(storage: Storage, room: Room) -> int:
    """The time by the store's own clock, in nanoseconds, or somewhat earlier: then things seem younger and stay longer.

    If there is no room for a file to read it from, a folder tells it. If there is no room to touch that either, it is
    the time when something was last published or condemned.
    """
    with room.needed():
        return storage.clock()
    with suppress(OSError):
        return storage.backend.clock()
    return max(_times(storage), default=0)


def full(storage: Storage, room: Room, report: GcReport) -> StoreUnavailable:
    """The error for a store that has no room and in which nothing may be deleted yet. It says what to do."""
    where, grace = storage.location, long_duration(round(report.grace))
    if report.waiting.files and report.grace:
        what = (
            f"what was condemned before is deleted by a gc that runs {grace} after that; run it again then, make room, "
            "or add --offline if no worker uses the store now"
        )
    else:
        later, again = f", and deletes it {grace} later", f", and once more {grace} after that"
        if not report.grace:  # One gc notes and deletes.
            later = again = ""
        what = (
            f"gc first notes what it is to delete{later}: make room for the notes, a megabyte or less ({where}/stats "
            f"may be removed: `kstore stats` then starts over), and run gc{again}"
        )
    return StoreUnavailable(f"cannot collect garbage in the store at {where}: {room.lacking}; {what}")


def _times(storage: Storage) -> Iterator[int]:
    yield from filter(None, (fenced_at(storage.backend, name) for name in fences(storage.backend)))
    for scope in storage.refs.scopes():
        for generation in storage.refs.generations(scope)[-1:]:
            with suppress(FileNotFoundError):
                yield storage.refs.published_at(scope, generation)
