"""Reads a pack: its index with one read from the end, then only the frames that hold something wanted, neighbours
together.

The manifest is beside the index and is read with it, and so is all of a small pack: a small model takes one read. What
was read this way is kept until it is requested, but only for the last few packs.
"""

from __future__ import annotations

import errno
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import closing
from functools import partial
from itertools import accumulate, compress, islice
from operator import eq
from typing import IO, NamedTuple, Protocol, cast
from weakref import WeakSet

import zstandard

from kstore.backends import Opened
from kstore.blobs.dictionary import dictionary
from kstore.blobs.packindex import (
    FOOTER_SIZE,
    FRAME_HEADER,
    MAX_SHARED_FRAME,
    Frame,
    PackIndex,
    load_footer,
    load_index,
    pack_name,
)
from kstore.digest import digests_of
from kstore.errors import IntegrityError

log = logging.getLogger(__name__)

_TAIL = 1 << 20
"""Bytes: enough for the index of ten thousand artifacts, and the manifest before it."""
_ROOM_FOR_TAILS = 4 * _TAIL
"""Bytes of tails that are kept at once. Garbage collection merges a key's packs when there are many."""
_TOGETHER = 1 << 20
"""Bytes of neighbouring frames that are read in one go, because each read may have to cross a network."""
_CHUNK = 1 << 20
_MOST_TIMES = 1 << 15
"""Bytes that zstd can make of one byte: a block of four bytes gives at most 128 KiB (RFC 8878, section 3.1.1.2)."""
_MAX_WINDOW = 16 << 20
_MAX_INDEX = 256 << 20
"""Bytes: six million blobs. A sparse file can be as large as anybody likes."""


Blob = tuple[bytes, memoryview]
"""(digest, bytes)."""


class Readable(Protocol):
    """What a pack is read from: a backend, or a file that holds a pack."""

    def open(self, name: str) -> Opened:
        """Open the pack, to read parts of it."""


class Part(NamedTuple):
    """Blobs that are read in one go."""

    size: int
    """Bytes of memory that this takes."""
    load: Callable[[], Iterator[Blob]]
    """Yields what is undamaged. Any thread may call it."""


