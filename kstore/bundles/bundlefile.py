"""A bundle as a pack reader sees it: one object, whatever its name."""

from __future__ import annotations

import os


class BundleFile:
    """The first `size` bytes of an open file."""

    def __init__(self, fd: int, size: int) -> None:
        self._fd = fd
        self.size = size

    def open(self, name: str) -> BundleFile:
        """All of it."""
        return self

    def read(self, offset: int, length: int) -> bytes:
        """`length` bytes, fewer at the end, from `offset`."""
        wanted = min(length, max(self.size - offset, 0))
        parts = []
        while wanted and (data := os.pread(self._fd, wanted, offset)):
            parts.append(data)
            offset += len(data)
            wanted -= len(data)
        return b"".join(parts)

    def close(self) -> None:
        """Whoever has opened the file closes it."""
