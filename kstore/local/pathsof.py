"""Where the artifacts of a blob are."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple

from kstore.blobs.packreader import Blob
from kstore.published.manifest import Files, blobs_of, compacted
from kstore.published.rows import Rows


class Contents(NamedTuple):
    """Some artifacts, column by column."""

    paths: list[str]
    records: list[bytes | bytearray]
    """Their entries."""
    data: list[memoryview]


class PathsOf:
    """The paths of blobs that are to be written. Most blobs have only one: no list is made for these, nor a path before
    it is needed, as there may be a hundred thousand.
    """

    def __init__(self, files: Files) -> None:
        files = compacted(files)
        self._rows = Rows(files)
        self._first: dict[bytes, int] = {}
        self._others: dict[bytes, list[int]] = defaultdict(list)
        self._sizes = array("Q")
        """Those of the blobs, in the order of `_first`."""
        for (digest, size), number in zip(blobs_of(files), self._rows.numbers, strict=True):
            if self._first.setdefault(digest, number) == number:
                self._sizes.append(size)
            else:
                self._others[digest].append(number)

    def take(self, blobs: Iterable[Blob]) -> Contents:
        """All artifacts of these blobs. Whoever takes them writes them; nobody gets them a second time."""
        numbers, data = list[int](), list[memoryview]()
        for digest, content in blobs:
            if (number := self._first.pop(digest, None)) is not None:
                numbers.append(number)
                data.append(content)
                for other in self._others.pop(digest, ()) if self._others else ():
                    numbers.append(other)
                    data.append(content)
        return Contents([*map(self._rows.path, numbers)], [*map(self._rows.record, numbers)], data)

    def left(self) -> Iterator[str]:
        """The paths that nobody has taken."""
        return map(self._rows.path, chain(self._first.values(), *self._others.values()))

    def sizes(self) -> dict[bytes, int]:
        """The sizes of all blobs, in bytes, as long as none is taken."""
        numbers: dict[int, int] = {}  # Equal sizes are one number: there are not many different ones.
        return dict(zip(self._first, (numbers.setdefault(size, size) for size in self._sizes), strict=True))
