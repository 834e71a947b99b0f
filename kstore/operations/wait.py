"""Wait for a generation that another worker is compiling, or become the one that compiles.

A poll reads the newest claim of the lease first, and then the newest ref. The holder of the lease publishes before
releasing it. So if the lease was free, and after that nothing is found to be published, nobody is at work. Taking the
lease fails if anybody took it in between, so whoever gets it is the only one. A checkpoint of the holder names the
lease: as long as that is held, there is more to come.

Whether a holder is gone is not a question of comparing clocks: each waiter sees for itself, by its own monotonic clock,
that nothing was renewed for as long as the holder said it would take. Only a claim that was there before the waiter
came is compared once with the store's clock, so that a lease left behind long ago does not cost every newcomer its
time.
"""

from __future__ import annotations

import errno
import logging
import time
from contextlib import suppress
from typing import Any, NamedTuple

from kstore import flight
from kstore.backends import StagingLost
from kstore.errors import IntegrityError, MissError
from kstore.lease import Claim, Lease
from kstore.polls import polls
from kstore.progress import Awaited
from kstore.published.layers import newest_ref, newest_whole
from kstore.published.ref import RefState
from kstore.scope import Scope
from kstore.storage import Storage
from kstore.worker import Worker

log = logging.getLogger(__name__)

_DENIED = {errno.EROFS, errno.EACCES, errno.EPERM}
"""The errors of a store that may not be written."""


class Waited(NamedTuple):
    """How waiting ended."""

    seconds: float = 0.0
    holder: str = ""
    """`user@host` of whoever compiled when last seen; empty if nobody did."""
    leads: bool = False
    """Whether this worker compiles for the others."""

    def as_reported(self) -> dict[str, Any]:
        """The fields of a report."""
        return {"waited": self.seconds, "waited_for": self.holder, "leads": self.leads}


def wait(worker: Worker, generation: int | None, seconds: float, *, lead: bool) -> Waited:
    """Return as soon as there is something to restore that nobody is adding to, or this worker leads, or `seconds` are
    over.

    With `generation`, wait for that one. A worker that waits for one, or may not write, or is without `lead`, never
    leads.

    Raises:
        OSError: the store cannot be read.
        Abandoned: nobody waits for this restore any more.
    """
    return _Wait(worker, generation, lead and worker.may_write and not generation).run(seconds)


def lease_of(storage: Storage, scope: Scope, ttl: float, nonce: str = "") -> Lease:
    """The lease of the worker that compiles for a scope."""
    return Lease(storage, scope.path, ttl, nonce)


