"""Single flight: this process compiles for all that wait, and says so for as long as it lives.

A lease is renewed by a thread of its own until what was compiled is committed, or the process ends. Only that thread
writes it: whoever wants it released asks the thread, and does not wait long for a store that hangs.
"""

from __future__ import annotations

import logging
import os
import threading
from functools import cache

from kstore.atend import AtEnd
from kstore.deadline import block_signals, start
from kstore.lease import Lease

log = logging.getLogger(__name__)

_RENEWALS = 3
"""Renewals in the time in which a lease lapses."""
_PATIENCE = 5.0
"""Seconds that a release may take before the process goes on."""


class Flight:
    """A lease that this process renews."""

    def __init__(self, lease: Lease, *, is_guest: bool) -> None:
        """A guest leaves the lease to the process that took it."""
        self._lease = lease
        self._over = threading.Event()
        self._is_left = False
        self._is_guest = is_guest
        self._thread = threading.Thread(target=self._run, name="kstore-lease", daemon=True)
        start(self._thread)

    def end(self) -> None:
        """Have it released, or, as a guest, only stop renewing it."""
        self.leave() if self._is_guest else self.release()

    def release(self) -> None:
        """Have it released: the others no longer wait for this worker."""
        self._over.set()

    def leave(self) -> None:
        """Stop renewing it: it lapses, unless another process goes on with it."""
        self._is_left = True
        self._over.set()

    def wait(self) -> None:
        """Wait until that is done, or takes too long."""
        self._thread.join(_PATIENCE)

    def _run(self) -> None:
        block_signals()
        while not self._over.wait(self._lease.ttl / _RENEWALS):
            try:
                if not self._lease.renew():
                    return
            except OSError as error:
                log.debug("a lease cannot be renewed: %s", error)
        try:
            if not self._is_left:
                self._lease.release()
        except OSError as error:
            log.debug("a lease cannot be released: %s", error)


_flights: dict[str, Flight] = {}
"""By the nonces of their leases."""


@cache
def _end_with(process: int) -> AtEnd:
    """Once in each process."""
    return AtEnd(end_all)


def begin(lease: Lease) -> None:
    """Renew a lease that was taken, until `release`, or the end of this process."""
    _end_with(os.getpid())
    _flights[lease.nonce] = Flight(lease, is_guest=False)


def join(lease: Lease) -> None:
    """Renew a lease that another process of the same worker has taken, beside that process."""
    if lease.nonce not in _flights:
        _end_with(os.getpid())
        _flights[lease.nonce] = Flight(lease, is_guest=True)


def release(lease: Lease) -> None:
    """Give up a lease, whichever process took it.

    Raises:
        OSError: the store cannot be written.
    """
    flight = _flights.pop(lease.nonce, None)
    if flight:
        flight.release()
        flight.wait()
    else:
        lease.release()


def leave_all() -> None:
    """Stop renewing, without giving anything up: other processes go on."""
    while _flights:
        _flights.popitem()[1].leave()


def end_all() -> None:
    """At exit, or before another program takes this process. All are asked at once, because each may hang."""
    flights = list(_flights.values())
    for flight in flights:
        flight.end()
    for flight in flights:
        flight.wait()


os.register_at_fork(after_in_child=_flights.clear)  # Children do not give up what their parent has taken.
