"""Rewrite packs: what is needed of them goes into new packs, under new generations.

Two kinds are worth it. Of a mostly dead pack little is needed any more; it is left alone while an older generation
names it, for that one would keep it. And a key that grew by many commits is in many small packs, each of which costs
every restore and commit a few round trips: the smallest become one, up to the first that is large compared with all
before it, so that a byte is rewritten only each time that its pack has grown by half (as `git repack --geometric`).

The new generation holds the same manifest; the one before it goes a grace later, and the old packs with the last
generation that names them.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from kstore.blobs import Layout
from kstore.blobs.packindex import FRAME_SIZE
from kstore.blobs.packreader import Blob, PackReader
from kstore.errors import IntegrityError, MissError
from kstore.gc.mark import Marked
from kstore.generations import republish
from kstore.refs import Ref
from kstore.storage import Storage

log = logging.getLogger(__name__)

_MOSTLY_DEAD = 0.5
"""Share of its blobs' bytes that must be dead for a pack to be rewritten."""
WORTHWHILE = 1 << 20
"""Bytes that must be dead, before compression: below that, another generation is not worth it."""
MANY = 8
"""Packs from which on it is worth making one of them."""
_SMALL = FRAME_SIZE
"""Bytes of a pack, as it is stored, from which on it is not merged with others."""
_LARGE = 2
"""Times the bytes of all smaller packs that a pack must have to stay by itself."""


def worth_rewriting(storage: Storage, marked: Marked) -> list[tuple[str, ...]]:
    """The packs that are worth rewriting; those that are to become one are together."""
    dead: list[tuple[str, ...]] = []
    small: dict[frozenset[Ref], list[tuple[int, str]]] = defaultdict(list)
    for pack, refs in sorted(marked.packs.items()):
        users = frozenset(refs & marked.newest)
        if users == refs and _is_mostly_dead(storage, pack, marked):
            dead.append((pack,))
        elif users and (size := _size(storage, pack)) < _SMALL:
            small[users].append((size, pack))
    merged = (_smallest(packs) for packs in small.values())
    return dead + [packs for packs in merged if len(packs) >= MANY]


def _smallest(packs: list[tuple[int, str]]) -> tuple[str, ...]:
    """Of packs, given with their sizes in bytes, those before the first that is large compared with all before it."""
    count = before = 0
    for number, (size, _) in enumerate(sorted(packs), 1):
        if size < _LARGE * before:
            count = number
        before += size
    return tuple(pack for _, pack in sorted(packs)[:count])


def _is_mostly_dead(storage: Storage, pack: str, marked: Marked) -> bool:
    try:
        index = PackReader(storage.backend, pack).index
    except (IntegrityError, OSError):
        return False
    dead = set(marked.packed.absent(index.digests))
    live = sum(size for digest, size in zip(index.digests, index.sizes, strict=True) if digest not in dead)
    lost = sum(index.sizes) - live
    return lost >= max(_MOSTLY_DEAD * sum(index.sizes), WORTHWHILE)


def _size(storage: Storage, pack: str) -> int:
    """Bytes of a pack as it is stored; one that has gone is not small."""
    try:
        return storage.blobs.pack(pack).size
    except OSError:
        return _SMALL


def repack(storage: Storage, groups: Iterable[tuple[str, ...]], marked: Marked) -> int:
    """Make one pack of each group; returns how many packs were rewritten."""
    replaced: dict[str, tuple[str, ...]] = {}
    refs: set[Ref] = set()
    for packs in groups:
        users = set[Ref]().union(*(marked.packs[pack] for pack in packs))
        try:
            replaced |= dict.fromkeys(packs, _merge_live(storage, packs, users, marked))
            refs |= users & marked.newest
        except (IntegrityError, OSError) as error:
            log.warning("not rewritten: pack %s: %s", ", ".join(packs), error)
    for ref in sorted(refs, key=lambda ref: ref.name):
        _republish(storage, ref, replaced)
    return len(replaced)


def _merge_live(storage: Storage, packs: Sequence[str], users: Iterable[Ref], marked: Marked) -> tuple[str, ...]:
    """Write what is needed of some packs into one; manifests have frames of their own, as a commit makes them."""
    manifests = {digest: size for ref in users for digest, size in ref.stored.items()}
    sizes = _live_in(storage, packs, marked)
    wanted = {digest: size for digest, size in sizes.items() if digest not in manifests}
    with storage.blobs.writer(Layout.PACKED) as writer:
        for digest, data in _fetch(storage, packs, wanted):
            writer.put(digest, bytes(data))
        for digest, data in _fetch(storage, packs, {d: manifests[d] for d in sizes.keys() & manifests.keys()}):
            writer.put_manifest(digest, bytes(data))
        if writer.blobs != len(sizes):
            raise IntegrityError(f"{len(sizes) - writer.blobs} blobs are damaged; see `kstore verify`")
        return writer.finish()


def _live_in(storage: Storage, packs: Iterable[str], marked: Marked) -> dict[bytes, int]:
    """The blobs of some packs that any generation needs, with their sizes in bytes."""
    sizes: dict[bytes, int] = {}
    for pack in packs:
        sizes |= PackReader(storage.backend, pack).index.sizes_by_digest()
    for digest in marked.packed.absent(sizes):
        del sizes[digest]
    return sizes


def _fetch(storage: Storage, packs: Iterable[str], wanted: dict[bytes, int]) -> Iterator[Blob]:
    """Each blob once, if one of the packs has it undamaged."""
    left = dict(wanted)
    for pack in packs:
        for digest, data in PackReader(storage.backend, pack).fetch(left):
            if left.pop(digest, None) is not None:
                yield digest, data


def _republish(storage: Storage, ref: Ref, replaced: Mapping[str, tuple[str, ...]]) -> None:
    def packs(ref: Ref) -> tuple[str, ...]:
        return tuple(dict.fromkeys(new for old in ref.packs for new in replaced.get(old, (old,))))

    try:
        # A commit that was faster names the old packs, which therefore stay.
        republish(storage, ref, packs, only_if_newest=True)
    except (IntegrityError, MissError) as error:
        log.warning("%s is not repacked: %s", ref.scope, error)