class Tails:
    """Frames that were read along with the indexes of packs. Any thread may use it."""

    def __init__(self) -> None:
        self._frames: dict[str, dict[int, memoryview]] = {}
        self._sizes: dict[str, int] = {}
        self._lock = threading.Lock()

    def keep(self, pack: str, frames: dict[int, memoryview], size: int) -> None:
        """Keep these frames, by their offsets; they are in `size` bytes of memory.

        To make room for them, the frames of the packs that were read first are dropped.
        """
        with self._lock:
            self._frames[pack], self._sizes[pack] = frames, size
            while sum(self._sizes.values()) > _ROOM_FOR_TAILS:
                first = next(iter(self._frames))
                del self._frames[first], self._sizes[first]

    def take(self, pack: str, offset: int) -> memoryview | None:
        """Return a frame, and keep it no longer; None if it is not here."""
        return self._frames.get(pack, {}).pop(offset, None)

    def has(self, pack: str, offset: int) -> bool:
        """Whether a frame is here."""
        return offset in self._frames.get(pack, {})


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
        self._tails = tails or Tails()
        self._sources = WeakSet[_Source]()
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close what is open for parts that nobody will load any more, though an error may still refer to them."""
        with self._lock:
            sources = list(self._sources)
        for source in sources:
            source.close()

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
        tail = _read(file, self._name, max(file.size - _TAIL, 0), min(_TAIL, file.size))
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
        return load_index(footer, _read(file, self._name, start, footer.body_size))

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
                log.warning("%s: %s", self._name, error)

    def parts(self, wanted: Mapping[bytes, int]) -> Iterator[Part]:
        """The frames that hold something wanted, in the order of the file."""
        needed = list(self._needed(wanted.keys()))
        away = [frame for _, frame in needed if not self._tails.has(self._name, frame.offset)]
        source = _Source(self._backend, self._name, away)
        with self._lock:
            self._sources.add(source)
        for first, frame in needed:
            blobs = slice(first, first + frame.blobs)
            digests, sizes = self.index.digests[blobs], self.index.sizes[blobs]
            chosen = [*map(eq, map(wanted.get, digests), sizes)]
            if any(chosen):
                yield Part(frame.size, partial(self._load, source, frame, digests, sizes, chosen))

    def _needed(self, wanted: Set[bytes]) -> Iterator[tuple[int, Frame]]:
        """The frames that hold something wanted, each with the number of its first blob."""
        first, digests = 0, iter(self.index.digests)
        for frame in self.index.frames:
            some = islice(digests, frame.blobs)
            if not wanted.isdisjoint(some):
                yield first, frame
            first += frame.blobs
            deque(some, maxlen=0)

    def _load(
        self, source: _Source, frame: Frame, digests: Sequence[bytes], sizes: Sequence[int], chosen: Sequence[bool]
    ) -> Iterator[Blob]:
        """The `chosen` blobs of a frame. Digests, sizes and what is chosen are given for all blobs in it."""
        content = self._decompress(source, frame)
        ends = [*accumulate(sizes, initial=0)]
        wanted = [*compress(digests, chosen)]
        blobs = [*compress(map(content.__getitem__, map(slice, ends, ends[1:])), chosen)]
        yield from compress(zip(wanted, blobs, strict=True), map(eq, digests_of(blobs), wanted))

    def _decompress(self, source: _Source, frame: Frame) -> memoryview:
        try:
            if frame.size <= MAX_SHARED_FRAME:
                if frame.packed_size > _most_packed(frame.size):
                    raise IntegrityError(f"a frame of {self._name} declares {frame.packed_size} packed bytes")
                # What was damaged on its way is read anew the next time.
                packed = self._tails.take(self._name, frame.offset) or source.frame(frame)
                # The size in the frame's own header is what zstd allocates, whatever limit it is given.
                if zstandard.frame_content_size(packed) != frame.size:
                    raise IntegrityError(f"a frame of {self._name} does not have the size it declares")
                return memoryview(_inflater(packed[:FRAME_HEADER]).decompress(packed))
            return self._decompress_in_chunks(source, frame)
        except zstandard.ZstdError as error:
            raise IntegrityError(f"a frame of {self._name} cannot be decompressed: {error}") from error
        except MemoryError as error:
            raise OSError(errno.ENOMEM, f"no memory for a frame of {frame.size} bytes", self._name) from error

    def _decompress_in_chunks(self, source: _Source, frame: Frame) -> memoryview:
        """Decompress a large blob, with neither its compressed form nor a second copy of it in memory."""
        if frame.size > frame.packed_size * _MOST_TIMES:
            raise IntegrityError(f"a frame of {self._name} declares {frame.size} bytes")
        packed = _Section(source.read, frame.offset, frame.packed_size)
        header = source.read(frame.offset, min(frame.packed_size, FRAME_HEADER))
        if zstandard.frame_content_size(header) != frame.size:
            raise IntegrityError(f"a frame of {self._name} does not have the size it declares")
        try:
            whole = memoryview(bytearray(frame.size))
        except OverflowError as error:
            raise IntegrityError(f"a frame of {self._name} declares {frame.size} bytes") from error
        filled = 0
        with _inflater(header).stream_reader(cast(IO[bytes], packed)) as content:
            while filled < frame.size and (count := content.readinto(whole[filled : filled + _CHUNK])):
                filled += count
            if filled != frame.size or content.read(1):
                raise IntegrityError(f"a frame of {self._name} does not have the size it declares")
        return whole


class _Source:
    """Reads some frames of a pack, neighbours together. The file is opened for the first; any thread may use this."""

    def __init__(self, backend: Readable, name: str, frames: Iterable[Frame]) -> None:
        """`frames` are in the order of the file."""
        self._backend = backend
        self._name = name
        self._runs = {frame.offset: run for run in _runs(frames) for frame in run}
        self._file: Opened | None = None
        self._lately: dict[int, memoryview] = {}
        """Where the last two runs begin, and what was read there: threads are not at the same one."""
        self._lock = threading.Lock()

    def frame(self, frame: Frame) -> memoryview:
        """A frame, as it is stored."""
        run = self._runs.get(frame.offset, [frame])
        try:
            start, data = run[0].offset, self._run(run)
        except (IntegrityError, OSError):
            if len(run) == 1:
                raise
            start, data = frame.offset, self._run([frame])  # It may be whole though its neighbours are not.
        return data[frame.offset - start : frame.offset - start + frame.packed_size]

    def _run(self, run: list[Frame]) -> memoryview:
        start, end = run[0].offset, _end(run[-1])
        with self._lock:
            data = self._lately.get(start)
            if data is None or len(data) != end - start:
                data = memoryview(self.read(start, end - start))
                self._lately = {**dict([*self._lately.items()][-1:]), start: data}
        return data

    def read(self, offset: int, length: int) -> bytes:
        """A part of the file."""
        file = self._file = self._file or self._backend.open(self._name)
        return _read(file, self._name, offset, length)

    def close(self) -> None:
        """Close the file, until something is read again."""
        self._file, self._lately = None, {}


def _runs(frames: Iterable[Frame]) -> Iterator[list[Frame]]:
    """Frames that lie beside each other, as many as are read in one go."""
    run: list[Frame] = []
    for frame in frames:
        if run and (frame.offset != _end(run[-1]) or _end(frame) - run[0].offset > _TOGETHER):
            yield run
            run = []
        run.append(frame)
    if run:
        yield run


def _most_packed(size: int) -> int:
    """The most bytes that `size` bytes take when they are compressed: that can make them a few more."""
    return size + size // 128 + 1024


def _end(frame: Frame) -> int:
    return frame.offset + frame.packed_size


def _read(file: Opened, name: str, offset: int, length: int) -> bytes:
    data = file.read(offset, length)
    if len(data) != length:
        raise IntegrityError(f"{name} is cut short: {len(data)} of {length} bytes at {offset}")
    return data


class _Section:
    """A part of a pack as a file to read from front to back."""

    def __init__(self, read: Callable[[int, int], bytes], offset: int, size: int) -> None:
        self._read = read
        self._offset = offset
        self._end = offset + size

    def read(self, size: int = -1) -> bytes:
        """The next bytes, empty at the end."""
        count = self._end - self._offset if size < 0 else min(size, self._end - self._offset)
        data = self._read(self._offset, count)
        self._offset += count
        return data


def _inflater(header: bytes | memoryview) -> zstandard.ZstdDecompressor:
    """A decompressor for the frame that begins with `header`."""
    number = zstandard.get_frame_parameters(header).dict_id
    return zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW, dict_data=dictionary(number))
