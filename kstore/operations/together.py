"""Restore on all ranks of a job: rank 0 chooses the generation, and all restore exactly that one, or none does.

A rank says that it is ready when everything is fetched, verified and staged beside its place. Then only renames are
left.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

from kstore.errors import IntegrityError, KstoreError, StoreUnavailable
from kstore.local.locked import LOCK_TIMEOUT, Changed
from kstore.local.state import StateFolder
from kstore.operations.choice import Choice, choose
from kstore.operations.request import Request, restore_report
from kstore.operations.restore import mark_restored, place, remember_miss, report_placed, wait_for
from kstore.operations.slips import warn_of_another_key
from kstore.operations.takeover import lock_and_take_over
from kstore.operations.wait import Waited
from kstore.published.layers import find
from kstore.published.snapshot import Snapshot
from kstore.ranks import Agreement, Board, GroupBoard, Offer, Rank, StoreBoard, Superseded
from kstore.ranks.agreement import describe
from kstore.report import RestoreReport, RestoreStatus
from kstore.storage import Storage
from kstore.worker import Worker


class Refused(Exception):
    """The verdict is that no rank restores."""


def find_board(rank: Rank, storage: Storage, *, may_write: bool) -> Board:
    """Where the ranks of a job leave notes for each other.

    Raises:
        StoreUnavailable: they would use the store, which this worker may not write.
    """
    if rank.group_store:
        return GroupBoard(rank.group_store)
    if not may_write:
        raise StoreUnavailable(
            "without a process group ranks agree through the store, and this worker's mode is `read`; leave out "
            "--group, or in Python initialise torch.distributed before, or restore a `generation` without `group`"
        )
    return StoreBoard(storage)


def restore_together(ready: Callable[[], Worker], agreement: Agreement, request: Request) -> RestoreReport:
    """Restore as one rank of a job. `ready` makes the worker; the other ranks are told about what it raises.

    Only rank 0 waits for another job that compiles, or leads: the other ranks wait for rank 0.

    Raises:
        WaitTimeout: the other ranks could not be waited for any longer.
        KstoreError, OSError: this rank cannot restore.
    """
    started = time.perf_counter()
    rank = _RankRestore(agreement, request)
    with rank.noting_trouble():
        rank.worker = ready()
        if agreement.rank == 0:
            rank.choose()
    while True:
        with suppress(Superseded):
            report = rank.run()
            seconds = time.perf_counter() - started - rank.waited.seconds
            return replace(report, seconds=seconds, **rank.waited.as_reported())


class _RankRestore:
    """What one rank does."""

    def __init__(self, agreement: Agreement, request: Request) -> None:
        self.worker: Worker | None = None
        self.waited = Waited()
        self._agreement = agreement
        self._request = request
        self._choice = Choice()
        self._trouble: Exception | None = None
        self._has_voted = False

    @contextmanager
    def noting_trouble(self) -> Iterator[None]:
        """Keep what is raised: the other ranks must hear of it before this rank gives up."""
        try:
            yield
        except Exception as error:
            self._trouble = error

    def choose(self) -> None:
        """For rank 0 only."""
        assert self.worker
        self.waited = wait_for(self.worker, self._request)
        warn_of_another_key(self.worker, self._request)
        self._choice = choose(self.worker, self._request)
        if self._choice.snapshot:
            mark_restored(self.worker, self._choice.snapshot)

    def run(self) -> RestoreReport:
        """Answer one offer, or make it."""
        is_rank_0 = self._agreement.rank == 0
        offer = self._agreement.offer(_dump_choice(self._choice)) if is_rank_0 else self._agreement.read_offer()
        self._has_voted = False
        try:
            if self._trouble:
                raise self._trouble
            assert self.worker
            choice = self._choice if is_rank_0 else _read_choice(self.worker, offer, self._request.seed)
            return self._restore(self.worker, choice, offer)
        except Superseded:
            raise
        except Exception as error:
            if not self._has_voted:
                with suppress(KstoreError):  # This rank's own trouble says more than that nobody answered.
                    self._vote(describe(error))
            if self.worker:
                lock_and_take_over(self.worker)
            raise

    def _restore(self, worker: Worker, choice: Choice, offer: Offer) -> RestoreReport:
        try:
            if choice.snapshot is None:
                error = self._vote()  # Nobody waits for a root that somebody else has.
                with suppress(OSError, KstoreError), worker.state.locked():
                    remember_miss(worker)
                return restore_report(worker, RestoreStatus.MISS, withdrawn=choice.withdrawn, error=error)
            if not offer.uniform:
                self._vote()
                return _place_alone(worker, choice.snapshot, choice.status)
            return self._place_in_turn(worker, choice.snapshot, choice.status, offer)
        except Refused as reason:
            lock_and_take_over(worker)
            return restore_report(worker, RestoreStatus.MISS, error=str(reason))

    def _place_in_turn(self, worker: Worker, snapshot: Snapshot, status: RestoreStatus, offer: Offer) -> RestoreReport:
        """One rank of each cache root stages the artifacts; the others are as ready as it is.

        No rank holds the root while it waits for the others: one of them may have to commit to it first.
        """
        turn = worker.state.turn(offer.nonce)
        with turn.taken() as is_ours:
            if is_ours:
                with suppress(Changed), worker.state.locked():
                    return place(worker, snapshot, status, partial(self._agree_without, worker.state))
                return _place_alone(worker, snapshot, status)
        self._agree()
        turn.wait(LOCK_TIMEOUT)
        return report_placed(worker, snapshot, status) or _place_alone(worker, snapshot, status)

    def _agree_without(self, state: StateFolder) -> None:
        with state.lent():
            self._agree()

    def _agree(self) -> None:
        assert self.worker
        self.worker.waiting.check()  # A restore that was given up is not ready.
        self._vote()

    def _vote(self, trouble: str = "") -> str:
        """Returns what kept other ranks from restoring, if it did not keep all of them from it."""
        self._has_voted = True
        verdict = self._agreement.vote(trouble)
        if not verdict.go and not trouble:
            raise Refused(verdict.why)
        return verdict.why


def _place_alone(worker: Worker, snapshot: Snapshot, status: RestoreStatus) -> RestoreReport:
    with worker.state.locked():
        return place(worker, snapshot, status)


def _dump_choice(choice: Choice) -> dict[str, Any]:
    """For the other ranks."""
    if choice.snapshot is None:
        return {"withdrawn": choice.withdrawn} if choice.withdrawn else {}
    ref = choice.snapshot.ref
    what = {"scope": str(ref.scope), "key": ref.scope.key, "generation": ref.generation}
    return {**what, "manifest": ref.manifest.hex(), "status": choice.status}


def _read_choice(worker: Worker, offer: Offer, seed: str | None) -> Choice:
    """What rank 0 has chosen, from this rank's store.

    Raises:
        MissError, IntegrityError: it is not there, or something else is there instead.
        StoreUnavailable: rank 0 has other hardware, other software, or another store.
    """
    wanted: Mapping[str, Any] = offer.choice
    if not wanted.keys() - {"withdrawn"}:
        return Choice(withdrawn=str(wanted.get("withdrawn", "")))
    kinds = [type(wanted.get(name)) for name in ("key", "scope", "generation", "manifest")]
    if kinds != [str, str, int, str] or wanted.get("status") not in list(RestoreStatus):
        raise StoreUnavailable("what rank 0 wrote names no generation")
    scope = replace(worker.scope, key=seed) if seed and seed == wanted["key"] else worker.scope
    if str(scope) != wanted["scope"]:
        raise StoreUnavailable(f"this is a rank of {scope}, and rank 0 restores {wanted['scope']}")
    snapshot = worker.storage.snapshot(find(worker.storage, scope, wanted["generation"], wanted["manifest"]))
    if snapshot.ref.manifest.hex() != wanted["manifest"]:
        raise IntegrityError(f"generation {wanted['generation']} of {scope} is not the one that rank 0 has")
    return Choice(snapshot, RestoreStatus(wanted["status"]))
