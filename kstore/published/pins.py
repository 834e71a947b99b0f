"""Pins: generations that gc keeps because a user says so."""

from __future__ import annotations

from kstore.errors import MissError
from kstore.published.layers import in_charge
from kstore.scope import Scope
from kstore.storage import Storage


def pin(storage: Storage, scope: Scope, generation: int) -> None:
    """Keep a generation whatever gc is told.

    Raises:
        MissError: there is no such generation, or it is in a store below, from which gc removes nothing.
    """
    holder = in_charge(storage, scope)
    if holder is not storage:
        raise MissError(
            f"generation {generation} of {scope} is in {holder.location}, which is only read; "
            "to pin it for the gc of that store, name that store alone"
        )
    storage.refs.pin(scope, generation)


def unpin(storage: Storage, scope: Scope, generation: int) -> None:
    """Let gc decide about a generation again, or remove the pin that is left of one that is gone.

    Raises:
        MissError: there is no such pin.
    """
    if generation not in storage.refs.pins(scope):
        raise MissError(f"generation {generation} of {scope} is not pinned; `kstore show {scope.key}` says which are")
    storage.refs.unpin(scope, generation)
