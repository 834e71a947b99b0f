"""One gc: retention → mark → sweep, and the packs that are worth rewriting."""

from __future__ import annotations

import logging
import time
from contextlib import ExitStack
from functools import partial

from kstore.damaged import sweep_damaged
from kstore.errors import StoreUnavailable
from kstore.far import ask_each
from kstore.gc.cost import size_of
from kstore.gc.digests import DigestSet
from kstore.gc.inventory import Inventory
from kstore.gc.mark import Marked, mark
from kstore.gc.policy import Policy
from kstore.gc.repack import repack, worth_rewriting
from kstore.gc.report import GcReport, GcStatus
from kstore.gc.retention import Retention
from kstore.gc.room import Room, alone, full, store_time
from kstore.gc.sweep import Sweeper
from kstore.lease import Lease
from kstore.progress import Progress
from kstore.ranks.board import sweep_notes
from kstore.report import Count
from kstore.storage import Storage
from kstore.words import plural

log = logging.getLogger(__name__)

_LEASE = "@gc"
_LEASE_TTL = 3600.0
"""Seconds after which a gc that still runs no longer keeps others from starting."""


def collect(storage: Storage, policy: Policy, *, dry_run: bool = False, progress: Progress | None = None) -> GcReport:
    """Collect garbage once. With `policy.offline`, one phase follows the other, even if another gc seems to be at work:
    that one may have been killed.

    Raises:
        UsageError: the policy's grace is too short.
        StoreFormatError, StoreUnavailable: there is no store; or there is no room for what must be written first, and
            nothing that may be deleted.
        OSError: the store cannot be read or written.
    """
    started = time.perf_counter()
    report = GcReport(store=storage.location, dry_run=dry_run, grace=policy.grace_of(storage.grace))
    progress, room = progress or Progress(), Room()
    if not storage.settings:
        storage.open_existing()
    lease = Lease(storage, _LEASE, _LEASE_TTL)
    with ExitStack() as stack:
        if dry_run or stack.enter_context(alone(lease, room)) or policy.offline:
            _Collection(storage, policy, report, progress, room).run()
        else:
            claim = lease.newest()
            report.status, report.holder = GcStatus.BUSY, claim.holder if claim else ""
    if room.lacking and not dry_run and not (report.deleted.files or report.condemned.files):
        raise full(storage, room, report)
    report.no_room = room.lacking
    report.seconds = time.perf_counter() - started
    return report


class _Collection:
    """One gc of one store, which writes into its report what it does."""

    def __init__(self, storage: Storage, policy: Policy, report: GcReport, progress: Progress, room: Room) -> None:
        self._storage = storage
        self._policy = policy
        self._report = report
        self._progress = progress
        self._room = room

    def run(self) -> None:
        now = self._now()
        if not self._report.dry_run:
            sweep_notes(self._storage.backend, self._report.grace_before(now))
        gone = Retention(self._storage, self._policy, self._report, self._room, now).run()
        self._collect(now, gone)
        if self._policy.offline and self._report.status is GcStatus.COLLECTED:
            self._collect_condemned()

    def _collect_condemned(self) -> None:
        """Delete what was just condemned as well: nobody uses the store."""
        report = self._report
        if report.dry_run:
            report.deleted, report.condemned = report.deleted + report.condemned, Count()
        else:
            self._collect(store_time(self._storage, self._room), gone=set())

    def _now(self) -> int:
        try:
            return store_time(self._storage, self._room)
        except OSError as error:
            raise StoreUnavailable(
                f"cannot tell the time of the store at {self._storage.location}: {error.strerror or error}; gc makes a "
                "file there for that, even in a dry run: run it as a user who can write"
            ) from error

    def _collect(self, now: int, gone: set[str]) -> None:
        with ExitStack() as open_sets:
            loose, packed, leant, lacking, there, listed = (open_sets.enter_context(DigestSet()) for _ in range(6))
            before = self._report.grace_before(now)
            ripe = now if self._policy.offline else before
            sweeper = Sweeper(self._storage.backend, listed, self._room, ripe, dry_run=self._report.dry_run)
            sweeper.choose_lists()
            inventory = Inventory(self._storage.backend, there)
            marked = Marked(there, loose, packed, leant, lacking)
            mark(self._storage, gone, marked, self._progress)
            if marked.unreadable:
                self._report.status, self._report.unreadable = GcStatus.INCOMPLETE, marked.unreadable
                unread = plural(len(marked.unreadable), "generation")
                log.warning("nothing is deleted, because %s cannot be read", unread)
                return
            sweeper.sweep(marked, inventory)
            if not self._report.dry_run:
                sweep_damaged(self._storage.backend, marked.needs, before)
            self._count(sweeper, marked)
            if self._report.status is GcStatus.COLLECTED and not self._room.lacking:
                self._repack(marked)

    def _count(self, sweeper: Sweeper, marked: Marked) -> None:
        report, swept = self._report, sweeper.swept
        report.deleted += swept.deleted
        report.condemned, report.waiting = swept.condemned, swept.waiting
        report.live = self._live(marked)
        if swept.unreadable:
            report.status, report.lists = GcStatus.INCOMPLETE, swept.unreadable

    def _live(self, marked: Marked) -> Count:
        sizes = (size() for _, size in ask_each(partial(size_of, self._storage), {*marked.packs, *marked.sought}))
        return Count.of([*filter(None, sizes)]) + marked.found

    def _repack(self, marked: Marked) -> None:
        groups = worth_rewriting(self._storage, marked)
        is_dry = self._report.dry_run
        self._report.rewritten += sum(map(len, groups)) if is_dry else repack(self._storage, groups, marked)
