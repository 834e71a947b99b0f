"""One gc: policy → mark → sweep, and the packs that are worth rewriting."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cache, partial

from kstore.damaged import sweep_damaged
from kstore.errors import IntegrityError, MissError, StoreUnavailable
from kstore.gc.cost import Costs, size_of
from kstore.gc.digests import DigestSet
from kstore.gc.mark import Marked, is_whole, mark
from kstore.gc.policy import (
    Decision,
    Generation,
    History,
    Policy,
    Why,
    by_worth,
    decide,
    is_passing,
    over_budget,
    unused,
)
from kstore.gc.repack import repack, worth_rewriting
from kstore.gc.report import GcReport, GcStatus
from kstore.gc.room import Room, alone, full, store_time
from kstore.gc.sweep import Sweeper
from kstore.lease import Lease
from kstore.progress import Progress
from kstore.published.generations import publish_empty
from kstore.published.ref import RefState, ref_name
from kstore.ranks.board import sweep_notes
from kstore.report import Count
from kstore.scope import Scope
from kstore.stats.pages import sweep_stats
from kstore.storage import Storage
from kstore.used import last_used, sweep_marks
from kstore.words import plural

log = logging.getLogger(__name__)

_SECOND = 1_000_000_000
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
            sweep_notes(self._storage.backend, self._grace_before(now))
        self._collect(now, gone=self._retain(now))
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

    def _grace_before(self, now: int) -> int:
        return now - int(self._report.grace * _SECOND)

    def _collect(self, now: int, gone: set[str]) -> None:
        with ExitStack() as open_sets:
            loose, packed, leant, lacking, there, listed = (open_sets.enter_context(DigestSet()) for _ in range(6))
            before = self._grace_before(now)
            ripe = now if self._policy.offline else before
            sweeper = Sweeper(self._storage.backend, listed, self._room, ripe, dry_run=self._report.dry_run)
            sweeper.prepare(there)
            marked = Marked(there, loose, packed, leant, lacking)
            mark(self._storage, gone, marked, self._progress)
            if marked.unreadable:
                self._report.status, self._report.unreadable = GcStatus.INCOMPLETE, marked.unreadable
                unread = plural(len(marked.unreadable), "generation")
                log.warning("nothing is deleted, because %s cannot be read", unread)
                return
            sweeper.sweep(marked)
            if not self._report.dry_run:
                sweep_damaged(self._storage.backend, marked.needs, before)
            self._count(sweeper, marked)
            if self._report.status is GcStatus.COLLECTED and not self._room.lacking:
                self._repack(marked)

    # ---- Which generations stay

    def _retain(self, now: int) -> set[str]:
        """Remove the refs of the generations that go; returns their names."""
        histories = {history.scope: history for history in self._histories()}
        if not self._report.dry_run:
            there = {scope for scope, history in histories.items() if not _is_forgotten(history)}
            sweep_stats(self._storage.backend, there.__contains__)
            sweep_marks(self._storage.backend, there, self._grace_before(now))
        for history in unused(histories.values(), self._policy, now):
            self._forget(history)
        decisions = [decision for history in histories.values() for decision in self._decide(history, now)]
        decisions = self._fit(histories, decisions)
        gone = {_name(decision) for decision in decisions if not decision.stays and self._drop(decision)}
        self._report.decisions = decisions
        return gone

    def _decide(self, history: History, now: int) -> list[Decision]:
        """Decide about the generations of one scope. Whether they can be read is asked only if one of them may go."""
        judge = partial(decide, history, self._policy.keep, self._report.grace, now)
        decisions = judge()
        if self._policy.max_size is None and all(decision.stays for decision in decisions):
            return decisions
        return judge(cache(lambda generation: is_whole(self._storage, history.scope, generation.number)))

    def _histories(self) -> Iterator[History]:
        for scope in self._storage.refs.scopes():
            if not self._report.dry_run:
                self._storage.refs.finish_drops(scope)
            pins = self._storage.refs.pins(scope)
            found = [self._generation(scope, number, pins) for number in self._storage.refs.generations(scope)]
            generations = tuple(generation for generation in found if generation)
            if generations:
                newest = generations[-1]
                used_at = max(last_used(self._storage.backend, scope), newest.since or newest.published_at)
                yield History(scope, generations, used_at)

    def _generation(self, scope: Scope, number: int, pins: set[int]) -> Generation | None:
        try:
            published_at = self._storage.refs.published_at(scope, number)
            ref = self._storage.refs.get(scope, number)
        except IntegrityError:
            return Generation(number, published_at, number in pins)
        except (MissError, FileNotFoundError):
            return None
        return Generation(number, published_at, number in pins, ref.manifest, ref.state, ref.since)

    def _fit(self, histories: dict[Scope, History], decisions: list[Decision]) -> list[Decision]:
        """Give up what is over the size limit."""
        if self._policy.max_size is None:
            return decisions
        forgotten = {*self._report.forgotten}
        with Costs(self._storage) as costs:
            worth = by_worth(histories, (d for d in decisions if d.scope not in forgotten))
            counted = (d for d in worth if not is_passing(d, histories[d.scope]))
            priced = ((d, costs.of(d.scope, d.generation.number)) for d in counted)
            limit, allow_live = self._policy.max_size, self._policy.allow_live
            taken, self._report.excess = over_budget(priced, histories, limit, allow_live, costs.keep)
        for decision in taken:
            if decision.why is Why.NEWEST:
                self._forget(histories[decision.scope])
        over = {_name(decision) for decision in taken if decision.why is not Why.NEWEST}
        return [Decision(d.scope, d.generation, Why.SIZE, False) if _name(d) in over else d for d in decisions]

    def _forget(self, history: History) -> None:
        """Forget a key, unless it was restored, pinned or committed since it was looked at, or its newest generation
        cannot be read: then a store below may have what is in use, and that would be hidden.
        """
        scope, upon = history.scope, history.newest.number
        pins = self._storage.refs.pins(scope)  # One may be left of a generation that is gone.
        is_pinned = any(generation.number in pins for generation in history.generations)
        if is_pinned or last_used(self._storage.backend, scope) > history.used_at:
            return
        if not is_whole(self._storage, scope, upon):
            return
        with self._room.needed():
            if not (self._report.dry_run or publish_empty(self._storage, scope, RefState.FORGOTTEN, upon=upon)):
                return
            if scope not in self._report.forgotten:
                self._report.forgotten.append(scope)

    def _drop(self, decision: Decision) -> bool:
        return self._report.dry_run or self._storage.refs.drop(decision.scope, decision.generation.number)

    # ---- What becomes of the rest

    def _count(self, sweeper: Sweeper, marked: Marked) -> None:
        report, swept = self._report, sweeper.swept
        report.deleted += swept.deleted
        report.condemned, report.waiting = swept.condemned, swept.waiting
        report.live = self._live(marked)
        if swept.unreadable:
            report.status, report.lists = GcStatus.INCOMPLETE, swept.unreadable

    def _live(self, marked: Marked) -> Count:
        sizes = [size for pack in {*marked.packs, *marked.sought} if (size := size_of(self._storage, pack))]
        return Count(len(sizes), sum(sizes)) + marked.found

    def _repack(self, marked: Marked) -> None:
        groups = worth_rewriting(self._storage, marked)
        is_dry = self._report.dry_run
        self._report.rewritten += sum(map(len, groups)) if is_dry else repack(self._storage, groups, marked)


def _is_forgotten(history: History) -> bool:
    return history.newest.state is RefState.FORGOTTEN


def _name(decision: Decision) -> str:
    return ref_name(decision.scope, decision.generation.number)
