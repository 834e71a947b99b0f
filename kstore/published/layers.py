"""Stores below the one that is written, such as those that an image brings along. They are only read.

The store in charge of a scope is the first that has a readable generation of it. So an empty generation above, of a
key that was forgotten or quarantined, hides what is below. One that says that a repair found nothing left of a key
hides nothing: nobody took that key out.

A store numbers its own generations. A generation that grew from one in a store below names the digest of that one's
manifest in its own manifest, and has a line that begins with 0.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from kstore.deadline import Waiting, within
from kstore.errors import IntegrityError, KstoreError, MissError, StoreFormatError, StoreUnavailable, WaitTimeout
from kstore.far import ask_each
from kstore.published.ref import RefState
from kstore.published.snapshot import Snapshot
from kstore.told import warn_once

if TYPE_CHECKING:
    from kstore.blobs import BlobStore
    from kstore.local.state import Base
    from kstore.published.ref import Ref
    from kstore.published.refs import PassOver, Unlisted
    from kstore.scope import Scope
    from kstore.storage import Storage

Found = TypeVar("Found")

log = logging.getLogger(__name__)

PATIENCE = 30.0
"""Seconds after which a store that does not answer is passed over, if there is one below it; less if the worker's
`timeout` is short."""
BASE = "base"
"""Where a manifest names the generation below that its line began with."""


class Below:
    """The stores below one, in their order. Nothing is ever written to them, and one with trouble is passed over."""

    def __init__(self, above: Storage, storages: Sequence[Storage]) -> None:
        self._above = above
        self._storages = storages
        self._found: tuple[Storage, ...] | None = None

    def __bool__(self) -> bool:
        """Whether any was named."""
        return bool(self._storages)

    @property
    def named(self) -> Sequence[Storage]:
        """All of them, whether or not they are there."""
        return self._storages

    @property
    def locations(self) -> list[str]:
        """Where they are, or would be."""
        return [storage.location for storage in self._storages]

    @property
    def there(self) -> tuple[Storage, ...]:
        """Those that are here: not every image has one. None is here under two names: no store may lean on itself."""
        found = [self._above]
        for storage in self._readable:
            if storage.place is None or storage.place not in [other.place for other in found]:
                found.append(storage)
        return tuple(found[1:])

    @property
    def _readable(self) -> tuple[Storage, ...]:
        """No `cached_property`: one that hangs would hold up all others before Python 3.12 (python/cpython#87634)."""
        if self._found is None:
            self._found = tuple(storage for storage in self._storages if _is_there(storage))
        return self._found

    def at(self, depth: int) -> Storage:
        """The one with this many stores above it."""
        return self._storages[depth - 1]

    def newest(self, scope: Scope) -> Snapshot | None:
        """The newest readable generation, of the first store where that does not say that all was lost; else one that
        says so, if any.
        """
        found: Snapshot | None = None
        for storage in self.there:
            with _passing_over(storage):
                _, snapshot = storage.newest_whole(scope)
                found = found or snapshot
                if snapshot and snapshot.ref.state is not RefState.LOST:
                    return snapshot
        return found

    def blobs(self, depth: int = 0) -> list[BlobStore]:
        """The blobs of the stores that are deeper than `depth`, in their order."""
        return [storage.blobs for storage in self._storages[depth:] if storage in self.there]

    def held(self, sizes: Mapping[bytes, int]) -> set[bytes]:
        """Those of these blobs, given with their sizes in bytes, that one of the stores has."""
        found: set[bytes] = set()
        for storage in self.there if sizes else ():
            with _passing_over(storage):
                blobs = storage.blobs
                found |= sizes.keys() & blobs.digests_in(blobs.packs_listed())
                left = {digest: size for digest, size in sizes.items() if digest not in found}
                away, altered = blobs.loose.unreliable(left)
                found |= left.keys() - away.keys() - altered
        return found


def _is_there(storage: Storage) -> bool:
    try:
        if storage.settings:
            return True
        warn_once(log, "there is no store at %s to read from: kstore goes on without it", storage.location)
    except KstoreError as error:
        warn_once(log, "kstore goes on without the store below: %s", error)
    return False


@contextmanager
def _passing_over(storage: Storage) -> Iterator[None]:
    try:
        yield
    except (KstoreError, OSError) as error:
        warn_once(log, "the store at %s is passed over: %s", storage.location, error)


def layers(storage: Storage) -> tuple[Storage, ...]:
    """All stores that can be read, the first one first."""
    below = storage.below.there
    return below if storage.trouble else (storage, *below)


def attempt(storage: Storage, look: Callable[[], Found], nothing: Found) -> Found:
    """What `look` finds in `storage`. If there is a store below, trouble is noted, and `nothing` is returned.

    A store that hangs is trouble as well, after its `patience`.
    """
    if not storage.below:
        return look()
    if storage.trouble:
        return nothing
    try:
        return within(storage.patience, Waiting(), "looking", look)
    except (KstoreError, OSError) as error:
        if not storage.below.there:
            raise
        late = f"the store at {storage.location} has not answered for {storage.patience:g} s; check whether it hangs"
        storage.trouble = late if isinstance(error, WaitTimeout) else str(error)
        warn_once(log, "only the stores below are read: %s", storage.trouble)
        return nothing


# ---- Which generation


def newest_whole(storage: Storage, scope: Scope, taken: int = 0) -> tuple[int, Snapshot | None]:
    """The number of the newest generation in `storage`, 0 for none, and the newest whole one of the store in charge.

    `taken` is that of `Storage.newest_whole`.
    """
    number, snapshot = storage.newest_whole(scope, taken)
    return number, or_below(storage, scope, snapshot)


def or_below(storage: Storage, scope: Scope, snapshot: Snapshot | None) -> Snapshot | None:
    """`snapshot`; but if it is None, or only says that all was lost, what is below, if there is anything."""
    if snapshot and snapshot.ref.state is not RefState.LOST:
        return snapshot
    return storage.below.newest(scope) or snapshot


def newest_there(
    storage: Storage, scope: Scope, look: Callable[[], tuple[int, Snapshot | None]] | None = None
) -> tuple[int, Snapshot | None]:
    """Like `newest_whole`, but if there is a store below, trouble with `storage` is passed over.

    `look` is how that one is looked at; by default `Storage.newest_whole`.
    """
    nothing: tuple[int, Snapshot | None] = (0, None)
    number, snapshot = attempt(storage, look or partial(storage.newest_whole, scope), nothing)
    return number, or_below(storage, scope, snapshot)


def newest_ref(storage: Storage, scope: Scope) -> Ref | None:
    """The newest generation of the scope, even an empty one; None if no store has one.

    Raises:
        MissError, IntegrityError, StoreFormatError: as `Refs.newest`.
    """
    ref = None if storage.trouble else storage.refs.newest(scope)
    if ref is None and (snapshot := storage.below.newest(scope)):
        return snapshot.ref
    return ref


def in_charge(storage: Storage, scope: Scope) -> Storage:
    """The store in charge of the scope; `storage` itself if no store has a generation of it."""
    if not storage.trouble and (not storage.below or _hides_below(storage, scope)):
        return storage
    snapshot = storage.below.newest(scope)
    return storage.holder(snapshot.ref) if snapshot else storage


def _hides_below(storage: Storage, scope: Scope) -> bool:
    """Whether the store has a generation, and the newest says more than that all was lost. One that is damaged may, or
    one that a newer kstore made.
    """
    try:
        ref = storage.refs.newest(scope)
    except (IntegrityError, StoreFormatError):
        return True
    return ref is not None and ref.state is not RefState.LOST


def has_generations(storage: Storage, scope: Scope) -> bool:
    """Whether the store in charge has any generations. A failed commit leaves an empty folder."""
    return bool(in_charge(storage, scope).refs.generations(scope))


def generations(storage: Storage, scope: Scope) -> list[Ref]:
    """All generations of the store in charge, oldest first, including empty ones."""
    refs = in_charge(storage, scope).refs
    return [get() for _, get in ask_each(partial(refs.get, scope), refs.generations(scope))]


def ref_of(storage: Storage, scope: Scope, generation: int) -> Ref:
    """One generation of the store in charge.

    Raises:
        MissError: it has no such generation.
        StoreUnavailable: whether `storage` is in charge is not known, and numbers mean nothing in another store.
    """
    if storage.trouble:
        raise StoreUnavailable(storage.trouble)
    return in_charge(storage, scope).refs.get(scope, generation)


def find(storage: Storage, scope: Scope, generation: int, manifest: str) -> Ref:
    """The generation whose manifest has this digest, in hex, from any store; else one with its number.

    Raises:
        MissError: no store has one of that number.
    """
    found: list[Ref] = []
    for layer in layers(storage):
        with suppress(MissError):
            found.append(layer.refs.get(scope, generation))
            if found[-1].manifest.hex() == manifest:
                return found[-1]
    return found[0] if found else storage.refs.get(scope, generation)


def scopes(storage: Storage, key: str | None = None, pass_over: PassOver | None = None) -> Iterator[Scope]:
    """Every scope with a folder in a store, each once, even if forgotten or empty; of one key if given. For `pass_over`
    see `Refs.scopes`; it is about the first store. What cannot be listed below is always passed over.
    """

    def look() -> list[Scope]:
        _ = storage.settings
        return list(storage.refs.scopes_of(key, pass_over))

    none: list[Scope] = []
    yield from dict.fromkeys((*attempt(storage, look, none), *scopes_below(storage, key)))


def scopes_below(storage: Storage, key: str | None = None) -> Iterator[Scope]:
    """Every scope with a folder in a store below, of one key if given. What cannot be listed is passed over."""
    for below in storage.below.there:
        with _passing_over(below):
            yield from below.refs.scopes_of(key, partial(_pass_over, below))


def _pass_over(storage: Storage, folder: Unlisted) -> None:
    key, where = folder.key or "every key", storage.location
    warn_once(log, "%s of %s in the store at %s is passed over: %s", key, folder.gpu, where, folder.error)


def unforgotten(storage: Storage, among: Iterable[Scope]) -> list[Scope]:
    """The scopes that have a generation and were not forgotten, including those whose newest one cannot be read."""
    return [scope for scope in among if not attempt(storage, partial(_is_gone, storage, scope), False)]


def _is_gone(storage: Storage, scope: Scope) -> bool:
    with suppress(KstoreError):
        ref = newest_ref(storage, scope)
        return ref is None or ref.state is RefState.FORGOTTEN
    return False


# ---- What a cache root grew from


def base_of(storage: Storage, base: Base | None) -> Snapshot | None:
    """What a cache root grew from, if that was in one of these stores."""
    if base is None or (not storage.trouble and base.store == storage.identity):
        return base.snapshot if base else None
    for below in storage.below.there:
        if base.store == below.identity:
            return replace(base.snapshot, ref=replace(base.snapshot.ref, depth=below.depth))
    return None


def remembers(newest: Snapshot, base: Snapshot) -> bool:
    """Whether what `base` has and `newest` lacks was taken out on purpose.

    A line that began below remembers the generation that its manifest names, or all if it names none: forgetting or
    quarantining a key takes out what any image has.
    """
    if newest.ref.depth == base.ref.depth:
        return newest.ref.remembers(base.ref)
    digest = base.ref.manifest.hex()
    grew = newest.ref.depth < base.ref.depth and newest.ref.scope == base.ref.scope and newest.ref.line == 0
    return grew and newest.manifest.meta.get(BASE, digest) == digest
