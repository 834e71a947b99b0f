"""Brings the frames of a pack, decompressed: from memory what was read along with its index, from the file the rest,
neighbours together. No size that a pack declares makes it take more memory than that of the blobs in the frame.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterable, Iterator
from mmap import mmap
from typing import IO, Protocol, cast

import zstandard

from kstore.backends import Opened
from kstore.blobs.dictionary import dictionary
from kstore.blobs.packindex import FRAME_HEADER, MAX_SHARED_FRAME, Frame
from kstore.errors import IntegrityError

_ROOM_FOR_TAILS = 4 << 20
"""Bytes of tails that are kept at once. Garbage collection merges a key's packs when there are many."""
_TOGETHER = 1 << 20
"""Bytes of neighbouring frames that are read in one go, because each read may have to cross a network."""
_CHUNK = 1 << 20
_MOST_TIMES = 1 << 15
"""Bytes that zstd can make of one byte: a block of four bytes gives at most 128 KiB (RFC 8878, section 3.1.1.2)."""
_MAX_WINDOW = 16 << 20


class Readable(Protocol):
    """What a pack is read from: a backend, or a file that holds a pack."""

    def open(self, name: str) -> Opened:
        """Open the pack, to read parts of it."""


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


class Frames:
    """Some frames of a pack. The file is opened for the first that has to be read. Any thread may use this.

    Raises, from every method but `close`:
        IntegrityError: the pack is damaged.
        OSError: it cannot be read, or this process has no memory for a frame.
    """

    def __init__(self, backend: Readable, name: str, frames: Iterable[Frame], tails: Tails) -> None:
        """`frames` are in the order of the file."""
        self._backend = backend
        self._name = name
        self._tails = tails
        away = (frame for frame in frames if not tails.has(name, frame.offset))
        self._runs = {frame.offset: run for run in _runs(away) for frame in run}
        self._file: Opened | None = None
        self._lately: dict[int, memoryview] = {}
        """Where the last two runs begin, and what was read there: threads are not at the same one."""
        self._lock = threading.Lock()

    def content(self, frame: Frame) -> memoryview:
        """A frame, decompressed."""
        try:
            return self._decompress(frame) if frame.size <= MAX_SHARED_FRAME else self._decompress_in_chunks(frame)
        except zstandard.ZstdError as error:
            raise IntegrityError(f"a frame of {self._name} cannot be decompressed: {error}") from error
        except MemoryError as error:
            raise OSError(errno.ENOMEM, f"no memory for a frame of {frame.size} bytes", self._name) from error

    def _decompress(self, frame: Frame) -> memoryview:
        if frame.packed_size > _most_packed(frame.size):
            raise IntegrityError(f"a frame of {self._name} declares {frame.packed_size} packed bytes")
        # What was damaged on its way is read anew the next time.
        packed = self._tails.take(self._name, frame.offset) or self._read_frame(frame)
        # The size in the frame's own header is what zstd allocates, whatever limit it is given.
        if zstandard.frame_content_size(packed) != frame.size:
            raise IntegrityError(f"a frame of {self._name} does not have the size it declares")
        return memoryview(_inflater(packed[:FRAME_HEADER]).decompress(packed))

    def _decompress_in_chunks(self, frame: Frame) -> memoryview:
        """Decompress a large blob, with neither its compressed form nor a second copy of it in memory."""
        if frame.size > frame.packed_size * _MOST_TIMES:
            raise IntegrityError(f"a frame of {self._name} declares {frame.size} bytes")
        packed = _Section(self._read, frame.offset, frame.packed_size)
        header = self._read(frame.offset, min(frame.packed_size, FRAME_HEADER))
        if zstandard.frame_content_size(header) != frame.size:
            raise IntegrityError(f"a frame of {self._name} does not have the size it declares")
        whole, filled = self._room_for(frame), 0
        with _inflater(header).stream_reader(cast(IO[bytes], packed)) as content:
            while filled < frame.size and (count := content.readinto(whole[filled : filled + _CHUNK])):
                filled += count
            if filled != frame.size or content.read(1):
                raise IntegrityError(f"a frame of {self._name} does not have the size it declares")
        return whole.toreadonly()

    def _room_for(self, frame: Frame) -> memoryview:
        """Mapped: all of it is given back, whatever the allocator keeps."""
        try:
            return memoryview(mmap(-1, frame.size))
        except OSError as error:
            raise MemoryError from error
        except (OverflowError, ValueError) as error:
            raise IntegrityError(f"a frame of {self._name} declares {frame.size} bytes") from error

    def _read_frame(self, frame: Frame) -> memoryview:
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
                data = memoryview(self._read(start, end - start))
                self._lately = {**dict([*self._lately.items()][-1:]), start: data}
        return data

    def _read(self, offset: int, length: int) -> bytes:
        file = self._file = self._file or self._backend.open(self._name)
        return read_part(file, self._name, offset, length)

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


def read_part(file: Opened, name: str, offset: int, length: int) -> bytes:
    """Read `length` bytes of the pack `name`, from `offset`.

    Raises:
        IntegrityError: it is shorter.
        OSError: it cannot be read.
    """
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
