"""What a generation leans on: blobs that were not uploaded, because a store below has them.

Their entries are flagged (`Flag.BELOW`), and the manifest names, for people, where those stores were. The flag is a
hint. No commit relies on a flagged blob without looking, and a worker that finds it in no store below puts back what
it has.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from functools import partial
from itertools import chain
from typing import Any

from kstore.errors import IntegrityError, StoreBelowMissing
from kstore.published.layers import BASE
from kstore.published.manifest import (
    BELOW,
    Entry,
    Files,
    Manifest,
    blobs_of,
    compact,
    group_of,
    sizes_of,
    unit_of,
    with_flags,
    without_flags,
)
from kstore.published.ref import Ref
from kstore.published.snapshot import Snapshot
from kstore.storage import Storage, reporting_trouble

COMPILE = "the next worker that restores, compiles them again and commits puts them back"
"""What helps against what a store below has lost. A root that has all of it looks for nothing."""
_STORES = "below"


def leans_on(manifest: Manifest) -> list[str]:
    """Where the stores were that had blobs of this generation."""
    named = manifest.meta.get(_STORES)
    return [str(path) for path in named] if isinstance(named, list) else []


def are_here(storage: Storage, manifest: Manifest) -> bool:
    """Whether all of them are here. What they had, and have no more, is then nowhere else."""
    return {layer.location for layer in storage.below.there}.issuperset(leans_on(manifest))


def leaning(manifest: Manifest) -> dict[bytes, int]:
    """Digests and sizes, in bytes, of the blobs that were not uploaded."""
    if not leans_on(manifest):
        return {}
    below = (with_flags(files, BELOW) for files in manifest.sets)
    return dict(chain.from_iterable(map(blobs_of, below)))


def supports(storage: Storage) -> list[str]:
    """The identities of the stores below that are here."""
    return [layer.identity for layer in storage.below.there]


def supports_of(storage: Storage, manifest: Manifest) -> list[str]:
    """The same for a generation that leans on any, else none. Once they change, what it needs may be gone."""
    return supports(storage) if leans_on(manifest) else []


def kept_by(snapshot: Snapshot | None) -> set[bytes]:
    """What a generation keeps in the store that is written: a commit upon it may rely on that."""
    if snapshot is None or snapshot.ref.depth:
        return set()
    here = (without_flags(files, BELOW) for files in snapshot.manifest.sets)
    return {digest for files in here for digest, _ in blobs_of(files)}


def may_lean(storage: Storage, theirs: Snapshot | None) -> bool:
    """Whether a commit upon `theirs` may leave what is below where it is.

    If workers of two images did so, each would lack what the other has, and use its own instead, for ever.
    """
    if theirs is None or theirs.ref.depth:
        return bool(storage.below)
    below = storage.below.newest(theirs.ref.scope) if BASE in theirs.manifest.meta else None
    return below is not None and theirs.manifest.meta[BASE] == below.ref.manifest.hex()


def unsupported(storage: Storage, snapshot: Snapshot, among: Mapping[bytes, int]) -> set[bytes]:
    """Those of the blobs in `among`, given with their sizes, that a generation leans on and no store below has."""
    leant = leaning(snapshot.manifest)
    wanted = {digest: size for digest, size in among.items() if digest in leant} if leant else {}
    return wanted.keys() - storage.below.held(wanted)


def fetch(storage: Storage, entry: Entry, ref: Ref) -> bytes:
    """The blob of an artifact that a generation has.

    Raises:
        IntegrityError: it is missing or damaged in every store.
        OSError: it cannot be read just now.
    """
    trouble: OSError | None = None
    for blobs in storage.below.blobs() if entry.flags & BELOW or ref.depth else ():
        try:
            return bytes(blobs.fetch(entry.digest, entry.size))
        except IntegrityError:
            continue
        except OSError as error:  # The next store may have it.
            trouble = trouble or error
    try:
        return bytes(storage.blobs.fetch(entry.digest, entry.size, ref.packs))
    except IntegrityError as error:
        raise trouble or error from None


def fetch_many(
    storage: Storage, refs: Iterable[Ref], wanted: Mapping[bytes, int]
) -> Iterator[tuple[bytes, memoryview]]:
    """The blobs, given by digest and size, of some generations, each once. What is missing or damaged is left out.

    Raises:
        StoreUnavailable: some of them cannot be read just now, which is no damage.
    """
    left, troubles = dict(wanted), defaultdict[str, list[Exception]](list)
    held = storage.below.held(wanted)
    for layer in storage.below.there:
        here = {digest: size for digest, size in left.items() if digest in held}
        try:
            for digest, data in layer.blobs.fetch_many(here, layer.blobs.packs_listed(), troubles[layer.location]):
                del left[digest]
                yield digest, data
        except OSError as error:  # The next store may have the rest.
            troubles[layer.location].append(error)
    packs = tuple(dict.fromkeys(pack for ref in refs if not ref.depth for pack in ref.packs))
    if left and not storage.trouble:
        for digest, data in storage.blobs.fetch_many(left, packs, troubles[storage.location]):
            del left[digest]
            yield digest, data
            del data  # or a large one would be held while the next is read
    if left:
        _raise_first(troubles)


def _raise_first(troubles: Mapping[str, list[Exception]]) -> None:
    """Raise the first of these troubles, if there are any, as trouble with the store at its location."""
    for location, errors in troubles.items():
        for error in errors:
            with reporting_trouble(location, "read"):
                raise error


def absent(storage: Storage, ref: Ref, leant: Mapping[bytes, int]) -> set[bytes]:
    """Those of the blobs that a generation leans on, given with their sizes, that no store here has."""
    held = storage.below.held(leant)
    blobs = storage.holder(ref).blobs
    held |= blobs.digests_in(ref.packs) if len(held) < len(leant) else set()
    return set(blobs.loose.lacking({digest: size for digest, size in leant.items() if digest not in held}))


def check_supported(storage: Storage, snapshot: Snapshot, wanted: Mapping[bytes, int] | None = None) -> None:
    """Look whether the blobs that a generation leans on are here: all, or those `wanted`, given with their sizes.

    Raises:
        StoreBelowMissing: some of them are not.
    """
    leant = leaning(snapshot.manifest)
    leant = {d: size for d, size in leant.items() if wanted is None or d in wanted}
    if not leant or not (away := absent(storage, snapshot.ref, leant)):
        return
    ref, before = snapshot.ref, leans_on(snapshot.manifest)
    if are_here(storage, snapshot.manifest):
        advice = f", and it has them no more; {COMPILE}"
    else:
        together = dict.fromkeys((storage.location, *(layer.location for layer in storage.below.there), *before))
        advice = f"; name it too, as in {':'.join(together)}"
    raise StoreBelowMissing(
        f"generation {ref.generation} of {ref.scope} leans on another store: only {', '.join(before)} had {len(away)} "
        f"of its blobs{advice}"
    )


def standing(manifest: Manifest) -> Manifest:
    """The same artifacts for another store: what they leaned on means nothing there."""
    if not leans_on(manifest) and BASE not in manifest.meta:
        return manifest
    return _changed(manifest, lambda entry: entry._replace(flags=entry.flags & ~BELOW))


def _changed(manifest: Manifest, change: Callable[[Entry], Entry]) -> Manifest:
    """A manifest with every entry changed, and without what its meta says about leaning."""

    def changed(files: Files) -> Files:
        return compact((path, change(entry)) for path, entry in files.items())

    meta = {name: value for name, value in manifest.meta.items() if name not in (BASE, _STORES)}
    return Manifest(changed(manifest.files), {host: changed(bound) for host, bound in manifest.hosts.items()}, meta)


def noted(
    storage: Storage, manifest: Manifest, theirs: Snapshot | None, offered: Set[bytes] = frozenset(),
    below: Set[bytes] = frozenset(),
) -> Manifest:  # fmt: skip
    """A manifest that is to be published upon `theirs`, with a note of what it leans on.

    `offered` are the digests of what this commit brings, `below` those of them that it does not upload. The rest is
    where it was for `theirs`: entirely below, if that generation is in a store below.
    """
    lifted = theirs if theirs and theirs.ref.depth else None
    known: Mapping[str, Any] = theirs.manifest.meta if theirs and not lifted else {}
    if not (lifted or below or known.keys() & {BASE, _STORES}):
        return manifest
    flagged = _changed(manifest, partial(_flagged, here=offered - below, below=below, all_below=bool(lifted)))
    meta = dict(flagged.meta)
    if base := lifted.ref.manifest.hex() if lifted else known.get(BASE):
        meta[BASE] = base
    if any(entry.flags & BELOW for entry in flagged.entries()):
        before = leans_on(theirs.manifest) if theirs else []
        new = [layer.location for layer in storage.below.there] if below or lifted else []
        meta[_STORES] = list(dict.fromkeys((*before, *new)))
    return Manifest(flagged.files, flagged.hosts, meta)


def _flagged(entry: Entry, here: Set[bytes], below: Set[bytes], *, all_below: bool) -> Entry:
    flags = entry.flags
    if entry.digest in below or (all_below and entry.digest not in here):
        flags |= BELOW
    elif entry.digest in here:
        flags &= ~BELOW
    return entry if flags == entry.flags else entry._replace(flags=flags)


def unavailable(storage: Storage, snapshot: Snapshot, files: Files, local: Files) -> Files:
    """Those of a generation's `files` that no store here has a blob for, each with its group.

    What is in the cache root already, `local`, is not looked for.
    """
    leant = leaning(snapshot.manifest)
    if not leant:
        return {}
    wanted = {p: e for p, e in files.items() if e.digest in leant and not _is_same(local.get(p), e)}
    away = absent(storage, snapshot.ref, sizes_of(wanted.values()))
    groups = {group_of(path, entry) for path, entry in wanted.items() if entry.digest in away}
    return {path: entry for path, entry in files.items() if groups and group_of(path, entry) in groups}


def substitutes(storage: Storage, snapshot: Snapshot, files: Files, files_of: Callable[[Manifest], Files]) -> Files:
    """What the newest generation below has for the scope, where `files` has nothing: another answer is as good."""
    below = storage.below.newest(snapshot.ref.scope)
    if below is None:
        return {}
    taken = {unit_of(path, entry) for path, entry in files.items()}
    found = files_of(below.manifest).items()
    return {p: e._replace(flags=e.flags | BELOW) for p, e in found if p not in files and unit_of(p, e) not in taken}


def _is_same(local: Entry | None, entry: Entry) -> bool:
    return local is not None and local.digest == entry.digest
