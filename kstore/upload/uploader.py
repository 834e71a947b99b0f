"""Stores the blobs of one commit: in the layout that fits the store, or as packs."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence, Set
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Protocol

from kstore.aside import Kept, pieces_of
from kstore.blobs import BlobWriter, Layout
from kstore.blobs.batches import Fetch, keepable
from kstore.blobs.writers import Read, put_many
from kstore.condemned import read_doomed
from kstore.digest import digest_of_parts
from kstore.digest.numbers import DigestSet
from kstore.layout import choose_layout
from kstore.progress import Progress
from kstore.published.siblings import siblings
from kstore.published.snapshot import Snapshot
from kstore.scope import Scope
from kstore.storage import Storage
from kstore.upload.named import Stored, packs_in
from kstore.upload.plan import UploadPlan
from kstore.upload.reliance import Reliance, present

if TYPE_CHECKING:
    from kstore.intake import Intake


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
    """Brings the blobs of one commit into the store, in one attempt or more."""

    def __init__(self, committer: Committer, begun: Intake | None = None, missed: Set[bytes] = frozenset()) -> None:
        """`begun` may have begun to store a key that has no generation; what it has begun is finished at most once.

        What a restore has `missed` is not relied upon: see `Reliance`.
        """
        self._committer = committer
        self._begun = begun
        self._missed = missed
        self._storage = committer.storage
        self.stored: list[Stored] = []
        """What was stored, and may be relied upon; the last first."""
        self.layout: Layout | None = begun.layout if begun else None
        """How new blobs are stored; None before the first attempt."""
        self.blobs = 0
        """How many were stored."""
        self.bytes = 0
        """That reached the store."""

    def begin(
        self, theirs: Snapshot | None, base: Snapshot | None, among: Callable[[], Container[bytes]], *, is_first: bool
    ) -> Reliance:
        """Begin an attempt to commit upon `theirs`, the newest generation, from a root that grew from `base`. What it
        may bring or rely on is in what `among` returns, by digest; `is_first` if the key is new.
        """
        self._storage.create()
        self.layout = layout = self.layout or choose_layout(self._committer)
        if self._begun and not is_first:
            self._begun.discard()
            self._begun = None
        if self._begun:
            self._begun.settle()
        has_begun = self._begun and self._begun.layout
        if not has_begun and (not theirs or theirs.ref.depth):
            self._storage.refs.expect(self._committer.scope)()  # To gc, blobs without `refs/` are a server's denial.
        doomed = read_doomed(self._storage.backend, among)
        if self._begun and layout is Layout.LOOSE:  # gc may have thought meanwhile that nobody needs them
            self._begun.written.discard_each(doomed.blobs if doomed.is_complete else [*self._begun.written])
        there = partial(present, self._storage, doomed)
        # What an attempt stored of its manifest alone is of no use once it has lost its race.
        self.stored = [stored for stored in self.stored if stored.digests and there(stored.packs) == stored.packs]
        ahead = there(self._committer.ahead)
        may_have_siblings = is_first and layout is Layout.PACKED and not (self._begun and self._begun.is_alone)
        beside = siblings(self._storage, self._committer.scope) if may_have_siblings else ()
        return Reliance(self._storage, layout, doomed, self._missed, theirs, base, self.packs, ahead, beside)

    @property
    def packs(self) -> tuple[str, ...]:
        """What this commit has written and may rely on."""
        return packs_in(self.stored)

    @property
    def written(self) -> DigestSet:
        """Digests of what the intake has stored already, as long as that is to be finished."""
        return self._begun.written if self._begun else DigestSet()

    def upload(self, plan: UploadPlan, read: Read, manifest: Kept | None = None) -> set[bytes]:
        """Store the blobs that are wanted, and the manifest. Returns the digests of what changed meanwhile; the
        manifest is then not stored.

        Without a manifest, whatever has not changed is stored. A name that gc may delete is never taken again: what
        is condemned as a loose blob goes into a pack. So does what is damaged as a loose blob.
        """
        progress, done = self._committer.progress, len(self.written)
        return self._upload(plan, lambda to, chosen: put_many(to, chosen, read, progress, done), manifest)

    def copy(self, plan: UploadPlan, fetch: Fetch, manifest: Kept | None = None) -> set[bytes]:
        """As `upload`, of blobs that `fetch` brings in an order of its own.

        Returns the digests of those that it does not bring. Memory stays flat: no blob waits for another.
        """
        return self._upload(plan, lambda to, chosen: self._put_fetched(to, plan.wanted, chosen, fetch), manifest)

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

    def _upload(self, plan: UploadPlan, put: _Put, manifest: Kept | None) -> set[bytes]:
        wanted = plan.wanted
        barred = {digest for digest, size in wanted.items() if plan.is_barred(digest, size)}
        fresh = [digest for digest in wanted if digest not in barred]
        begun, written, self._begun = self._begun, self.written, None
        with ExitStack() as stack:
            writer = begun.writer if begun else None
            if writer is None:
                expected = sum(map(wanted.__getitem__, fresh))
                writer = stack.enter_context(self._storage.blobs.writer(plan.reliance.layout, expected=expected))
            spare = stack.enter_context(self._storage.blobs.writer(Layout.PACKED))
            refused = put(writer, fresh)
            if barred:
                refused |= put(spare, [digest for digest in wanted if digest in barred])
            if manifest is not None and not refused:
                writer.put_manifest(digest_of_parts(pieces_of(manifest)), manifest)
            if manifest is None or not refused:
                stored = (written | wanted.keys()) - refused if wanted else written
                self.stored.insert(0, Stored(writer.finish() + spare.finish(), stored))
                self.blobs += writer.blobs + spare.blobs
                self.bytes += writer.size + spare.size
        return refused
