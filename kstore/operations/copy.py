"""Copy what one store has to another: the newest generation of each scope, merged with what is there already."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from kstore.blobs import Layout
from kstore.errors import IntegrityError, MissError, StoreBelowMissing, StoreFormatError, StoreUnavailable, UsageError
from kstore.folders import nearest_writable
from kstore.local import numbered
from kstore.operations.bring import Brought, Target, Withdrawn, bring_in
from kstore.operations.choice import readable
from kstore.operations.incoming import Incoming
from kstore.published.layers import or_below
from kstore.published.leaning import check_supported, fetch_many
from kstore.published.ref import RefState
from kstore.published.refs import Unlisted
from kstore.published.scopes import error_of, every_scope, scopes_of
from kstore.published.snapshot import Snapshot
from kstore.report import SCHEMA
from kstore.scope import Scope, check_key
from kstore.storage import Storage, reporting_trouble
from kstore.store import Store


@dataclass(slots=True)
class CopyReport:
    """What a copy did."""

    source: str
    target: str
    scopes: list[Brought] = field(default_factory=list)
    withdrawn: list[Scope] = field(default_factory=list)
    """Forgotten or quarantined in the target, and left so."""
    missing: list[str] = field(default_factory=list)
    """Why the source has nothing of other scopes that were named: it has forgotten, quarantined or lost them."""
    damaged: list[str] = field(default_factory=list)
    """Why some scopes could not be copied, and the newest generations that were passed over."""
    leaning: list[str] = field(default_factory=list)
    """Why other scopes were not copied: they lean on stores that were not named, which is no damage."""
    unreadable: list[str] = field(default_factory=list)
    """Why others were not copied: they cannot be read just now, or a newer kstore wrote them. That is no damage either.
    """

    def as_json(self) -> dict[str, Any]:
        """For machines."""
        return {
            "schema": SCHEMA,
            "source": self.source,
            "store": self.target,
            "scopes": [brought.as_json() for brought in self.scopes],
            "withdrawn": [scope.describe() for scope in self.withdrawn],
            "missing": self.missing,
            "damaged": self.damaged,
            "leaning": self.leaning,
            "unreadable": self.unreadable,
        }


def copy_keys(
    source: Store, target: Store, keys: Sequence[str] = (), *, gpu: str | None = None, environment: str | None = None
) -> CopyReport:
    """Copy the keys (all if none are given) of every GPU and environment, or of those that are named.

    What the target has forgotten or quarantined is brought back only if its key is named. A scope is left out, and the
    report says why, if

    - it is damaged in the source, or cannot be read just now,
    - it leans on a store that was not named,
    - or a newer kstore wrote it, in either store.

    If only the newest generation is damaged, the one before it is copied; but if the ref of the newest cannot be read,
    only if the key is named.

    Raises:
        MissError: the source has nothing of a key.
        StoreUnavailable, StoreFormatError: a store cannot be used.
        UsageError: both are the same.
    """
    report = CopyReport(source.location, target.location)
    with reporting_trouble(source.location, "read"):
        _check_stores(source, target)
        scopes = _scopes(source, keys, gpu, environment, report)
    for scope in scopes:
        # Only what this scope's packs hold is remembered: memory does not grow with the store.
        source.storage.blobs, target.storage.blobs = (s.storage.blobs_anew() for s in (source, target))
        try:
            _copy(source.storage, target, scope, report, revive=bool(keys))
        except MissError as error:
            report.missing.append(f"{scope} is not copied: {error}")
        except IntegrityError as error:
            report.damaged.append(f"{scope} is not copied: {error}")
        except StoreBelowMissing as error:
            report.leaning.append(f"{scope} is not copied: {error}")
        except _ScopeUnreadable as error:
            report.unreadable.append(f"{scope} is not copied: {error}")
    return report


class _ScopeUnreadable(StoreUnavailable):
    """Something of one scope cannot be read: other scopes may be readable."""


@contextmanager
def _reading(source: Storage) -> Iterator[None]:
    try:
        with reporting_trouble(source.location, "read"):
            yield
    except StoreBelowMissing:
        raise
    except (StoreUnavailable, StoreFormatError) as error:
        raise _ScopeUnreadable(str(error)) from error


def _check_stores(source: Store, target: Store) -> None:
    if not source.storage.settings:
        source.storage.open_existing()
    if os.path.realpath(source.location) == os.path.realpath(target.location):
        raise UsageError(f"{source.location} and {target.location} are the same store")


def _scopes(
    source: Store, keys: Sequence[str], gpu: str | None, environment: str | None, report: CopyReport
) -> list[Scope]:
    """What to copy. The report is told what cannot be listed."""
    scopes, unlisted = list[Scope](), list[Unlisted]()
    if keys:
        for key in dict.fromkeys(map(check_key, keys)):
            try:
                scopes += scopes_of(source.storage, key, gpu, environment, unlisted=unlisted)
            except StoreUnavailable as error:  # All of it is hidden: other keys may not be.
                report.unreadable.append(f"{key} is not copied: {error}")
    else:
        every, hidden = every_scope(source.storage)
        scopes += (scope for scope in every if scope.is_of(gpu, environment))
        unlisted += (folder for folder in hidden if gpu in (None, folder.gpu))
    report.unreadable += [f"{folder} is not copied: {error_of(source.storage, folder)}" for folder in unlisted]
    return scopes


def _copy(source: Storage, target: Store, scope: Scope, report: CopyReport, *, revive: bool) -> None:
    with _reading(source):
        snapshot, passed_over = newest_live(source, scope)
        if passed_over and not revive:
            source.refs.newest(scope)  # Raises if it is damaged: it may have withdrawn the key.
    if passed_over:
        report.damaged.append(passed_over)
    if snapshot is None:
        if revive:
            raise MissError("it was forgotten or quarantined there, or a repair found nothing left of it")
        return
    with writing(target):
        fetch = partial(_fetch, source, snapshot)
        incoming = Incoming(snapshot.checked, snapshot.ref.manifest, fetch, source.location)
        try:
            report.scopes.append(bring_in(target_of(target, scope), incoming, revives=revive))
        except Withdrawn:
            report.withdrawn.append(scope)
        except StoreFormatError as error:  # Of a generation: the store itself has just been opened.
            raise _ScopeUnreadable(f"in {target.location}, {error}") from error


def _fetch(source: Storage, snapshot: Snapshot, wanted: Mapping[bytes, int]) -> Iterator[tuple[bytes, memoryview]]:
    with _reading(source):
        check_supported(source, snapshot, wanted)
        yield from fetch_many(source, (snapshot.ref,), wanted)


def newest_live(storage: Storage, scope: Scope) -> tuple[Snapshot | None, str]:
    """The newest generation that is whole, and what was passed over for it, in words. The generation is None if there
    is none, or if its key was forgotten or quarantined, or a repair found nothing left of it.

    Raises:
        IntegrityError: none of its generations can be read.
    """
    newest, found = storage.newest_whole(scope)
    snapshot = readable(newest, or_below(storage, scope, found), scope)
    is_newest = newest == (found.ref.generation if found else 0)
    passed_over = "" if is_newest else f"generation {newest} of {scope} is damaged, and passed over"
    return snapshot if snapshot and snapshot.ref.state is RefState.LIVE else None, passed_over


def target_of(store: Store, scope: Scope) -> Target:
    """A scope of a store, for somebody who has no cache root but would have one on this node."""
    folder = nearest_writable(store.settings.cache_root or str(numbered.NUMBERED_ROOTS))
    layout = store.settings.layout or (None if folder else Layout.PACKED)  # there is nowhere to link to
    return Target(store.storage, scope, layout, folder, store.progress)


@contextmanager
def writing(store: Store) -> Iterator[None]:
    """Look at the store anew, and if it cannot be written, say which store that is.

    Raises:
        StoreUnavailable: it cannot be written, or must not be.
    """
    store.settings.check_writes(f"write to the store at {store.location}")
    with reporting_trouble(store.location, "write to"):
        store.storage.open()
        yield
