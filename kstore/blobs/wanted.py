"""Which blobs somebody wants, in little memory: there may be a hundred thousand."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import compress, tee
from operator import itemgetter, not_

from kstore.digest.numbers import NONE, Numbers

_DIGEST, _SIZE = itemgetter(0), itemgetter(1)


class Wanted:
    """Blobs with their sizes, each of which has a number. What was found is not wanted any more, but keeps its number
    until that is taken.
    """

    def __init__(self, blobs: Iterable[tuple[bytes, int]] = ()) -> None:
        """Begin with these blobs, (digest, bytes)."""
        self._numbers = Numbers()
        self._sizes = array("Q")
        self._is_found, self._is_taken = bytearray(), bytearray()
        self._lock = threading.Lock()
        for _ in self.add(blobs):
            pass

    def add(self, blobs: Iterable[tuple[bytes, int]]) -> Iterator[int]:
        """Want these blobs too, and yield the number of each: numbers begin with 0, and the same blob has the same."""
        one, other = tee(blobs)
        for number, size in zip(self._numbers.add(map(_DIGEST, one)), map(_SIZE, other), strict=True):
            if number == len(self._sizes):
                self._sizes.append(size)
                self._is_found.append(False)
                self._is_taken.append(False)
            yield number

    def __contains__(self, digest: bytes) -> bool:
        return self.get(digest) is not None

    def __iter__(self) -> Iterator[bytes]:
        return map(_DIGEST, self.items())

    def get(self, digest: bytes) -> int | None:
        """How large a wanted blob is, in bytes; None if it is not wanted."""
        number = self._numbers.number(digest)
        return None if number == NONE or self._is_found[number] else self._sizes[number]

    def items(self) -> Iterator[tuple[bytes, int]]:
        """What is wanted now, with sizes in bytes."""
        numbers = array("I", compress(range(len(self._sizes)), map(not_, self._is_found)))
        return zip(map(self._numbers.digest, numbers), map(self._sizes.__getitem__, numbers), strict=True)

    def are_among(self, digests: Iterable[bytes]) -> bool:
        """Whether all are among these."""
        seen = bytearray(len(self._sizes))
        for number in self._numbers.find(digests):
            if number != NONE:
                seen[number] = True
        return all(seen)

    def found(self, digests: Iterable[bytes]) -> None:
        """Want these no more."""
        for number in self._numbers.find(digests):
            if number != NONE:
                self._is_found[number] = True

    def take(self, digests: Sequence[bytes]) -> list[int | None]:
        """Take the number of each blob; None if it has none, or somebody has taken it. Any thread may take."""
        with self._lock:
            return [*map(self._take, self._numbers.find(digests))]

    def _take(self, number: int) -> int | None:
        if number == NONE or self._is_taken[number]:
            return None
        self._is_taken[number] = True
        return number

    def left(self) -> Iterator[int]:
        """The numbers that nobody has taken."""
        return compress(range(len(self._sizes)), map(not_, self._is_taken))
