"""Which generation a restore brings in: the newest, the requested one, or a seed's."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from kstore.errors import IntegrityError, StoreUnavailable
from kstore.operations.request import Request
from kstore.published.layers import newest_there, ref_of
from kstore.published.ref import RefState
from kstore.published.snapshot import Snapshot
from kstore.report import RestoreStatus
from kstore.scope import Scope
from kstore.worker import Worker


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
    snapshot = readable(*newest_there(worker.storage, scope), scope)
    if snapshot and snapshot.ref.state is not RefState.LIVE:
        return Choice(withdrawn=snapshot.ref.withdrawn)
    return Choice(snapshot, RestoreStatus.RESTORED) if snapshot else Choice()


def readable(generation: int, snapshot: Snapshot | None, scope: Scope) -> Snapshot | None:
    """The newest generation that is whole, where `generation` is the number of the newest; None if there is none.

    Raises:
        IntegrityError: there are generations, and none can be read.
    """
    if generation and snapshot is None:
        raise IntegrityError(f"no generation of {scope} can be read; see `kstore verify {scope.key}`")
    return snapshot
