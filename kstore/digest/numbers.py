"""Digests by number, in little memory: there may be a hundred thousand, and a dict takes four times as much for each.

`table` is a hash table of them in C. If it could not be compiled, a dict does the same.
"""

from __future__ import annotations

import os
import sys
import threading
from array import array
from collections.abc import Iterable, Iterator, Set
from itertools import compress, islice, repeat

from kstore.digest import DIGEST_SIZE, Bytes, split

NONE = 2**32 - 1
"""The number of what has none."""
_NUMBER = "I"
_SOME = 1024
"""Digests that are looked for in one go."""


class DictTable:
    """What `table` has, with a dict."""

    def __init__(self, _: bytes) -> None:
        self._numbers: dict[bytes, int] = {}
        self._digests: list[bytes] = []

    def __len__(self) -> int:
        return len(self._digests)

    def __getitem__(self, number: int) -> bytes:
        return self._digests[number]

    def add(self, digests: Bytes) -> bytes:
        """The number of each digest, in a row; those that have none are given one."""
        return array(_NUMBER, map(self._number_for, split(digests))).tobytes()

    def _number_for(self, digest: bytes) -> int:
        number = self._numbers.setdefault(digest, len(self._digests))
        if number == len(self._digests):
            self._digests.append(digest)
        return number

    def find(self, digests: Bytes) -> bytes:
        """The number of each digest, in a row; `NONE` for those that have none."""
        return array(_NUMBER, map(self._numbers.get, split(digests), repeat(NONE))).tobytes()


try:
    from kstore.digest.table import Table
except ImportError:
    Table = DictTable  # type: ignore[assignment,misc]


class Numbers:
    """Digests that have numbers, from 0 on, in the order in which they came."""

    def __init__(self) -> None:
        self._table = Table(os.urandom(DIGEST_SIZE))

    def __len__(self) -> int:
        return len(self._table)

    def digest(self, number: int) -> bytes:
        """The digest that has this number."""
        return self._table[number]

    def add(self, digests: Iterable[bytes]) -> Iterator[int]:
        """The number of each; those that have none are given one."""
        return (number for some in _joined(digests) for number in array(_NUMBER, self._table.add(some)))

    def find(self, digests: Iterable[bytes]) -> Iterator[int]:
        """The number of each; `NONE` for those that have none."""
        return (number for some in _joined(digests) for number in array(_NUMBER, self._table.find(some)))

    def number(self, digest: bytes) -> int:
        """The number of one; `NONE` if it has none."""
        return int.from_bytes(self._table.find(digest), sys.byteorder)


def _joined(digests: Iterable[bytes]) -> Iterator[bytes]:
    digests = iter(digests)
    while some := b"".join(islice(digests, _SOME)):
        yield some


class DigestSet(Set[bytes]):
    """A set of digests, in a third of the memory that a `set` takes. Threads may add to it side by side."""

    def __init__(self, digests: Iterable[bytes] = ()) -> None:
        self._numbers = Numbers()
        self._is_in = bytearray()
        self._lock = threading.Lock()
        self.add_each(digests)

    def add_each(self, digests: Iterable[bytes]) -> list[bool]:
        """Add these; returns for each whether it was not in the set."""
        with self._lock:
            return [*map(self._add, self._numbers.add(digests))]

    def _add(self, number: int) -> bool:
        if number >= len(self._is_in):
            self._is_in.extend(bytes(len(self._numbers) - len(self._is_in)))
        was_in, self._is_in[number] = self._is_in[number], True
        return not was_in

    def discard_each(self, digests: Iterable[bytes]) -> None:
        """Take out those of these that are in the set."""
        with self._lock:
            for number in self._numbers.find(digests):
                if number != NONE:
                    self._is_in[number] = False

    def has_each(self, digests: Iterable[bytes]) -> Iterator[bool]:
        """Whether each of these is in the set."""
        return (number != NONE and bool(self._is_in[number]) for number in self._numbers.find(digests))

    def __contains__(self, digest: object) -> bool:
        return isinstance(digest, bytes) and next(self.has_each([digest]))

    def __iter__(self) -> Iterator[bytes]:
        return map(self._numbers.digest, compress(range(len(self._is_in)), self._is_in))

    def __len__(self) -> int:
        return self._is_in.count(True)

    @classmethod
    def _from_iterable(cls, digests: Iterable[bytes]) -> Set[bytes]:  # type: ignore[override]
        return {*digests}
