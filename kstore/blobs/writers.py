"""Stores the new blobs of one commit, as a file each or as one pack."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from enum import StrEnum
from functools import partial
from typing import Protocol, Self

from kstore.aside import Aside, Kept
from kstore.backends import Backend
from kstore.blobs.loose import LooseBlobs
from kstore.blobs.packindex import pack_name
from kstore.blobs.packwriter import PackWriter
from kstore.progress import Progress
from kstore.threads import Pool, answer_now, submit

_THREADS = 2
BATCH_COUNT = 128
"""Loose blobs that a thread stores in one go."""
BATCH_SIZE = 4 << 20
"""Bytes of loose blobs that a thread stores in one go."""

Read = Callable[[Iterable[bytes]], Iterator[tuple[bytes, bytes | None]]]
"""Yields (digest, bytes) for each requested digest; None instead of bytes that cannot be had any more."""


class Layout(StrEnum):
    """How new blobs are stored. Readers take a blob from wherever it is."""

    LOOSE = "loose"
    """One file each: where cache roots can link or clone from the store."""
    PACKED = "packed"
    """One file for all blobs of a commit: everywhere else."""


class BlobWriter(Protocol):
    """Takes the new blobs of one commit. Leaving its context unfinished stores no pack."""

    blobs: int
    """How many were stored."""
    size: int
    """Bytes that reached the store."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def put(self, digest: bytes, data: bytes | memoryview) -> None:
        """Store one blob."""

    def flush(self) -> None:
        """Begin to store everything that was put, without waiting for it."""

    def put_manifest(self, digest: bytes, data: Kept) -> None:
        """Store the blob that readers want first, so that they can have it without the others."""

    def finish(self) -> tuple[str, ...]:
        """Make all blobs readable; returns the packs that hold them."""


def put_many(writer: BlobWriter, digests: Sequence[bytes], read: Read, progress: Progress, done: int = 0) -> set[bytes]:
    """Store blobs; returns the digests of those that cannot be read. `done` is how many were stored before."""
    refused = set()
    progress.done, progress.total = done, done + len(digests)
    for digest, data in read(digests):
        progress.done += 1
        if data is None:
            refused.add(digest)
        else:
            writer.put(digest, data)
        del data  # or a large blob would be held while the next one is read
    return refused


class LooseBlobWriter:
    """Stores each blob as a file of its own, one batch at a time in each of two threads."""

    def __init__(self, loose: LooseBlobs, *, asks: bool) -> None:
        """With `asks` it is not known yet which blobs exist already.

        Each batch is then asked about, as long as some blobs of the batch before it existed: asking takes a tenth of
        the time that storing takes.
        """
        self._loose = loose
        self._may_ask = self._asks = asks
        self._pool = Pool(_THREADS)
        self._batch: list[tuple[bytes, bytes | memoryview]] = []
        self._batch_size = 0
        self._storing: deque[Future[None]] = deque()
        self._has_failed = False
        """Whether some blobs that were to be stored at once could not be."""
        self._lock = threading.Lock()
        self.found: set[bytes] = set()
        """The digests of blobs that existed already."""
        self.blobs = 0
        self.size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def put(self, digest: bytes, data: bytes | memoryview) -> None:
        """Store one blob."""
        self._batch.append((digest, data))
        self._batch_size += len(data)
        if len(self._batch) >= BATCH_COUNT or self._batch_size >= BATCH_SIZE:
            self.flush()

    def store(self, blobs: Sequence[tuple[bytes, bytes | memoryview]]) -> None:
        """Store some blobs now, in this thread, which may be any.

        If that fails, `flush` and `settle` say so, and no more are stored: a full disk would be tried again and again,
        and each error holds what could not be stored.
        """
        if self._has_failed:
            return
        stored = answer_now(partial(self._store, blobs))
        if stored.exception():
            self._has_failed = True
            self._storing.append(stored)

    def flush(self) -> None:
        """Begin to store everything that was put. No more than some batches wait for a thread."""
        large = self._batch_size >= BATCH_SIZE
        if self._batch:
            self._storing.append(submit(self._pool, self._store, self._batch))
        self._batch, self._batch_size = [], 0
        while self._storing and (large or len(self._storing) > _THREADS or self._storing[0].done()):
            # What waits is in memory: a batch for each thread, or one large blob.
            self._storing.popleft().result()

    def put_manifest(self, digest: bytes, data: Kept) -> None:
        """Store one blob: each can be read by itself."""
        if isinstance(data, Aside):
            self.flush()
            self._storing.append(submit(self._pool, self._store_aside, digest, data))
        else:
            self.put(digest, data)

    def settle(self) -> None:
        """Wait until all are stored."""
        self.flush()
        while self._storing:
            self._storing.popleft().result()

    def finish(self) -> tuple[str, ...]:
        """Wait until all are stored. Loose blobs are in no pack."""
        self.settle()
        return ()

    def _store(self, batch: Sequence[tuple[bytes, bytes | memoryview]]) -> None:
        new = self._new(batch)
        with self._lock:
            self.found.update(digest for digest, _ in batch if digest not in new)
            self.blobs += len(new)
            self.size += sum(new.values())

    def _store_aside(self, digest: bytes, data: Aside) -> None:
        is_new = self._loose.put_aside(digest, data)
        with self._lock:
            self.blobs += is_new
            self.size += len(data) if is_new else 0

    def _new(self, batch: Sequence[tuple[bytes, bytes | memoryview]]) -> dict[bytes, int]:
        """Store what does not exist yet; returns its digests and sizes in bytes."""
        left = batch
        if self._asks:
            away = self._loose.lacking({digest: len(data) for digest, data in batch})
            left = [blob for blob in batch if blob[0] in away]
        created = self._loose.put_many(left)
        new = {digest: len(data) for (digest, data), is_new in zip(left, created, strict=True) if is_new}
        self._asks = self._may_ask and len(new) < len(batch)
        return new


class PackedBlobWriter:
    """Stores all blobs as one pack, which appears when it is finished. No blob, no pack."""

    def __init__(self, backend: Backend, expected: int) -> None:
        """`expected` is about how many bytes will come, if that is known."""
        self._backend = backend
        self._expected = expected
        self._open = ExitStack()
        self._pack: PackWriter | None = None
        self.blobs = 0
        self.size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def put(self, digest: bytes, data: Kept) -> None:
        """Append one blob."""
        if self._pack is None:
            self._upload = self._open.enter_context(self._backend.upload())
            self._pack = self._open.enter_context(PackWriter(self._upload, expected=self._expected))
        self._pack.add(digest, data)

    def flush(self) -> None:
        """Compress and write what was put."""
        if self._pack:
            self._pack.pause()

    def put_manifest(self, digest: bytes, data: Kept) -> None:
        """Append one blob in a frame of its own, next to the index."""
        self.flush()
        self.put(digest, data)

    def finish(self) -> tuple[str, ...]:
        """Publish the pack."""
        if self._pack is None:
            return ()
        pack_id = self._pack.finish()
        self._upload.publish(pack_name(pack_id))
        self.blobs, self.size = len(self._pack), self._pack.size
        return (pack_id,)
