"""What a commit's scan reads, on its way to the store: nothing is read twice that need not be.

A key's first commit can leave out little of what it reads, so its pack, or its loose blobs, are written while the cache
root is read. Most of any other commit is known already, and which part is not will be known when everything is merged:
until then small files are kept in memory, because opening them takes longer than reading them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import compress
from typing import Self

from kstore.backends import Upload
from kstore.blobs import BlobWriter, Layout
from kstore.blobs.writers import LooseBlobWriter
from kstore.condemned import has_lists
from kstore.digest.numbers import DigestSet
from kstore.errors import KstoreError
from kstore.layout import choose_layout
from kstore.local.state import State
from kstore.local.unread import StoreEach
from kstore.published.layers import newest_ref
from kstore.published.siblings import siblings
from kstore.worker import Worker

log = logging.getLogger(__name__)

_ROOM = 2 << 20
"""Bytes of small files that are kept."""
_SMALL = 16 << 10


class Intake:
    """Takes what a scan reads. A pack that is not finished when the context is left is not stored.

    Loose blobs are stored at once, so a place for the ref is reserved before the first of them: only a commit that
    publishes in that place may rely on them.
    """

    def __init__(self, worker: Worker, state: State | None = None) -> None:
        """With `state`, the state of the cache root, this may be the first commit to its key: only then is anything
        stored while the root is read.
        """
        self._worker = worker
        self._may_be_first = state is not None and not (state.base or worker.ahead or worker.storage.below)
        self._known: set[bytes] = set()
        self._room = _ROOM
        self._open = ExitStack()
        self._place = ExitStack()
        self._reserved: Upload | None = None
        self.kept: dict[bytes, bytes] = {}
        """Digest → what was kept."""
        self.layout: Layout | None = None
        """How new blobs are stored, if that is known."""
        self.writer: BlobWriter | None = None
        """The unfinished pack, or the writer of loose blobs, if anything was begun."""
        self.written = DigestSet()
        """Digests of the blobs that were given to the writer."""
        self.is_alone = False
        """Whether there was no key beside this one."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.discard()
        self._place.close()

    @contextmanager
    def reservation(self) -> Iterator[Upload]:
        """A place for the ref: the one that was reserved before anything was stored, or a new one."""
        with self._place.pop_all():
            reserved, self._reserved = self._reserved, None
            if reserved:
                yield reserved
                return
        with self._worker.storage.refs.reserve() as reserved:
            yield reserved

    def discard(self) -> None:
        """Give up what was begun."""
        self._open.close()
        self.writer = None
        self.written = DigestSet()

    def store(self, blobs: Sequence[tuple[bytes, bytes]]) -> None:
        """Store some loose blobs at once, in this thread; nothing once they are discarded."""
        written, writer = self.written, self.writer  # in this order: `discard` replaces them in the other
        if isinstance(writer, LooseBlobWriter):
            are_new = written.add_each(digest for digest, _ in blobs)  # Files may have the same content.
            writer.store([*compress(blobs, are_new)])

    def offer(self, blobs: Sequence[tuple[bytes, bytes]], expected: int) -> StoreEach | None:
        """Take some blobs, given with their digests. Everything that will be offered has about `expected` bytes. If
        blobs are loose, returns a function that stores the others.
        """
        with self._discarding():
            if self._may_be_first and blobs:
                self._may_be_first = False
                self._begin(expected)
            if self.writer:
                self._write(self.writer, blobs)
                return self.store if self.layout is Layout.LOOSE else None
        for digest, data in blobs:
            if len(data) <= min(_SMALL, self._room):
                self._room -= len(data)
                self.kept[digest] = data
        return None

    def end(self) -> None:
        """Everything was offered: begin to store the rest now, because a store that is far away takes its time."""
        with self._discarding():
            if self.writer:
                self.writer.flush()

    @contextmanager
    def _discarding(self) -> Iterator[None]:
        """Give up what was begun if it fails: whether the store is needed will be known when everything is merged."""
        try:
            yield
        except (KstoreError, OSError) as error:
            log.debug("%s is scanned before it is uploaded: %s", self._worker.scope, error)
            self.discard()

    def settle(self) -> None:
        """Wait until what was begun is stored. Loose blobs that were there before do not count.

        Raises:
            OSError: one cannot be stored.
        """
        if isinstance(self.writer, LooseBlobWriter):
            self.writer.settle()
            self.written.discard_each(self.writer.found)

    def _begin(self, expected: int) -> None:
        """Begin to store what is read, if the key has no generation yet."""
        storage = self._worker.storage
        if newest_ref(storage, self._worker.scope) is not None:
            return
        storage.create()
        # Nothing may be written once a commit has ended, well or not: the store may be unmounted by then.
        wait_for_refs = storage.refs.expect(self._worker.scope)
        self._place.callback(wait_for_refs)
        self.layout = choose_layout(self._worker)
        if self.layout is Layout.PACKED:
            self._place.callback(storage.blobs.expect_pack())
            beside = siblings(storage, self._worker.scope)
            self.is_alone = not beside
            self._known = storage.blobs.digests_in(pack for ref in beside for pack in ref.packs)
            expected = 0 if self._known else expected  # Nobody knows how much of it those packs have.
        else:
            wait_for_refs()  # To gc, blobs without `refs/` are a server's denial.
            self._reserved = self._place.enter_context(storage.refs.reserve())
            if has_lists(storage.backend):  # No name on them may be taken, and there may be millions.
                return
        self._worker.progress.total = 0
        self.writer = self._open.enter_context(storage.blobs.writer(self.layout, asks=True, expected=expected))

    def _write(self, writer: BlobWriter, blobs: Sequence[tuple[bytes, bytes]]) -> None:
        unknown = [(digest, data) for digest, data in blobs if digest not in self._known]
        for digest, data in compress(unknown, self.written.add_each(digest for digest, _ in unknown)):
            writer.put(digest, data)
        self._worker.progress.done = len(self.written)
