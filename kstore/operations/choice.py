"""Which generation a restore brings in: the newest, the requested one, or a seed's."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from kstore.errors import IntegrityError, MissError, StoreUnavailable
from kstore.operations.request import Request
from kstore.published.layers import newest_there, ref_of
from kstore.published.ref import Ref, RefState
from kstore.published.refs import Refs
from kstore.published.snapshot import Snapshot
from kstore.report import RestoreStatus
from kstore.scope import Scope
from kstore.worker import Worker

log = logging.getLogger(__name__)

_PATIENCE = 5.0
"""Seconds. A store that takes longer to say that something cannot be read is asked for nothing else: the job waits."""


class Choice(NamedTuple):
    """What is to be restored."""

    snapshot: Snapshot | None = None
    """None if there is nothing to restore."""
    status: RestoreStatus = RestoreStatus.MISS
    """What a restore of it is called."""
    withdrawn: str = ""
    """What was done to the key, `forgotten` or `quarantined`, so that there is nothing to restore."""


def choose(worker: Worker, request: Request) -> Choice:
    """What there is to restore."""
    storage = worker.storage
    if request.generation is not None:
        return Choice(storage.snapshot(ref_of(storage, worker.scope, request.generation)), RestoreStatus.RESTORED)
    choice = _newest(worker, worker.scope)
    if choice.snapshot is None and request.seed is not None:
        seed = _newest(worker, replace(worker.scope, key=request.seed))
        choice = seed._replace(status=RestoreStatus.SEEDED) if seed.snapshot else choice
    if choice.snapshot is None and storage.trouble:
        raise StoreUnavailable(storage.trouble)
    return choice


def _newest(worker: Worker, scope: Scope) -> Choice:
    """The newest generation that is whole."""
    snapshot = readable(*newest_there(worker.storage, scope, partial(_newest_here, worker, scope)), scope)
    if snapshot and snapshot.ref.state is not RefState.LIVE:
        return Choice(withdrawn=snapshot.ref.withdrawn)
    return Choice(snapshot, RestoreStatus.RESTORED) if snapshot else Choice()


def _newest_here(worker: Worker, scope: Scope) -> tuple[int, Snapshot | None]:
    """As `Storage.newest_whole`; if that cannot be read now, the next best one."""
    until = time.monotonic() + _PATIENCE
    try:
        return worker.storage.newest_whole(scope)
    except OSError as trouble:
        snapshot = _next_best(worker, scope, trouble, until)
        return snapshot.ref.generation, snapshot


def _next_best(worker: Worker, scope: Scope, trouble: OSError, until: float) -> Snapshot:
    """The newest generation, if it can be read by now, or else the last one that can, of those that it grew from.

    Raises:
        OSError: there is none.
    """
    storage = worker.storage
    for number, ref in enumerate(_newest_and_ancestors(storage.refs, scope, _oldest(worker, scope), until)):
        with suppress(OSError, IntegrityError):
            snapshot = storage.snapshot(ref)
            _ = snapshot.checked
            if number:
                log.warning("passed over: the newest generation of %s cannot be read now: %s", scope, trouble)
            return snapshot
    raise trouble


def _oldest(worker: Worker, scope: Scope) -> int:
    """The generation that the cache root has; 0 if it has none of that scope. A store below has numbers of its own."""
    base = worker.base(worker.state.load())
    return base.ref.generation if base and base.ref.scope == scope and not base.ref.depth else 0


def _newest_and_ancestors(refs: Refs, scope: Scope, oldest: int, until: float) -> Iterator[Ref]:
    """The newest generation, and then those that it grew from, the last one first, down to the `oldest`. After `until`
    no other one is looked at.

    None from before a rollback, or before the key was withdrawn, is among these: somebody had a reason. If the newest
    ref is damaged, nobody knows what it would have been.
    """
    newest: Ref | None = None
    if time.monotonic() < until:
        with suppress(IntegrityError, MissError):
            newest = refs.newest(scope)
    if newest is None:
        return
    yield newest
    first = max(oldest, newest.generation - len(newest.lineage))
    for generation in reversed(refs.generations(scope)):
        if time.monotonic() > until:
            return
        if first <= generation < newest.generation:
            with suppress(OSError, MissError, IntegrityError):
                ref = refs.get(scope, generation)
                if ref.state is RefState.LIVE and newest.grew_from(ref):
                    yield ref


def readable(generation: int, snapshot: Snapshot | None, scope: Scope) -> Snapshot | None:
    """The newest generation that is whole, where `generation` is the number of the newest; None if there is none.

    Raises:
        IntegrityError: there are generations, and none can be read.
    """
    if generation and snapshot is None:
        raise IntegrityError(f"no generation of {scope} can be read; see `kstore verify {scope.key}`")
    return snapshot
