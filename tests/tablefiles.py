"""Tables of a few rows as the bytes of a file, and back."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain

from kstore import tables

Table = dict[bytes, bytes]


def dump(content: Mapping[str, Mapping[bytes, bytes]]) -> bytes:
    size = sum(len(part) for table in content.values() for part in chain.from_iterable(table.items()))
    return tables.dump({name: sorted(table.items()) for name, table in content.items()}, size)


def load(data: bytes) -> dict[str, Table]:
    return tables.load(data, lambda name, rows: dict(rows))
