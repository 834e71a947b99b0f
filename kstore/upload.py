"""Upload: which blobs the store lacks, and their bytes, in the order that compresses best."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Mapping, Sequence, Set
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Protocol

from kstore.blobs import BlobWriter, Layout
from kstore.blobs.batches import Fetch, keepable
from kstore.blobs.writers import Read, put_many
from kstore.condemned import Doomed, read_doomed
from kstore.digest import digest_of
from kstore.errors import IntegrityError
from kstore.layout import choose_layout
from kstore.progress import Progress
from kstore.published.delta import difference, may_follow
from kstore.published.leaning import kept_by, may_lean
from kstore.published.lost import lost_of
from kstore.published.manifest import Manifest
from kstore.published.ref import Delta, Ref
from kstore.published.siblings import siblings
from kstore.published.snapshot import Snapshot
from kstore.scope import Scope
from kstore.storage import Storage

if TYPE_CHECKING:
    from kstore.intake import Intake

log = logging.getLogger(__name__)

_WHOLE_EVERY = 8
"""Generations after which a manifest is stored whole again: a damaged one costs all that follow on it."""


class Committer(Protocol):
    """Whose blobs are uploaded: a `Worker`, or a `Target`, which has no cache root."""

    @property
    def storage(self) -> Storage:
        """Where they go."""

    @property
    def scope(self) -> Scope:
        """What they are published for."""

    @property
    def layout(self) -> Layout | None:
        """How new blobs are stored; None to choose by what links."""

    @property
    def links_into(self) -> str:
        """A folder on the filesystem that loose blobs would be linked into."""

    @property
    def ahead(self) -> tuple[str, ...]:
        """Packs that were uploaded before; those that are there are relied on."""

    @property
    def progress(self) -> Progress:
        """How far the upload has come."""


_Put = Callable[[BlobWriter, Sequence[bytes]], set[bytes]]


class Uploader:
    """Brings the blobs of one commit into the store, in one attempt or more.

    An attempt relies on two things without uploading them: what the newest generation has, which keeps it, and what
    was there, and not condemned, after a place for the attempt's ref was reserved. The latter is

    - in packs that this commit has written (`_stored`), or an earlier one of the same job (`_ahead`);
    - of the generation that the root grew from (`_relied`);
    - of the newest generations of the keys beside a new one (`_siblings`).

    What is condemned (`_doomed`) or could not be read by a restore (`_missed`) is not part of it.
    """

    def __init__(self, committer: Committer, begun: Intake | None = None, missed: Set[bytes] = frozenset()) -> None:
        """`begun` may have begun to store a key that has no generation; what it has begun is finished at most once.

        What a restore has `missed` is not relied upon, wherever it seems to be, unless the newest generation has it
        where it can be read now.
        """
        self._committer = committer
        self._begun = begun
        self._missed = missed
        self._storage = committer.storage
        self._doomed = Doomed()
        self._siblings: tuple[str, ...] = ()
        self._sibling: Ref | None = None
        self._ahead: tuple[str, ...] = ()
        self._relied: tuple[str, ...] = ()
        self._shadowed: set[bytes] = set()
        """What is lost, and seems to be in a pack of the newest generation."""
        self._altered: set[bytes] = set()
        """What exists as a loose blob that somebody has changed."""
        self._stored: list[tuple[tuple[str, ...], set[bytes]]] = []
        """Packs, and the digests of what was stored with them; what was stored last is first."""
        self._lost: Set[bytes] = frozenset()
        """What the newest generation has lost, and this attempt brings back."""
        self.delta: Delta | None = None
        """What is stored of this attempt's manifest, if that is not stored whole."""
        self.layout: Layout | None = begun.layout if begun else None
        """How new blobs are stored; None before the first attempt."""
        self.below: set[bytes] = set()
        """What this attempt does not upload because a store below has it."""
        self.blobs = 0
        """How many were stored."""
        self.bytes = 0
        """That reached the store."""

    def begin(self, among: Callable[[], Container[bytes]], is_first: bool) -> None:
        """Begin an attempt to commit blobs whose digests are in what `among` returns; `is_first` if the key is new."""
        self._storage.create()
        self.delta = None
        self.layout = self.layout or choose_layout(self._committer)
        if self._begun and not is_first:
            self._begun.discard()
            self._begun = None
        if self._begun:
            self._begun.settle()
        self._doomed = read_doomed(self._storage.backend, among)
        if self._begun and self.layout is Layout.LOOSE:  # gc may have thought meanwhile that nobody needs them
            self._begun.written -= self._doomed.blobs if self._doomed.is_complete else self._begun.written.copy()
        self._stored = [(packs, blobs) for packs, blobs in self._stored if self._present(packs) == packs]
        self._ahead = self._present(self._committer.ahead)
        self._siblings, self._sibling, self._relied, self._shadowed, self._altered = (), None, (), set(), set()
        if is_first and self.layout is Layout.PACKED and not (self._begun and self._begun.is_alone):
            found = siblings(self._storage, self._committer.scope)
            self._siblings = self._reliable(dict.fromkeys(pack for ref in found for pack in ref.packs))
            # The clocks need not agree: any of these would do, and one of the latest resembles this key most.
            self._sibling = max(found, key=lambda ref: ref.created, default=None)

    @property
    def packs(self) -> tuple[str, ...]:
        """What this commit has written and may rely on."""
        return tuple(pack for packs, _ in self._stored for pack in packs)

    @property
    def written(self) -> set[bytes]:
        """Digests of what the intake has stored already, as long as that is to be finished."""
        return self._begun.written if self._begun else set()

    def lacking(
        self, sizes: Mapping[bytes, int], theirs: Snapshot | None, base: Snapshot | None, lost: Set[bytes] = frozenset()
    ) -> Mapping[bytes, int]:
        """Which of these blobs, given with their sizes in bytes, to upload: what the store lacks, what may not be
        relied upon there, and what is `lost`; but not what may be left in a store below.
        """
        held = self._storage.blobs.digests_in
        self._lost = lost
        known = held(self._siblings)
        if base and base is not theirs and self._may_rely_on(base.ref):
            gone = self._doomed.blobs | lost_of(self._storage, base, sizes, self._missed)
            known |= kept_by(base) - gone
            self._relied = base.ref.packs
        known -= self._missed
        known |= kept_by(theirs)
        known -= lost
        known |= held(self.packs + self._ahead)
        wanted = _without(sizes, known)
        if self.layout is Layout.LOOSE and self._doomed.is_complete:
            gone = self._doomed.blobs | lost | self._missed
            asked = _without(wanted, gone)
            away, self._altered = self._storage.blobs.loose.unreliable(asked)
            wanted = _without(wanted, {d for d in asked if d not in away and d not in self._altered})
        may_be_below = wanted if may_lean(self._storage, theirs) else {}
        unsure = lost | self._missed
        if unsure and theirs and not theirs.ref.depth:
            self._shadowed = held(theirs.ref.packs) & unsure
        self.below = self._storage.below.held(_without(may_be_below, unsure))
        return _without(wanted, self.below)

    def upload(self, wanted: Mapping[bytes, int], read: Read, manifest: bytes | None = None) -> set[bytes]:
        """Store blobs, given with their sizes in bytes, and the manifest. Returns the digests of what changed
        meanwhile; the manifest is then not stored.

        Without a manifest, whatever has not changed is stored. A name that gc may delete is never taken again: what
        is condemned as a loose blob goes into a pack. So does what is damaged as a loose blob.
        """
        progress, done = self._committer.progress, len(self.written)
        return self._upload(wanted, lambda to, chosen: put_many(to, chosen, read, progress, done), manifest)

    def copy(self, wanted: Mapping[bytes, int], fetch: Fetch, manifest: bytes | None = None) -> set[bytes]:
        """As `upload`, of blobs that `fetch` brings in an order of its own.

        Returns the digests of those that it does not bring. Memory stays flat: no blob waits for another.
        """
        return self._upload(wanted, lambda to, chosen: self._put_fetched(to, wanted, chosen, fetch), manifest)

    def _put_fetched(
        self, writer: BlobWriter, wanted: Mapping[bytes, int], chosen: Sequence[bytes], fetch: Fetch
    ) -> set[bytes]:
        left = set(chosen)
        for digest, data in fetch({digest: wanted[digest] for digest in chosen}):
            writer.put(digest, keepable(data))
            left.discard(digest)
            self._committer.progress.done += 1
            del data  # or a large blob would be held while the next one is fetched
        return left

    def _upload(self, wanted: Mapping[bytes, int], put: _Put, manifest: bytes | None) -> set[bytes]:
        taken = {digest for digest, size in wanted.items() if self._is_taken(digest, size)}
        fresh = [digest for digest in wanted if digest not in taken]
        begun, written, self._begun = self._begun, self.written, None
        with ExitStack() as stack:
            writer = begun.writer if begun else None
            if writer is None:
                expected = sum(map(wanted.__getitem__, fresh))
                into = self._storage.blobs.writer(self.layout or Layout.PACKED, expected=expected)
                writer = stack.enter_context(into)
            spare = stack.enter_context(self._storage.blobs.writer(Layout.PACKED))
            refused = put(writer, fresh)
            if taken:
                refused |= put(spare, [digest for digest in wanted if digest in taken])
            if manifest is not None and not refused:
                writer.put_manifest(digest_of(manifest), manifest)
            if manifest is None or not refused:
                stored = (written | wanted.keys()) - refused if wanted else written
                self._stored.insert(0, (writer.finish() + spare.finish(), stored))
                self.blobs += writer.blobs + spare.blobs
                self.bytes += writer.size + spare.size
        return refused

    def _is_taken(self, digest: bytes, size: int) -> bool:
        """Whether a blob must not be stored as a loose one: that name is or may be condemned, or a damaged blob has it.

        The same holds for one that is lost in a pack which the ref goes on naming: gc would think it not needed.
        """
        if digest in self._doomed.blobs or digest in self._altered:
            return True
        if self.layout is not Layout.LOOSE:
            return False
        if not self._doomed.is_complete or digest in self._shadowed:
            return True
        if digest not in self._missed:
            return False
        try:
            return self._storage.blobs.loose.has(digest, size)
        except OSError:
            return True

    def shortened(self, manifest: bytes, theirs: Snapshot | None, base: Snapshot | None) -> bytes:
        """What is to be stored for a manifest: what it adds to one that the store has, if that is much less."""
        ref = self._earlier(theirs, base)
        if ref is None or ref.generation % _WHOLE_EVERY == 0:
            return manifest
        followed, size = (ref.delta.follows, ref.delta.follows_size) if ref.delta else (ref.manifest, ref.manifest_size)
        before = self._kept(followed, size, ref) if may_follow(len(manifest), size) else None
        delta = difference(manifest, before) if before else None
        if delta is None:
            return manifest
        self.delta = Delta(digest_of(delta), len(delta), followed, size)
        return delta

    def _earlier(self, theirs: Snapshot | None, base: Snapshot | None) -> Ref | None:
        """A generation whose manifest may be relied upon, by the rules for everything that is not uploaded."""
        ref = next((known.ref for known in (theirs, base) if known and not known.ref.depth), self._sibling)
        if ref is None or not self._doomed.blobs.isdisjoint(ref.stored):
            return None
        if ref is self._sibling and not ref.stored.keys() <= self._storage.blobs.digests_in(self._siblings):
            return None  # Some of it is loose, and nobody has asked whether that is condemned.
        return ref if (theirs and ref is theirs.ref) or self._may_rely_on(ref) else None

    def _kept(self, digest: bytes, size: int, ref: Ref) -> bytes | None:
        """A blob, from where gc keeps it for the generation; None if it is damaged there, or is only elsewhere."""
        try:
            parts = self._storage.blobs.parts({digest: size}, ref.packs)
            return next((bytes(data) for part in parts for _, data in part.load()), None)
        except (IntegrityError, OSError) as error:
            log.debug("a manifest of %s is stored whole: %s", self._committer.scope, error)
            return None

    def packs_of(self, manifest: Manifest, theirs: Snapshot | None) -> tuple[str, ...]:
        """The packs that a ref has to name, as gc deletes those that no ref names: all that may hold blobs of the
        manifest, or the manifest that it follows on. What the newest generation keeps is looked for in its packs alone:
        others that hold it may be gone, because gc makes one pack of many.
        """
        if not (theirs or self._ahead or self._relied or self._siblings):
            return self.packs
        needed = {entry.digest for _, entry in manifest.items()}
        if self.delta:
            needed.add(self.delta.follows)
        may_hold = self._storage.blobs.may_hold
        published = theirs.ref.packs if theirs and not theirs.ref.depth else ()
        if published and theirs and any(entry.digest not in needed for entry in theirs.manifest.entries()):
            published = tuple(pack for pack in published if may_hold(pack, needed))
        others = [p for p in (*self._ahead, *self._relied, *self._siblings) if p not in published]
        left = self._left(needed, theirs) if others else set()
        shared = [pack for pack in others if left and may_hold(pack, left)]
        named = tuple(dict.fromkeys((*self.packs, *published, *shared)))
        return self._without_gone(named, needed, theirs) if theirs and self._lost else named

    def _left(self, needed: set[bytes], theirs: Snapshot | None) -> set[bytes]:
        """What of `needed` neither this commit has stored nor the newest generation keeps."""
        left = needed.difference(*(stored for _, stored in self._stored), kept_by(theirs), self.below)
        return left - theirs.ref.stored.keys() if theirs and not theirs.ref.depth else left

    def _without_gone(self, packs: tuple[str, ...], needed: set[bytes], theirs: Snapshot) -> tuple[str, ...]:
        """A pack that is gone is named until all that it held is elsewhere, so that whoever has that brings it back."""
        blobs = self._storage.blobs
        with suppress(OSError):  # What cannot be looked at now may be gone.
            there = tuple(pack for pack in packs if blobs.has_pack(pack))
            elsewhere = blobs.digests_in(there) | self.below
            entries = theirs.manifest.entries()
            left = {e.digest: e.size for e in entries if e.digest in needed and e.digest not in elsewhere}
            if not blobs.loose.lacking(left):
                return there
        return packs

    def _reliable(self, packs: Iterable[str]) -> tuple[str, ...]:
        return tuple(pack for pack in packs if self._doomed.is_complete and pack not in self._doomed.packs)

    def _present(self, packs: tuple[str, ...]) -> tuple[str, ...]:
        """Those of `packs` to rely on, as some may be gone. What has been deleted is on no list any more."""
        return tuple(pack for pack in self._reliable(packs) if self._storage.blobs.has_pack(pack))

    def _may_rely_on(self, ref: Ref) -> bool:
        """Whether all that the generation has is there, except the condemned blobs. A repair may have moved a pack."""
        is_reliable = not ref.depth and self._present(ref.packs) == ref.packs
        return is_reliable and self._doomed.is_complete and self._storage.refs.is_kept(ref)


def _without(blobs: Mapping[bytes, int], those: Set[bytes]) -> Mapping[bytes, int]:
    """`blobs` without `those`. No needless copy is made: there may be a hundred thousand."""
    return {digest: size for digest, size in blobs.items() if digest not in those} if those else blobs
