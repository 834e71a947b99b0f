"""The scopes of a key, and what to say if it has none."""

from __future__ import annotations

from kstore.errors import MissError, StoreUnavailable
from kstore.published.layers import has_generations, in_charge, scopes
from kstore.published.refs import Unlisted
from kstore.scope import Scope, choices
from kstore.storage import Storage, reporting_trouble


def scopes_of(
    storage: Storage, key: str, gpu: str | None, environment: str | None, suffix: str = "",
    unlisted: list[Unlisted] | None = None,
) -> list[Scope]:  # fmt: skip
    """Every scope of `key` that has generations, even forgotten ones; only those of `gpu` and `environment` if these
    are given.

    `suffix` is the ending of the options that choose one. With `unlisted`, folders that hide some of these scopes are
    appended to it, and a scope that cannot be listed itself is one of those that are returned.

    Raises:
        MissError: there is none.
        StoreUnavailable: there is no store, or it cannot be read.
    """
    hidden: list[Unlisted] = []

    def pass_over(folder: Unlisted) -> None:
        if unlisted is None and gpu in (None, folder.gpu):
            raise folder.error
        hidden.append(folder)

    def may_have_generations(scope: Scope) -> bool:
        try:
            return has_generations(storage, scope)
        except OSError:
            if unlisted is None:
                raise
            return True

    with reporting_trouble(storage.location, "read"):
        named = sorted(scopes(storage, key, pass_over))
        found = [scope for scope in named if scope.is_of(gpu, environment) and may_have_generations(scope)]
        if found:
            if unlisted is not None:
                unlisted += (folder for folder in hidden if gpu in (None, folder.gpu))
            return found
        if hidden:
            raise hidden[0].error
        every = [scope for scope in named if has_generations(storage, scope)]
        if not (every or storage.below.there):
            storage.open_existing()
    if not every:
        raise missing(storage, key)
    wanted = " and ".join(filter(None, (gpu, environment)))
    raise MissError(f"{key} is not published for {wanted}; choose: {choices(every, suffix)}")


def every_scope(storage: Storage, key: str | None = None) -> tuple[list[Scope], list[Unlisted]]:
    """Every scope with a folder, of one key if given, and which folders of keys cannot be listed.

    Raises:
        StoreUnavailable: none can be listed.
    """
    unlisted: list[Unlisted] = []
    with reporting_trouble(storage.location, "read"):
        return list(scopes(storage, key, unlisted.append)), unlisted


def error_of(storage: Storage, folder: Unlisted) -> StoreUnavailable:
    """The error of a command that goes on without a folder of keys."""
    try:
        with reporting_trouble(storage.location, "read"):
            raise folder.error
    except StoreUnavailable as error:
        return error


def missing(storage: Storage, key: str) -> MissError:
    """The error of a command that finds nothing of `key`."""
    return MissError(f"nothing is published for {key} in {storage.location}; `kstore ls` lists what is")


def missing_above(storage: Storage, key: str) -> MissError:
    """The error of a command that counts the first store alone, and finds nothing of `key` there.

    Raises:
        MissError: no store below has it either.
        StoreUnavailable: it may be hidden.
    """
    found = scopes_of(storage, key, None, None)
    with reporting_trouble(storage.location, "read"):
        holder = in_charge(storage, found[0])
    if holder is storage:
        return missing(storage, key)
    return MissError(
        f"{storage.location} holds nothing of {key}, which is in {holder.location}; to count it there, name that "
        "store alone"
    )
