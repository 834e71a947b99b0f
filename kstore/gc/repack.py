"""Rewrite packs of which little is needed any more: what is needed goes into new packs, under new generations.

Only a pack that no generation but newest ones names is rewritten, for an older one would keep it. The new
generation holds the same manifest; the one before it goes a grace later, and the old pack with it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from kstore.blobs import Layout
from kstore.blobs.packreader import PackReader
from kstore.errors import IntegrityError, MissError
from kstore.gc.mark import Marked
from kstore.generations import republish
from kstore.refs import Ref
from kstore.scope import Scope
from kstore.storage import Storage

log = logging.getLogger(__name__)

_MOSTLY_DEAD = 0.5
"""Share of its blobs' bytes that must be dead for a pack to be rewritten."""
WORTHWHILE = 1 << 20
"""Bytes that must be dead, before compression: below that, another generation is not worth it."""


def mostly_dead(storage: Storage, marked: Marked) -> list[str]:
    """The packs that are worth rewriting."""
    newest: dict[Scope, Ref] = {}
    for ref in {ref for refs in marked.packs.values() for ref in refs}:
        if ref.scope not in newest or ref.generation > newest[ref.scope].generation:
            newest[ref.scope] = ref
    every = set(newest.values())
    return [
        pack for pack, refs in sorted(marked.packs.items()) if refs <= every and _is_mostly_dead(storage, pack, marked)
    ]


def _is_mostly_dead(storage: Storage, pack: str, marked: Marked) -> bool:
    try:
        index = PackReader(storage.backend, pack).index
    except (IntegrityError, OSError):
        return False
    dead = set(marked.packed.absent(index.digests))
    live = sum(size for digest, size in zip(index.digests, index.sizes, strict=True) if digest not in dead)
    lost = sum(index.sizes) - live
    return lost >= max(_MOSTLY_DEAD * sum(index.sizes), WORTHWHILE)


def repack(storage: Storage, packs: Iterable[str], marked: Marked) -> int:
    """Rewrite packs; returns how many."""
    replaced: dict[str, tuple[str, ...]] = {}
    refs: dict[Ref, None] = {}
    for pack in packs:
        try:
            replaced[pack] = _copy_live(storage, pack, marked)
            refs |= dict.fromkeys(marked.packs[pack])
        except (IntegrityError, OSError) as error:
            log.warning("pack %s is not rewritten: %s", pack, error)
    for ref in refs:
        _republish(storage, ref, replaced)
    return len(replaced)


def _copy_live(storage: Storage, pack: str, marked: Marked) -> tuple[str, ...]:
    reader = PackReader(storage.backend, pack)
    dead = set(marked.packed.absent(reader.index.digests))
    live = {digest: size for digest, size in reader.index.sizes_by_digest().items() if digest not in dead}
    with storage.blobs.writer(Layout.PACKED) as writer:
        for digest, data in reader.fetch(live):
            writer.put(digest, bytes(data))
        if writer.blobs != len(live):
            raise IntegrityError(f"{len(live) - writer.blobs} blobs of it are damaged; see `kstore verify`")
        return writer.finish()


def _republish(storage: Storage, ref: Ref, replaced: Mapping[str, tuple[str, ...]]) -> None:
    def packs(ref: Ref) -> tuple[str, ...]:
        return tuple(dict.fromkeys(new for old in ref.packs for new in replaced.get(old, (old,))))

    try:
        # A commit that was faster names the old pack, which therefore stays.
        republish(storage, ref, packs, only_if_newest=True)
    except (IntegrityError, MissError) as error:
        log.warning("%s is not repacked: %s", ref.scope, error)
