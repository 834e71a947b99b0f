"""A bundle as a pack reader sees it: one object, whatever its name."""

from __future__ import annotations

from kstore.files import read_fully


class BundleFile:
    """The first `size` bytes of an open file."""

    def __init__(self, fd: int, size: int) -> None:
        self._fd = fd
        self.size = size

    def open(self, name: str) -> BundleFile:
        """The whole bundle, whatever the name."""
        return self

    def read(self, offset: int, length: int) -> bytes:
        """`length` bytes, fewer at the end, from `offset`."""
        return read_fully(self._fd, offset, min(length, max(self.size - offset, 0)))

    def close(self) -> None:
        """Do nothing: whoever opened the file closes it."""
