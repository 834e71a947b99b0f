"""Which blobs are whose: rows `digest · owner · kind` in order, so that the owners of a blob follow each other.

They are on local disk, because a store may have more blobs than memory should hold.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from kstore.digest import DIGEST_SIZE
from kstore.gc.digests import DigestSet

_ROW = struct.Struct(f">{DIGEST_SIZE}sIB")
_SIZE = struct.Struct(">Q")


class Owned(NamedTuple):
    """One blob."""

    digest: bytes
    owners: set[int]
    kind: int
    """The first, if several were given."""
    size: int
    """Bytes."""


class Owners:
    """Which blobs are whose. Owners are 32-bit numbers; kinds are bytes, 0 where they do not matter."""

    def __init__(self, rows: DigestSet) -> None:
        """`rows` are empty: they are to hold the table."""
        self._rows = rows

    def add(self, owner: int, blobs: Iterable[tuple[bytes, int, int]]) -> None:
        """Note that `owner` has these blobs, given as (digest, kind, bytes)."""
        self._rows.update({_ROW.pack(digest, owner, kind): _SIZE.pack(size) for digest, kind, size in blobs})

    def of(self, digests: Iterable[bytes]) -> dict[bytes, set[int]]:
        """The owners of those of these blobs that have any."""
        owners: dict[bytes, set[int]] = {}
        for digest, owner, _ in map(_ROW.unpack, self._rows.beginning(digests)):
            owners.setdefault(digest, set()).add(owner)
        return owners

    def __iter__(self) -> Iterator[Owned]:
        """Each blob once, in the order of their digests."""
        rows = ((*_ROW.unpack(name), *_SIZE.unpack(value)) for name, value in self._rows.items())
        for digest, same in groupby(rows, key=itemgetter(0)):
            _, owners, kinds, sizes = zip(*same, strict=True)
            yield Owned(digest, set(owners), kinds[0], sizes[0])
