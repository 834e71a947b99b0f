"""Where the artifacts of a blob are."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from kstore.blobs.packreader import Blob
from kstore.blobs.wanted import Wanted
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
        self.wanted = Wanted()
        """The blobs."""
        self._first = array("Q")
        """A row of each blob, by the blob's number."""
        self._others: dict[int, list[int]] = defaultdict(list)
        """The other rows of some, likewise."""
        for number, row in zip(self.wanted.add(blobs_of(files)), self._rows.numbers, strict=True):
            if number == len(self._first):
                self._first.append(row)
            else:
                self._others[number].append(row)

    def take(self, blobs: Iterable[Blob]) -> Contents:
        """All artifacts of these blobs. Whoever takes them writes them; nobody gets them a second time."""
        digests, contents = zip(*blobs, strict=True) if (blobs := [*blobs]) else ((), ())
        rows, data = list[int](), list[memoryview]()
        for number, content in zip(self.wanted.take(digests), contents, strict=True):
            if number is not None:
                rows.append(self._first[number])
                data.append(content)
                for other in self._others.get(number, ()) if self._others else ():
                    rows.append(other)
                    data.append(content)
        return Contents([*map(self._rows.path, rows)], [*map(self._rows.record, rows)], data)

    def left(self) -> Iterator[str]:
        """The paths that nobody has taken."""
        for number in self.wanted.left():
            yield self._rows.path(self._first[number])
            yield from map(self._rows.path, self._others.get(number, ()))
