"""Rewrite packs: what is needed of them goes into new packs, under new generations.

Two kinds are worth it:

- Of a mostly dead pack, little is still needed. It is left alone while an older generation names it, since that one
  would keep it.
- A key that grew by many commits is in many small packs, each of which costs every restore and commit a few round
  trips. They become one, except the largest ones, each at least twice as large as all smaller ones together. So a byte
  is rewritten only when its pack grows by half (as with `git repack --geometric`).

The new generation holds the same manifest. The one before it goes a grace later, and the old packs go with the last
generation that names them.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import partial

from kstore.blobs import Layout
from kstore.blobs.packindex import FRAME_SIZE, PackIndex
from kstore.blobs.packreader import Blob, PackReader
from kstore.errors import IntegrityError, MissError, StoreUnavailable
from kstore.far import ask_each
from kstore.gc.mark import Marked
from kstore.published.generations import are_present, republish
from kstore.published.ref import Ref
from kstore.storage import Storage
from kstore.words import plural

log = logging.getLogger(__name__)

_MOSTLY_DEAD = 0.5
"""Share of its blobs' bytes that must be dead for a pack to be rewritten."""
WORTHWHILE = 1 << 20
"""Bytes that must be dead, before compression: below that, another generation is not worth it."""
MANY = 8
"""The number of packs from which on it is worth making one of them."""
_FEWEST = 2
"""The fewest packs that are worth making one of, if others that were to be in it cannot be read."""
_SMALL = FRAME_SIZE
"""The bytes from which on a pack, as it is stored, is not merged with others."""
_LARGE = 2
"""A pack stays by itself if it has this many times the bytes of all smaller ones together."""


def worth_rewriting(storage: Storage, marked: Marked) -> list[tuple[str, ...]]:
    """The packs that are worth rewriting; those that are to become one are together."""
    dead: list[tuple[str, ...]] = []
    small: dict[frozenset[Ref], list[tuple[int, str]]] = defaultdict(list)
    readable = {pack: refs for pack, refs in sorted(marked.packs.items()) if pack not in marked.unread_packs}
    for pack, read_index in ask_each(partial(_index_of, storage, marked), readable):
        users = frozenset(readable[pack] & marked.newest)
        if (index := read_index()) and _is_mostly_dead(index, marked):
            dead.append((pack,))
        elif users and (size := _size(storage, pack)) < _SMALL:
            small[users].append((size, pack))
    merged = (_smallest(packs) for packs in small.values())
    return dead + [packs for packs in merged if len(packs) >= MANY]


def _smallest(packs: list[tuple[int, str]]) -> tuple[str, ...]:
    """All packs except the largest ones that are large compared with all before them. Sizes are in bytes."""
    packs = sorted(packs)
    count = before = 0
    for number, (size, _) in enumerate(packs, 1):
        if size < _LARGE * before:
            count = number
        before += size
    return tuple(pack for _, pack in packs[:count])


def _index_of(storage: Storage, marked: Marked, pack: str) -> PackIndex | None:
    """What a pack holds that only newest generations name; None if others do, or if it does not say so now."""
    if not marked.packs[pack] <= marked.newest:
        return None
    try:
        return PackReader(storage.backend, pack).index
    except (IntegrityError, OSError):
        return None


def _is_mostly_dead(index: PackIndex, marked: Marked) -> bool:
    dead = set(marked.packed.absent(index.digests))
    live = sum(size for digest, size in zip(index.digests, index.sizes, strict=True) if digest not in dead)
    lost = sum(index.sizes) - live
    return lost >= max(_MOSTLY_DEAD * sum(index.sizes), WORTHWHILE)


def _size(storage: Storage, pack: str) -> int:
    """Bytes of a pack as it is stored; one that is gone is not small."""
    try:
        return storage.blobs.pack(pack).size
    except OSError:
        return _SMALL


def repack(storage: Storage, groups: Iterable[tuple[str, ...]], marked: Marked) -> int:
    """Make one pack of each of `groups`; returns how many packs were rewritten."""
    replaced: dict[str, tuple[str, ...]] = {}
    refs: set[Ref] = set()
    for packs in groups:
        try:
            merged, found = _merge(storage, packs, marked)
        except OSError as error:
            log.warning("%d packs are not rewritten: %s", len(packs), error)
            continue
        replaced |= dict.fromkeys(merged, found)
        refs |= {ref for pack in merged for ref in marked.packs[pack] & marked.newest}
    published = [ref for ref in sorted(refs, key=lambda ref: ref.name) if _republish(storage, ref, replaced)]
    return len(replaced.keys() & {pack for ref in published for pack in ref.packs})


def _merge(storage: Storage, packs: tuple[str, ...], marked: Marked) -> tuple[list[str], tuple[str, ...]]:
    """Write what is needed of some packs into a new one. Returns the packs that are in it in full, and the new one.

    The manifests of the newest generations have frames of their own, as a commit makes them. Those of earlier ones are
    left out: they stay where those generations look for them.
    """
    users = set[Ref]().union(*(marked.packs[pack] for pack in packs))
    manifests = {digest for ref in users & marked.newest for digest in ref.stored}
    earlier = {digest for ref in users for digest in ref.stored} - manifests
    merged, last, done = [], dict[bytes, bytes](), set[bytes]()
    with storage.blobs.writer(Layout.PACKED) as writer:
        for pack in packs:
            try:
                for digest, data in _live_in(storage, pack, marked, done | earlier):
                    if digest in manifests:
                        last[digest] = bytes(data)
                    else:
                        writer.put(digest, bytes(data))
                    done.add(digest)
                merged.append(pack)
            except (IntegrityError, OSError) as error:
                log.warning("pack %s is not rewritten: %s", pack, error)
        if len(merged) < min(len(packs), _FEWEST):
            return [], ()
        for digest, content in last.items():
            writer.put_manifest(digest, content)
        return merged, writer.finish()


def _live_in(storage: Storage, pack: str, marked: Marked, but: set[bytes]) -> Iterator[Blob]:
    """The blobs of a pack that any generation needs.

    Raises:
        IntegrityError, OSError: one of them cannot be read.
    """
    reader = PackReader(storage.backend, pack)
    dead = set(marked.packed.absent(reader.index.digests))
    wanted = {d: size for d, size in reader.index.sizes_by_digest().items() if d not in dead and d not in but}
    lost = len(wanted)
    for blob in reader.fetch(wanted):
        lost -= 1
        yield blob
    if lost:
        raise IntegrityError(f"damaged in {plural(lost, 'blob')}; see `kstore verify`")


def _republish(storage: Storage, ref: Ref, replaced: Mapping[str, tuple[str, ...]]) -> bool:
    """Publish a generation again with its new packs. Returns False if it is no longer the newest: a commit that was
    faster names the old packs, which therefore stay.
    """

    def packs(ref: Ref) -> tuple[str, ...]:
        if not are_present(storage, {new for old in ref.packs for new in replaced.get(old, ())}):
            raise IntegrityError("another gc may have removed its new pack")
        return tuple(dict.fromkeys(new for old in ref.packs for new in replaced.get(old, (old,))))

    try:
        return republish(storage, ref, packs, upon=ref.generation) is not None
    except (IntegrityError, MissError, StoreUnavailable) as error:
        log.warning("%s is not repacked: %s", ref.scope, error)
        return False
