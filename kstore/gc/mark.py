"""Mark: what the generations of a store need.

A pack is live if a ref names it, or if it is kept for a generation one of whose own packs cannot be read: see
`kstore.gc.seek`.

A loose blob is live if a generation has it and none of that generation's packs does. So a loose blob that was
condemned, and then uploaded again into a pack, dies all the same, and a name that is about to be deleted never becomes
live again.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field

from kstore.blobs.blobstore import BlobStore
from kstore.condemned import Condemned
from kstore.errors import IntegrityError, MissError, reason_of
from kstore.far import ask_each
from kstore.gc.digests import DigestSet
from kstore.gc.seek import seek
from kstore.progress import Progress
from kstore.published.delta import read_manifest
from kstore.published.fetched import Fetched, fetch_each, trouble_with
from kstore.published.leaning import leaning
from kstore.published.manifest import Manifest
from kstore.published.ref import Ref, RefState, ref_name
from kstore.report import Count
from kstore.scope import Scope
from kstore.storage import Storage

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Needs:
    """What one generation needs."""

    packs: tuple[str, ...]
    loose: dict[bytes, int]
    """Digest → size in bytes, of the blobs that are in none of the packs."""
    packed: dict[bytes, int]
    """The same for the blobs that are in one of them."""
    leant: dict[bytes, int]
    """The same for those that were not uploaded because a store below had them: they may not be here."""
    unread: frozenset[str] = frozenset()
    """Those of the packs that do not say what they hold."""
    lacking: tuple[bytes, ...] = ()
    """The loose ones that are missing, if a pack is unread: another pack may have them."""


@dataclass(slots=True)
class Marked:
    """What all generations need."""

    there: DigestSet
    """The loose blobs that were there before marking began."""
    loose: DigestSet
    packed: DigestSet
    leant: DigestSet
    """What a store below had: kept if it is here, and not counted."""
    lacking: DigestSet
    """What is needed by generations with an unreadable pack, and is neither in their other packs nor loose."""
    packs: dict[str, set[Ref]] = field(default_factory=dict)
    """Live pack → the refs that name it."""
    newest: set[Ref] = field(default_factory=set)
    """The last ref of each scope."""
    unread_packs: set[str] = field(default_factory=set)
    """Live packs that at least once could not say what they hold: nobody knows what in them is dead."""
    sought: set[str] = field(default_factory=set)
    """Live packs that no ref names: they hold what is lacking."""
    found: Count = field(default_factory=Count)
    """The loose blobs that are needed and were there: others are lost, or have just arrived."""
    unreadable: list[str] = field(default_factory=list)
    """What cannot be read: it may need anything."""

    def is_live(self, condemned: Condemned) -> bool:
        """Whether any generation needs this object."""
        if condemned.is_pack:
            return self.keeps(condemned.digest.hex())
        return condemned.digest in self.loose or condemned.digest in self.leant

    def keeps(self, pack: str) -> bool:
        """Whether any generation needs this pack."""
        return pack in self.packs or pack in self.sought

    def needs(self, digest: bytes, is_pack: bool) -> bool:
        """Whether any generation needs a pack, or a blob wherever it is."""
        if is_pack:
            return self.keeps(digest.hex())
        return any(digest in blobs for blobs in (self.loose, self.packed, self.leant))

    def dead(self, loose: Iterable[bytes]) -> list[bytes]:
        """Those of these loose blobs that no generation needs."""
        return self.leant.absent(self.loose.absent(loose))


def needs_of(storage: Storage, ref: Ref) -> Needs:
    """What a generation needs, its manifest included.

    Raises:
        IntegrityError: its manifest is damaged.
    """
    blobs = storage.blobs_anew()
    return needs_in(blobs, ref, Manifest.load(read_manifest(blobs, ref)))


def needs_in(blobs: BlobStore, ref: Ref, manifest: Manifest) -> Needs:
    """The same for a manifest that has been read."""
    sizes = dict(manifest.blobs()) | ref.stored
    held, unread = blobs.contents(ref.packs)
    inside = sizes.keys() & held
    leant = {digest: size for digest, size in leaning(manifest).items() if digest not in inside}
    loose = {digest: size for digest, size in sizes.items() if digest not in inside and digest not in leant}
    packed = {digest: sizes[digest] for digest in inside}
    lacking = tuple(blobs.loose.lacking(loose)) if unread else ()
    return Needs(ref.packs, loose, packed, leant, frozenset(unread), lacking)


def is_whole(storage: Storage, scope: Scope, generation: int) -> bool:
    """Whether a generation can be read now: its ref and, unless it is empty, its manifest's bytes, and what its packs
    hold. A pack that cannot be read does not matter if everything it held is elsewhere: a commit has brought it back.
    """
    blobs = storage.blobs_anew()
    try:
        ref = storage.refs.get(scope, generation)
        if ref.state is not RefState.LIVE:
            return True
        data = read_manifest(blobs, ref)
        return all(map(blobs.can_read, ref.packs)) or not needs_in(blobs, ref, Manifest.load(data)).lacking
    except (IntegrityError, MissError, OSError, MemoryError) as error:
        log.debug("generation %d of %s cannot be read: %s", generation, scope, reason_of(error))
        return False


def mark(storage: Storage, gone: Container[str], marked: Marked, progress: Progress) -> None:
    """Mark what every generation needs, except those whose refs' names are in `gone`."""
    newest: dict[Scope, Ref] = {}
    for (scope, generation), fetch in fetch_each(storage, _staying(storage, gone)):
        try:
            fetched = fetch()
        except MissError as error:
            # Another gc may have removed it since. One that is still listed but not found keeps all that it may name.
            if generation in storage.refs.all_generations(scope):
                marked.unreadable.append(str(error))
        except IntegrityError as error:
            marked.unreadable.append(str(error))
        else:
            newest[scope] = fetched.ref
            _mark_one(storage, fetched, marked)
            progress.done += 1
    marked.newest.update(newest.values())
    marked.sought |= seek(storage, marked.lacking, marked.packs)


def _staying(storage: Storage, gone: Container[str]) -> Iterator[tuple[Scope, int]]:
    """Every generation that is not in `gone`, the oldest of a scope first."""
    for scope, list_generations in ask_each(storage.refs.all_generations, storage.refs.all_scopes()):
        for generation in list_generations():
            if ref_name(scope, generation) not in gone:
                yield scope, generation


def _mark_one(storage: Storage, fetched: Fetched, marked: Marked) -> None:
    ref = fetched.ref
    for pack in ref.packs:
        marked.packs.setdefault(pack, set()).add(ref)
    try:
        needs = needs_in(fetched.blobs, ref, Manifest.load(fetched.data()))
    except (IntegrityError, OSError, MemoryError) as error:
        marked.unread_packs.update(ref.packs)
        if storage.refs.exists(ref.scope, ref.generation):
            marked.unreadable.append(trouble_with(ref.scope, ref.generation, error))
        return
    marked.unread_packs |= needs.unread
    new = marked.loose.add(needs.loose)
    lost = marked.there.absent(new)
    size = sum(map(needs.loose.__getitem__, new)) - sum(map(needs.loose.__getitem__, lost))
    marked.found += Count(len(new) - len(lost), size)
    marked.packed.add(needs.packed)
    marked.lacking.add(needs.lacking)
    marked.packed.add(needs.lacking)  # If they are in a pack that is rewritten, they go along.
    marked.leant.add(needs.leant)