class _Wait:
    def __init__(self, worker: Worker, generation: int | None, may_lead: bool) -> None:
        self._worker = worker
        self._wanted = generation or 0
        self._may_lead = may_lead
        self._cannot_lead = False
        """Whether there is trouble that others have as well: for example, the store is full."""
        self._denied_until = 0.0
        """Until when it does not try again to write to the store, by `time.monotonic`; 0 if it could so far."""
        self._lease = lease_of(worker.storage, worker.scope, worker.lease_ttl)
        self._claim: Claim | None = None
        self._seen_at = self._since = 0.0
        self._newest = -1
        self._is_there = False
        """Whether there is something to restore, or never will be."""
        self._more_under = ""
        """Nonce of the lease whose holder was to add to that; empty if nobody was."""
        self._holder = ""

    def run(self, seconds: float) -> Waited:
        self._look()
        if self._is_there and not self._more_under:
            return Waited()
        started, number, leads = time.monotonic(), 0, False
        try:
            for number, _ in enumerate(polls(seconds, self._worker.waiting)):
                is_free = self._is_free(is_new=number == 0)
                self._look()
                if self._is_done(is_free=is_free):
                    break
                leads = self._may_lead and (self._joins() or (is_free and self._take()))
                if leads or (is_free and self._cannot_lead):
                    break
                if number:
                    self._tell()
        finally:
            self._worker.progress.awaited = None
        return Waited(time.monotonic() - started, self._holder, leads) if number else Waited(leads=leads)

    def _is_free(self, *, is_new: bool) -> bool:
        """Whether nobody holds the lease, or its holder is gone."""
        # A claim vanishes only with its volume, and that may be away for a moment.
        before, self._claim = self._claim, self._lease.newest(self._claim) or self._claim
        claim = self._claim
        if not claim or claim.is_released:
            return True
        self._holder = claim.holder
        if before and claim.number == before.number:
            return time.monotonic() - self._seen_at > claim.ttl
        age = self._age(claim) if is_new else 0.0
        self._seen_at = time.monotonic()
        self._since = self._seen_at - claim.held - age
        return age > claim.ttl

    def _age(self, claim: Claim) -> float:
        if self._is_there:
            return self._age_beside_hit(claim)
        if not self._may_lead or self._is_of_root():
            return 0.0
        try:
            return self._lease.age(claim)
        except OSError as error:
            self._check_trouble(error)
            return 0.0

    def _age_beside_hit(self, claim: Claim) -> float:
        """Where there is something to restore, nothing but time depends on it: a worker that cannot ask the store's
        clock looks at its own.
        """
        if self._worker.may_write:
            with suppress(OSError):
                return self._lease.age(claim)
        try:
            return self._lease.age(claim, time.time_ns())
        except OSError:
            return 0.0

    def _is_of_root(self) -> bool:
        """Whether the lease is this cache root's: another of its processes took it, or one before a restart."""
        return self._holds(self._worker.state.lease())

    def _joins(self) -> bool:
        """Whether this worker leads from now on because its cache root does already."""
        claim = self._claim
        if claim is None or not self._is_of_root():
            return False
        self._lease.nonce = claim.nonce
        with suppress(RuntimeError):  # Without a thread to renew it, it lapses if nobody else of this root renews it.
            flight.join(self._lease)
        return True

    def _is_done(self, *, is_free: bool) -> bool:
        """Whether nobody adds to what there is to restore, or only processes of this cache root do. With those, this
        one leads if it may, and what they compile is here.
        """
        if not self._is_there or is_free or not self._holds(self._more_under):
            return self._is_there
        return not self._may_lead and self._is_of_root()

    def _holds(self, nonce: str) -> bool:
        """Whether the newest claim is of that lease. One that a crash has emptied has no nonce, and is nobody's."""
        claim = self._claim
        return claim is not None and not claim.is_released and claim.nonce == nonce != ""

    def _look(self) -> None:
        """Find out what there is to restore, if that has changed."""
        refs = self._worker.storage.refs
        newest = max(refs.generations(self._worker.scope), default=0)
        if newest != self._newest:
            self._newest, self._more_under = newest, ""
            self._is_there = self._has_wanted(newest) if self._wanted else self._has_any()

    def _has_wanted(self, newest: int) -> bool:
        if newest or not self._worker.storage.below:
            return newest >= self._wanted
        try:
            ref = newest_ref(self._worker.storage, self._worker.scope)
        except (IntegrityError, MissError):  # The restore says what is wrong with it.
            return True
        return ref is not None and ref.generation >= self._wanted

    def _has_any(self) -> bool:
        try:
            _, snapshot = newest_whole(self._worker.storage, self._worker.scope)
        except (IntegrityError, MissError, OSError):  # as above, or does without what cannot be read now
            return True
        # Where no generation can be read, whoever compiles publishes one that can be.
        if snapshot is None or snapshot.ref.state is not RefState.LIVE:
            return False
        self._more_under = snapshot.ref.lease
        return True

    def _take(self) -> bool:
        """Whether this worker compiles from now on."""
        worker, lease = self._worker, self._lease
        if time.monotonic() < self._denied_until:
            return False
        try:
            worker.storage.create()
            taken = lease.take(self._claim)
        except OSError as error:
            self._check_trouble(error)
            taken = False
        if not taken:  # Somebody was faster: a sign of life.
            self._seen_at = time.monotonic()
            return False
        try:
            flight.begin(lease)
            with worker.waiting.visible():
                worker.state.save_lease(lease.nonce)
        except BaseException as error:
            with suppress(OSError):
                flight.release(lease)
            if not isinstance(error, RuntimeError):
                raise
            self._leave_to_others("renewed", error)  # No thread can be started.
            return False
        return True

    def _check_trouble(self, error: OSError) -> None:
        """A worker that may not write to the store waits as a reader does. It seldom tries again: the store may be
        read-only for a moment, for all that wait.
        """
        if error.errno in _DENIED:
            level = logging.DEBUG if self._denied_until else logging.WARNING
            self._denied_until = time.monotonic() + self._lease.ttl
            log.log(
                level,
                "this worker cannot write to the store at %s (%s): it waits for another one to compile %s",
                self._worker.storage.location, error.strerror, self._worker.scope.key,
            )  # fmt: skip
        elif not isinstance(error, StagingLost):
            self._leave_to_others(f"written to the store at {self._worker.storage.location}", error.strerror or error)

    def _leave_to_others(self, what: str, why: object) -> None:
        """Wait for whoever compiles now, and for nobody else: the others may be in the same trouble."""
        self._may_lead, self._cannot_lead = False, True
        log.warning(
            "the lease of %s cannot be %s (%s): kstore waits only for whoever holds it now",
            self._worker.scope.key, what, why,
        )  # fmt: skip

    def _tell(self) -> None:
        claim = self._claim
        holder = claim.holder if claim and not claim.is_released else ""
        self._worker.progress.wait_for(Awaited(holder, self._since if holder else 0.0, max(self._newest, 0)))
