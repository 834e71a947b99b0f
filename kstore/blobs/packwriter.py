"""Writes a pack, front to back, in memory that does not grow with it."""

from __future__ import annotations

from mmap import mmap
from typing import Protocol, Self

import zstandard
from blake3 import blake3

from kstore.aside import Kept, pieces_of, whole
from kstore.blobs.dictionary import NEWEST, dictionary
from kstore.blobs.packindex import FRAME_SIZE, LEVEL, MAX_SHARED_FRAME, Frame, PackIndex
from kstore.threads import Pool, submit

_WINDOW_LOG = 22
_FINE_LEVEL = 8
_FINE_SIZE = 4 << 20
"""Bytes at the beginning of a pack that are compressed at that level: a model takes a sixth less room for some ten
milliseconds. What follows is not: somebody is waiting, and what is sorted by similarity gains little.
"""
_LARGE = 16 << 20
"""Bytes: if a pack is expected to have more, none of it is compressed at that level. Ten thousand artifacts take a
hundredth more room, and are stored a twentieth sooner.
"""
_FINE_TABLES = {"hash_log": 19, "chain_log": 18, "search_log": 3}
"""Half of that level's tables, because there are two of each, one for the dictionary: 6 MB less for half a hundredth
more bytes. And half as many candidates for a match are looked at: a tenth sooner for a hundredth more bytes.
"""
_CHUNK = 1 << 20


class Sink(Protocol):
    """Where the bytes of a pack, or of a bundle, go."""

    def write(self, data: bytes | memoryview, /) -> object:
        """Append `data`."""


class PackWriter:
    """Writes one pack into an upload: blobs by `add`, then `finish`, which returns the pack's id.

    Frames are compressed and written by a thread of their own, while the next one is being filled. Memory: two
    frames and a compressed one, or the one large blob that is being added.
    """

    def __init__(
        self, upload: Sink, *, begun: PackIndex | None = None, size: int = 0, using: int = NEWEST, expected: int = 0
    ) -> None:
        """`begun` says what is in the `size` bytes that exist already; the id is then that of the rest.

        `using` is the number of a dictionary. `expected` is about how many bytes will come, if that is known.
        """
        self._upload = upload
        self._using = using
        self._hash = blake3()
        self._index = begun or PackIndex()
        self._taken = sum(self._index.sizes)
        self._fine_size = _FINE_SIZE if expected <= _LARGE else 0
        self._level = 0
        self._frame, self._other = _two_frames()
        """The frame that is being filled, and the one that is being compressed."""
        self._count, self._filled = 0, 0
        """Blobs in the first, and their bytes."""
        self.size = size
        """Bytes written; complete once the pack is finished."""
        self._thread = Pool(1)
        self._writing = submit(self._thread, self._warm_up)
        """The last thing that the thread was told to do."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown()

    def __len__(self) -> int:
        return len(self._index.digests)

    def add(self, digest: bytes, data: Kept) -> None:
        """Append one blob."""
        size = len(data)
        self._index.digests.append(digest)
        self._index.sizes.append(size)
        if size >= FRAME_SIZE:
            self.close_frame()
            self._write_aside(data, 1)
            self._wait()  # One large blob at a time in memory.
            return
        self._frame[self._filled : self._filled + size] = whole(data)
        self._filled += size
        self._count += 1
        if self._filled >= FRAME_SIZE:
            self.close_frame()

    def close_frame(self) -> None:
        """End the current frame, so that what follows can be read without it."""
        if self._count:
            self._write_aside(self._frame[: self._filled], self._count)
            self._frame, self._other = self._other, self._frame
            self._count, self._filled = 0, 0

    def pause(self) -> None:
        """End the current frame, and let go of its memory: nothing may follow for long."""
        self.close_frame()
        self._frame, self._other = _two_frames()

    def _write_aside(self, blobs: Kept, count: int) -> None:
        self._wait()
        self._writing = submit(self._thread, self._write_frame, blobs, count)

    def finish(self, nonce: bytes | None = None) -> str:
        """Write the index and return the pack's id; the upload is then ready to be published."""
        self.close_frame()
        self._wait()
        for part in self._index.dump(nonce):
            self._write(part)
        return self._hash.hexdigest()

    def _wait(self) -> None:
        self._writing.result()

    def _warm_up(self) -> None:
        """Let zstd read the dictionary, which takes milliseconds, while nothing waits for it."""
        self._choose_level()
        self._compressor.compress(b"")

    def _write_frame(self, blobs: Kept, count: int) -> None:
        start = self.size
        self._choose_level()
        self._compress(blobs)
        self._taken += len(blobs)
        self._index.frames.append(Frame(start, self.size - start, len(blobs), count))

    def _choose_level(self) -> None:
        """Take the compressor for the level that is due. There is only one, because each holds megabytes."""
        level = _FINE_LEVEL if self._taken < self._fine_size else LEVEL
        if level != self._level:
            # The window spans a frame: what a kernel resembles may be anywhere before it.
            tables = _FINE_TABLES if level == _FINE_LEVEL and self._using else {}
            parameters = zstandard.ZstdCompressionParameters.from_level(
                level, window_log=_WINDOW_LOG, write_dict_id=True, **tables
            )
            self._level = level
            self._compressor = zstandard.ZstdCompressor(
                compression_params=parameters, dict_data=dictionary(self._using)
            )

    def _compress(self, blobs: Kept) -> None:
        chunker = self._compressor.chunker(size=len(blobs), chunk_size=_CHUNK)
        for piece in pieces_of(blobs):
            for chunk in chunker.compress(piece):
                self._write(chunk)
        for chunk in chunker.finish():  # type: ignore[no-untyped-call]
            self._write(chunk)

    def _write(self, data: bytes | memoryview) -> None:
        self._upload.write(data)
        self._hash.update(data)
        self.size += len(data)


def _two_frames() -> tuple[memoryview, memoryview]:
    """Mapped: no more of them is taken than is used, and all of it is given back."""
    return memoryview(mmap(-1, MAX_SHARED_FRAME)), memoryview(mmap(-1, MAX_SHARED_FRAME))
