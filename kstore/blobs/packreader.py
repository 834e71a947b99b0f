"""Reads a pack: its index with one read from the end, then only the frames that hold something wanted.

The manifest is beside the index and is read with it, and so is all of a small pack: a small model takes one read. What
was read this way is kept until it is requested, but only for the last few packs.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from functools import partial
from itertools import accumulate, chain, compress, count, islice, repeat
from operator import eq
from typing import NamedTuple, Protocol
from weakref import WeakSet

from kstore.backends import Opened
from kstore.blobs.frames import Frames, Readable, Tails, read_part
from kstore.blobs.packindex import FOOTER_SIZE, Frame, PackIndex, load_footer, load_index, pack_name
from kstore.digest import digests_of
from kstore.errors import IntegrityError
from kstore.told import warn_once

log = logging.getLogger(__name__)

_TAIL = 1 << 20
"""Bytes: enough for the index of ten thousand artifacts, and the manifest before it."""
_MAX_INDEX = 256 << 20
"""Bytes: six million blobs. A sparse file can be as large as anybody likes."""

Blob = tuple[bytes, memoryview]
"""(digest, bytes)."""


class Sizes(Protocol):
    """Blobs that are wanted, with their sizes in bytes."""

    def get(self, digest: bytes, /) -> int | None:
        """How large a blob is; None if it is not wanted."""

    def __contains__(self, digest: bytes, /) -> bool: ...

    def __iter__(self) -> Iterator[bytes]: ...


class Part(NamedTuple):
    """Blobs that are read in one go."""

    size: int
    """Bytes of memory that this takes."""
    load: Callable[[], Iterator[Blob]]
    """Yields what is undamaged. Any thread may call it."""


class PackReader:
    """One pack of a store.

    Threads that ask at the same time for what is not known yet may each read it. None waits for another, as it would
    with a `cached_property`, which before Python 3.12 has one lock for all packs (python/cpython#87634).

    Raises, from every method:
        IntegrityError: the pack is damaged.
        OSError: it cannot be read, or this process has no memory for what it holds.
    """

    def __init__(
        self, backend: Readable, pack_id: str, index: PackIndex | None = None, tails: Tails | None = None
    ) -> None:
        """`index` is for a pack that has none yet; `tails` are shared by the readers of one store."""
        self._backend = backend
        self.pack_id = pack_id
        self._name = pack_name(pack_id)
        self._size: int | None = None
        self._index = index
        self._frame_of: dict[bytes, int] = {}
        """The number of the frame that holds a blob; empty as long as the index is searched instead."""
        self._firsts: list[int] = []
        """The number of the first blob in each frame, known along with that."""
        self._tails = tails or Tails()
        self._open = WeakSet[Frames]()
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close what is open for parts that nobody will load any more, though an error may still refer to them."""
        with self._lock:
            opened = list(self._open)
        for frames in opened:
            frames.close()

    @property
    def size(self) -> int:
        """Bytes of the whole file."""
        if self._size is None:
            with closing(self._backend.open(self._name)) as file:
                self._size = file.size
        return self._size

    @property
    def index(self) -> PackIndex:
        """What is where in the pack."""
        if self._index is None:
            self._index = self._load_index()
        return self._index

    @property
    def is_known(self) -> bool:
        """Whether its index has been read."""
        return self._index is not None

    def _load_index(self) -> PackIndex:
        with closing(self._backend.open(self._name)) as file:
            return self._read_end(file)

    def _read_end(self, file: Opened) -> PackIndex:
        self._size = file.size
        tail = read_part(file, self._name, max(file.size - _TAIL, 0), min(_TAIL, file.size))
        index = self._index_at_end_of(file, tail)
        if any(frame.offset + frame.packed_size > file.size for frame in index.frames):
            raise IntegrityError(f"{self._name} declares a frame beyond its end")
        start, whole = file.size - len(tail), memoryview(tail)
        within = (frame for frame in index.frames if frame.offset >= start)
        frames = {f.offset: whole[f.offset - start : f.offset - start + f.packed_size] for f in within}
        self._tails.keep(self._name, frames, len(tail))
        return index

    def _index_at_end_of(self, file: Opened, tail: bytes) -> PackIndex:
        footer = load_footer(tail)
        end = len(tail) - FOOTER_SIZE
        if footer.body_size <= end:
            return load_index(footer, tail[end - footer.body_size : end])
        start = file.size - FOOTER_SIZE - footer.body_size
        if start < 0 or footer.body_size > _MAX_INDEX:
            raise IntegrityError(f"{self._name} declares an index of {footer.body_size} bytes")
        return load_index(footer, read_part(file, self._name, start, footer.body_size))

    def fetch(self, wanted: Mapping[bytes, int]) -> Iterator[Blob]:
        """Yield (digest, bytes) of the wanted blobs that are here and undamaged, in the order of the file.

        `wanted` says how large they are, in bytes: one of another size is not decompressed.
        """
        for part in self.parts(wanted):
            yield from part.load()

    def salvage(self) -> Iterator[Blob]:
        """Yield every undamaged blob, also from undamaged frames behind a damaged one."""
        for part in self.parts(self.index.sizes_by_digest()):
            try:
                yield from part.load()
            except IntegrityError as error:
                warn_once(log, "%s: %s", self._name, error)  # Many frames may have the same trouble.

    def parts(self, wanted: Sizes) -> Iterator[Part]:
        """The frames that hold something wanted, in the order of the file."""
        needed = list(self._needed(wanted))
        frames = Frames(self._backend, self._name, [frame for _, frame in needed], self._tails)
        with self._lock:
            self._open.add(frames)
        for first, frame in needed:
            blobs = slice(first, first + frame.blobs)
            chosen = bytes(map(eq, map(wanted.get, self.index.digests[blobs]), self.index.sizes[blobs]))
            if any(chosen):
                yield Part(frame.size, partial(_load, frames, frame, self.index, blobs, chosen))

    def expect_many(self) -> None:
        """Announce thousands of fetches: the index is then not searched for each, which takes some memory."""
        counts = [frame.blobs for frame in self.index.frames]
        self._firsts = [*accumulate(counts, initial=0)]
        self._frame_of = dict(zip(self.index.digests, chain.from_iterable(map(repeat, count(), counts)), strict=True))

    def _needed(self, wanted: Sizes) -> Iterator[tuple[int, Frame]]:
        """The frames that hold something wanted, each with the number of its first blob."""
        if self._frame_of:
            numbers = {self._frame_of[digest] for digest in wanted if digest in self._frame_of}
            yield from ((self._firsts[number], self.index.frames[number]) for number in sorted(numbers))
            return
        first, digests = 0, iter(self.index.digests)
        for frame in self.index.frames:
            some = islice(digests, frame.blobs)
            if any(map(wanted.__contains__, some)):
                yield first, frame
            first += frame.blobs
            deque(some, maxlen=0)


def read_ahead(backend: Readable, pack_id: str) -> PackReader:
    """A pack whose index has been read, if it could be: whoever uses it sees what is wrong with it."""
    reader = PackReader(backend, pack_id)
    with suppress(IntegrityError, OSError, MemoryError):
        _ = reader.index
    return reader


def _load(frames: Frames, frame: Frame, index: PackIndex, at: slice, chosen: bytes) -> Iterator[Blob]:
    """The `chosen` blobs of a frame, all of whose blobs are `at` some place of the index. Their digests are not held by
    parts that wait: there may be thousands in each.
    """
    content = frames.content(frame)
    ends = [*accumulate(index.sizes[at], initial=0)]
    wanted = [*compress(index.digests[at], chosen)]
    blobs = [*compress(map(content.__getitem__, map(slice, ends, ends[1:])), chosen)]
    yield from compress(zip(wanted, blobs, strict=True), map(eq, digests_of(blobs), wanted))
