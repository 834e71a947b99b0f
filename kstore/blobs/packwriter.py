"""Writing a pack, front to back, in memory that does not grow with it."""

from __future__ import annotations

import zstandard
from blake3 import blake3

from kstore.backends import Upload
from kstore.blobs.packindex import FRAME_SIZE, LEVEL, Frame, PackIndex

_WINDOW_LOG = 22
_CHUNK = 1 << 20


class PackWriter:
    """Writes one pack into an upload: blobs by `add`, then `finish`, which returns the pack's id.

    It holds one frame and its compressed form, or the one large blob that is being added.
    """

    def __init__(self, upload: Upload) -> None:
        self._upload = upload
        self._hash = blake3()
        # The window spans a frame: what a kernel resembles may be anywhere before it.
        parameters = zstandard.ZstdCompressionParameters.from_level(LEVEL, window_log=_WINDOW_LOG)
        self._compressor = zstandard.ZstdCompressor(compression_params=parameters)
        self._index = PackIndex()
        self._waiting: list[bytes] = []
        self._waiting_size = 0
        self.size = 0
        """Bytes written so far."""

    def __len__(self) -> int:
        return len(self._index.digests)

    def add(self, digest: bytes, data: bytes) -> None:
        """Append one blob."""
        if len(data) >= FRAME_SIZE:
            self.close_frame()
        self._index.digests.append(digest)
        self._index.sizes.append(len(data))
        self._waiting.append(data)
        self._waiting_size += len(data)
        if self._waiting_size >= FRAME_SIZE:
            self.close_frame()

    def close_frame(self) -> None:
        """End the current frame, so that what follows can be read without it."""
        if not self._waiting:
            return
        start = self.size
        if len(self._waiting) == 1:
            self._compress_in_chunks(self._waiting[0])
        else:
            self._write(self._compressor.compress(b"".join(self._waiting)))
        self._index.frames.append(Frame(start, self.size - start, self._waiting_size, len(self._waiting)))
        self._waiting, self._waiting_size = [], 0

    def finish(self) -> str:
        """Write the index and return the pack's id; the upload is then ready to be published."""
        self.close_frame()
        self._write(self._index.dump())
        return self._hash.hexdigest()

    def _compress_in_chunks(self, data: bytes) -> None:
        chunker = self._compressor.chunker(size=len(data), chunk_size=_CHUNK)
        view = memoryview(data)
        for start in range(0, len(data), _CHUNK):
            for chunk in chunker.compress(view[start : start + _CHUNK]):
                self._write(chunk)
        for chunk in chunker.finish():  # type: ignore[no-untyped-call]
            self._write(chunk)

    def _write(self, data: bytes) -> None:
        self._upload.write(data)
        self._hash.update(data)
        self.size += len(data)
