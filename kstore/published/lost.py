"""What a generation needs and has lost, as seen by a worker that has the files and can mend it."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Set
from contextlib import suppress

from kstore.blobs import Part
from kstore.blobs.wanted import Wanted
from kstore.damaged import damaged_blobs
from kstore.published.leaning import leaning, unsupported
from kstore.published.ref import Ref
from kstore.published.snapshot import Snapshot
from kstore.storage import Storage


def lost_of(
    storage: Storage,
    snapshot: Snapshot,
    among: Mapping[bytes, int],
    missed: Set[bytes] = frozenset(),
    *,
    lacks: bool | None = None,
) -> set[bytes]:
    """Those of the blobs in `among`, given with their sizes in bytes, that a generation needs and has lost:

    - what `verify` found damaged, or a restore has `missed`, if it cannot be read now either;
    - what was in a pack that is gone;
    - what it leans on and no store below has.

    For a generation in a store below, which is not ours, that is only what a restore has `missed`. Whether the
    generation `lacks` a pack is looked up unless it is known.
    """
    depth = snapshot.ref.depth
    noted = missed if depth else missed | damaged_blobs(storage.backend).keys()
    lacks = lacks_pack(storage, snapshot.ref) if lacks is None else lacks
    found = among.keys() if lacks else among.keys() & noted
    if found:
        found &= {digest for digest, _ in snapshot.manifest.blobs()}
    others = found - noted - leaning(snapshot.manifest).keys() if lacks else ()  # what it leans on was in no pack
    doubted, packed = ({d: among[d] for d in chosen} for chosen in (found & noted, others))
    lost = _unreadable(storage, snapshot.ref, doubted) | not_stored(storage, snapshot.ref, packed)
    return lost if depth else lost | unsupported(storage, snapshot, among)


def lacks_pack(storage: Storage, ref: Ref, there: Container[str] = ()) -> bool:
    """Whether a pack that a generation of this store needs is gone. An error says nothing about that. Those that were
    `there` just now are not asked for: each takes a system call.
    """
    try:
        return not ref.depth and not all(storage.blobs.has_pack(pack) for pack in ref.packs if pack not in there)
    except OSError:
        return False


def not_stored(storage: Storage, ref: Ref, blobs: Mapping[bytes, int]) -> set[bytes]:
    """The blobs that are neither loose nor in a pack of the generation that is there."""
    packs = ref.packs if blobs else ()  # of one that is gone, it may be known yet what was in it
    with suppress(OSError):  # An error says nothing about that.
        packs = tuple(filter(storage.blobs.has_pack, packs))
    packed = storage.blobs.digests_in(packs)
    return set(storage.blobs.loose.lacking({digest: size for digest, size in blobs.items() if digest not in packed}))


def _unreadable(storage: Storage, ref: Ref, blobs: Mapping[bytes, int]) -> set[bytes]:
    """Blobs that cannot be read where the generation, or a store below, has them, for whatever reason."""
    if not blobs:
        return set()
    left = blobs.keys() - _readable(storage.holder(ref).blobs.parts(Wanted(blobs.items()), ref.packs))
    for below in storage.below.blobs(ref.depth):
        left -= _readable(below.parts(Wanted((digest, blobs[digest]) for digest in left), below.packs_listed()))
    return left


def _readable(parts: Iterable[Part]) -> set[bytes]:
    return {digest for part in parts for digest, _ in part.load()}
