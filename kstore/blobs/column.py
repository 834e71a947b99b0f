"""Digests in one piece of memory: held separately, they take more than twice the bytes, and a pack may have 100,000."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import overload

from kstore.digest import DIGEST_SIZE, split


class Digests(Sequence[bytes]):
    """A list of digests that only grows."""

    def __init__(self, data: bytes | memoryview = b"") -> None:
        """`data` has the first digests, one after the other."""
        self.data = bytearray(data)
        """All of them, one after the other."""

    def __len__(self) -> int:
        return len(self.data) // DIGEST_SIZE

    def __iter__(self) -> Iterator[bytes]:
        return split(self.data)

    @overload
    def __getitem__(self, at: int) -> bytes: ...

    @overload
    def __getitem__(self, at: slice) -> list[bytes]: ...

    def __getitem__(self, at: int | slice) -> bytes | list[bytes]:
        if isinstance(at, slice):
            first, end, step = at.indices(len(self))
            return list(split(self.data[first * DIGEST_SIZE : end * DIGEST_SIZE]))[::step]
        first = range(len(self))[at] * DIGEST_SIZE
        return bytes(self.data[first : first + DIGEST_SIZE])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def append(self, digest: bytes) -> None:
        """Add one digest."""
        self.data += digest

    def extend(self, digests: Iterable[bytes]) -> None:
        """Add these digests."""
        for digest in digests:
            self.append(digest)


def joined(digests: Sequence[bytes]) -> bytes | bytearray:
    """All of them, one after the other, without a copy of each."""
    return digests.data if isinstance(digests, Digests) else b"".join(digests)
