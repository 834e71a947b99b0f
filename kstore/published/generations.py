"""Generations that are not committed from a cache root: forgotten, quarantined, rolled back to, repacked.

They follow the rules of every commit: a place for the ref is reserved first, nothing is relied upon that gc may be
about to delete, and what is condemned is copied into a pack of its own, which takes the place of a condemned one.

What gc or a repair has decided by looking at the store is published only `upon` the generation that was the newest
then: if there is a later one, nothing is published, and None is returned. What a user requests holds upon any
generation: `upon` is None.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace

from kstore.backends import StagingLost
from kstore.blobs import Layout
from kstore.condemned import Doomed, read_doomed
from kstore.creator import creator
from kstore.digest import digest_of
from kstore.errors import IntegrityError, MissError, StoreUnavailable
from kstore.published.layers import ref_of
from kstore.published.leaning import leaning, noted
from kstore.published.lost import not_stored
from kstore.published.manifest import Manifest, meta_of
from kstore.published.races import outraced, races
from kstore.published.ref import Ref, RefState
from kstore.scope import Scope
from kstore.storage import Storage
from kstore.words import plural

log = logging.getLogger(__name__)


def publish_empty(storage: Storage, scope: Scope, state: RefState, *, upon: int | None) -> Ref | None:
    """Publish a generation without artifacts, so that the key misses."""
    return _publish_empty(storage, scope, state, upon, line=0)


def publish_loss(storage: Storage, scope: Scope, *, upon: int) -> Ref | None:
    """Publish that nothing is left of a scope: whoever still has what it held brings that back."""
    return _publish_empty(storage, scope, RefState.LOST, upon, line=upon + 1)


def _publish_empty(storage: Storage, scope: Scope, state: RefState, upon: int | None, *, line: int) -> Ref | None:
    def prepare(parent: int) -> Ref:
        data = Manifest(meta=meta_of(scope, parent)).dump()
        return Ref(
            scope, parent + 1, digest_of(data), len(data), _packed(storage, data), time.time(), creator(),
            files=0, size=0, parent=parent, state=state, line=line,
        )  # fmt: skip

    return _publish(storage, scope, upon, prepare)


def republish(
    storage: Storage,
    ref: Ref,
    packs: Callable[[Ref], tuple[str, ...]] | None = None,
    *,
    upon: int | None,
    after_loss: bool = False,
) -> Ref | None:
    """Publish what a generation holds as the newest one of its scope.

    `packs` says where its blobs are by now, and is asked once a place for the ref is reserved; without it they are
    looked for.

    `upon` is the generation that must still be the newest. It is given by gc and repairs, whose publishing is no use
    of the key.

    `after_loss` is for one that takes the place of a damaged one: whoever still has what that held brings it back.

    Blobs that are lost stay lost: a restore leaves out their groups.

    Raises:
        MissError: the generation is gone.
        IntegrityError: its manifest, or a list of what gc is about to delete, is damaged.
        StoreUnavailable: a blob that must be copied cannot be read just now.
    """

    def prepare(parent: int) -> Ref:
        if ref.depth:
            return _lifted(storage, ref, parent)
        sizes = _sizes(storage, ref)
        doomed = read_doomed(storage.backend, lambda: sizes)
        if not doomed.is_complete:
            raise IntegrityError(
                "the list of what gc is about to delete is damaged; run `kstore gc` twice, with a --keep that leaves "
                "what you need, and try again"
            )
        try:
            published_at = storage.refs.published_at(ref.scope, ref.generation)
        except FileNotFoundError:
            raise MissError(f"generation {ref.generation} of {ref.scope} was removed just now") from None
        since = 0 if upon is None else ref.since or published_at
        where = _without(storage, ref, doomed, sizes, packs(ref) if packs else _gathered(storage, ref))
        line = parent + 1 if after_loss else ref.line
        return replace(
            ref, generation=parent + 1, parent=parent, created=time.time(), creator=creator(), packs=where, line=line,
            lineage=ref.leads_to() if ref.generation == parent else (), effort=None, since=since,
        )  # fmt: skip

    return _publish(storage, ref.scope, upon, prepare)


def _lifted(storage: Storage, ref: Ref, parent: int) -> Ref:
    """A generation of a store below, as one of this store that leans on it."""
    snapshot = storage.snapshot(ref)
    manifest = snapshot.manifest
    meta = {**manifest.meta, **meta_of(ref.scope, parent)}
    data = noted(storage, Manifest(manifest.files, manifest.hosts, meta), snapshot).dump()
    return replace(
        ref, generation=parent + 1, manifest=digest_of(data), manifest_size=len(data), packs=_packed(storage, data),
        created=time.time(), creator=creator(), parent=parent, line=0, lineage=(), depth=0, delta=None, since=0,
    )  # fmt: skip


def _packed(storage: Storage, data: bytes) -> tuple[str, ...]:
    """Store one blob as a pack."""
    with storage.blobs.writer(Layout.PACKED) as writer:
        writer.put(digest_of(data), data)
        return writer.finish()


def roll_back(storage: Storage, scope: Scope, generation: int | None) -> Ref:
    """Publish an earlier generation as the newest one: by default the last one that holds something else. A line in the
    log says how many of its files are lost, if any.

    Raises:
        MissError, IntegrityError, StoreUnavailable: as `_before_newest` and `republish`.
    """
    storage.blobs = storage.blobs_anew()  # A repair may have moved packs since it was last looked.
    ref = ref_of(storage, scope, generation) if generation else _before_newest(storage, scope)
    published = republish(storage, ref, upon=None)
    assert published
    if lost := 0 if ref.depth else _lost_files(storage, published):
        what = f"of generation {published.generation} of {scope}, {plural(lost, 'file')} of {published.files}"
        log.warning("%s cannot be restored, nor can the groups that they are in: the store has lost them", what)
    return published


def _lost_files(storage: Storage, ref: Ref) -> int:
    """How many artifacts of a generation of this store are lost. What only packs of other generations have is not lost:
    it is looked for there.
    """
    lost = not_stored(storage, ref, _sizes(storage, ref))
    lost -= storage.blobs.digests_in(storage.blobs.packs_listed()) if lost else set()
    return sum(digest in lost for digest, _ in storage.snapshot(ref).manifest.blobs()) if lost else 0


def _before_newest(storage: Storage, scope: Scope) -> Ref:
    """The last generation that can be read and does not hold the same as the newest one. Of several, it is the last one
    that has lost nothing, if there is one. If others had to be passed over, the log says which generation it is.

    Raises:
        MissError: there is none.
        IntegrityError: there are earlier ones, and none of them can be read.
    """
    *earlier, newest = storage.refs.generations(scope) or [0]
    replaced = _manifest_of(storage, scope, newest) if newest else b""
    found, passed = _last_whole(storage, scope, earlier, replaced)
    if found:
        if passed or not replaced:
            log.warning("%s is rolled back to generation %d", scope, found.generation)
        return found
    below = storage.below.newest(scope) if newest else None
    if below and below.ref.state is RefState.LIVE:
        return below.ref
    if passed:
        raise IntegrityError(
            f"no earlier generation of {scope} can be read; commit from a worker that has the kernels, "
            f"and see what else `kstore verify {scope.key}` finds"
        )
    raise MissError(f"{scope} has no earlier generation to roll back to; `kstore show {scope.key}` lists them")


def _last_whole(storage: Storage, scope: Scope, earlier: list[int], replaced: bytes) -> tuple[Ref | None, bool]:
    """The generation that `_before_newest` means, and whether any was passed over."""
    found: Ref | None = None
    passed = False
    for generation in reversed(earlier):
        with suppress(MissError):  # gc has removed it since it was listed
            snapshot = storage.whole(scope, generation)
            if snapshot and (snapshot.ref.state is not RefState.LIVE or snapshot.ref.manifest == replaced):
                continue
            if snapshot and not _lost_files(storage, snapshot.ref):
                return snapshot.ref, passed
            found, passed = found or (snapshot.ref if snapshot else None), True
    return found, passed


def _manifest_of(storage: Storage, scope: Scope, generation: int) -> bytes:
    """The digest of what a generation holds. If its ref is damaged, it is empty and the log says so."""
    try:
        return storage.refs.get(scope, generation).manifest
    except IntegrityError as error:
        log.warning("passed over: %s", error)
        return b""


def _without(
    storage: Storage, ref: Ref, doomed: Doomed, sizes: dict[bytes, int], packs: tuple[str, ...]
) -> tuple[str, ...]:
    """The packs to name for a generation: a new one, and then those of `packs` that gc is not about to delete.

    The new one has what the generation needs of the other packs and of doomed loose blobs. What is lost is left out. A
    pack that cannot be read stays: what it holds is not known.
    """
    blobs, troubles = storage.blobs_anew(), list[Exception]()
    left_out = {pack for pack in doomed.packs.intersection(packs) if blobs.can_read(pack)}
    staying = tuple(pack for pack in packs if pack not in left_out)
    needed = (sizes.keys() & blobs.digests_in(left_out) | doomed.blobs) - blobs.digests_in(staying)
    with storage.blobs.writer(Layout.PACKED) as writer:
        for digest, data in blobs.fetch_many({digest: sizes[digest] for digest in needed}, packs, troubles):
            writer.put(digest, bytes(data))
            needed.discard(digest)
        if needed and troubles:
            why = repr(troubles[0])
            raise StoreUnavailable(f"{len(needed)} blobs of {ref.scope} cannot be read just now: {why}; try again")
        if not needed.isdisjoint(ref.stored):
            raise IntegrityError(f"the manifest of generation {ref.generation} of {ref.scope} was lost just now")
        return (*writer.finish(), *staying)


def _gathered(storage: Storage, ref: Ref) -> tuple[str, ...]:
    """The packs of a generation, and one more with what is in none of them but in other packs of the store: what a
    repair has saved of a damaged pack, in a pack that an earlier ref cannot name.
    """
    blobs = storage.blobs_anew()
    if all(map(blobs.can_read, ref.packs)):
        return ref.packs
    inside = blobs.digests_in(ref.packs)
    outside = {digest: size for digest, size in _sizes(storage, ref).items() if digest not in inside}
    missing = blobs.loose.lacking(outside)
    with storage.blobs.writer(Layout.PACKED) as writer:
        for digest, data in blobs.fetch_many(missing):
            writer.put(digest, bytes(data))
        return (*filter(blobs.has_pack, ref.packs), *writer.finish())


def _sizes(storage: Storage, ref: Ref) -> dict[bytes, int]:
    """Digest → bytes of what a generation needs in this store."""
    manifest = storage.snapshot(ref).manifest
    leant = leaning(manifest)
    return {digest: size for digest, size in manifest.blobs() if digest not in leant} | ref.stored


def are_present(storage: Storage, packs: Iterable[str]) -> bool:
    """Whether packs that no ref names yet are there to stay. To be asked once a place for the ref that will name them
    is reserved: gc may have condemned or deleted a pack that was written before that.
    """
    doomed = read_doomed(storage.backend, tuple)
    return doomed.is_complete and all(p not in doomed.packs and storage.blobs.has_pack(p) for p in packs)


def _publish(storage: Storage, scope: Scope, upon: int | None, prepare: Callable[[int], Ref]) -> Ref | None:
    taken = 0  # which need not be listed; see `Storage.newest_whole`
    for _ in races():
        with suppress(StagingLost), storage.refs.reserve() as reserved:
            generations = storage.refs.generations(scope)
            if not generations and not storage.below.newest(scope):
                raise MissError(f"nothing is published for {scope}; `kstore ls` lists what is")
            parent = max([taken, *generations])
            if upon not in (None, parent):
                return None
            if storage.refs.publish(ref := prepare(parent), reserved):
                return ref
            taken = ref.generation
    raise outraced(scope)
