"""Which blobs somebody wants, in one dict: a dict of a hundred thousand takes ten megabytes."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, KeysView
from itertools import compress, repeat
from operator import not_


class Wanted:
    """Blobs with their sizes, each of which has a number. What was found is not wanted any more, but keeps its number
    until that is taken. Any thread may take.
    """

    def __init__(self, blobs: Iterable[tuple[bytes, int]] = ()) -> None:
        """Begin with these blobs, (digest, bytes)."""
        self._numbers: dict[bytes, int] = {}
        self._sizes = array("Q")
        self._is_found = bytearray()
        for _ in self.add(blobs):
            pass

    def add(self, blobs: Iterable[tuple[bytes, int]]) -> Iterator[int]:
        """Want these blobs too, and yield the number of each: numbers begin with 0, and the same blob has the same."""
        numbers, sizes = self._numbers, self._sizes
        for digest, size in blobs:
            number = numbers.setdefault(digest, len(sizes))
            if number == len(sizes):
                sizes.append(size)
            yield number
        self._is_found.extend(repeat(0, len(sizes) - len(self._is_found)))

    def get(self, digest: bytes) -> int | None:
        """How large a wanted blob is, in bytes; None if it is not wanted."""
        number = self._numbers.get(digest)
        return None if number is None or self._is_found[number] else self._sizes[number]

    def keys(self) -> KeysView[bytes]:
        """The digests of what is wanted, and of some that were found."""
        return self._numbers.keys()

    def are_among(self, digests: Iterable[bytes]) -> bool:
        """Whether all are among these."""
        seen = bytearray(len(self._sizes))
        for number in map(self._numbers.get, digests):
            if number is not None:
                seen[number] = 1
        return seen.count(1) == len(self._numbers)

    def found(self, digests: Iterable[bytes]) -> None:
        """Want these no more."""
        for number in map(self._numbers.get, digests):
            if number is not None:
                self._is_found[number] = 1

    def items(self) -> Iterator[tuple[bytes, int]]:
        """What is wanted now, with sizes in bytes."""
        numbers = [*self._numbers.values()]
        left = [*map(not_, map(self._is_found.__getitem__, numbers))]
        sizes = array("Q", map(self._sizes.__getitem__, compress(numbers, left)))
        return zip([*compress(self._numbers, left)], sizes, strict=True)

    def take(self, digest: bytes) -> int | None:
        """Take a blob's number; None if it has none, or somebody has taken it."""
        return self._numbers.pop(digest, None)

    def numbers(self) -> Iterable[int]:
        """Those that nobody has taken."""
        return self._numbers.values()
