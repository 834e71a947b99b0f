"""A bundle as a pack reader sees it: one object, whatever its name."""

from __future__ import annotations

import os

from kstore.backends import Stat


class BundleFile:
    """The first `size` bytes of an open file."""

    def __init__(self, fd: int, size: int) -> None:
        self._fd = fd
        self.size = size

    def get(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        """`length` bytes, fewer at the end, from `offset`."""
        left = max(self.size - offset, 0)
        wanted = left if length is None else min(length, left)
        parts = []
        while wanted and (data := os.pread(self._fd, wanted, offset)):
            parts.append(data)
            offset += len(data)
            wanted -= len(data)
        return b"".join(parts)

    def stat(self, name: str) -> Stat:
        """Its size."""
        return Stat(self.size, 0)
