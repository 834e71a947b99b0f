"""The scopes of a key, and what to say if it has none."""

from __future__ import annotations

from kstore.errors import MissError
from kstore.published.layers import has_generations, scopes
from kstore.scope import Scope, choices
from kstore.storage import Storage, reporting_trouble


def scopes_of(storage: Storage, key: str, gpu: str | None, environment: str | None, suffix: str = "") -> list[Scope]:
    """Every scope of `key` that has generations, even forgotten ones; only those of `gpu` and `environment` if these
    are given.

    `suffix` is the ending of the options that choose one.

    Raises:
        MissError: there is none.
        StoreUnavailable: there is no store, or it cannot be read.
    """
    with reporting_trouble(storage.location, "read"):
        named = [scope for scope in scopes(storage, under=key) if scope.key == key]
        every = sorted(scope for scope in named if has_generations(storage, scope))
        if not (every or storage.below.there):
            storage.open_existing()
    if not every:
        raise missing(storage, key)
    found = [scope for scope in every if scope.is_of(gpu, environment)]
    if not found:
        wanted = " and ".join(filter(None, (gpu, environment)))
        raise MissError(f"{key} is not published for {wanted}; choose: {choices(every, suffix)}")
    return found


def missing(storage: Storage, key: str) -> MissError:
    """The error of a command that finds nothing of `key`."""
    return MissError(f"nothing is published for {key} in {storage.location}; `kstore ls` lists what is")
