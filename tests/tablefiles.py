"""Tables of a few rows as a file's bytes, and back."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from unittest.mock import patch

from kstore import tables

Table = dict[bytes, bytes]


def dump(content: Mapping[str, Mapping[bytes, bytes]]) -> bytes:
    size = sum(len(part) for table in content.values() for part in chain.from_iterable(table.items()))
    return tables.dump({name: sorted(table.items()) for name, table in content.items()}, size)


def dump_as_stored(content: Mapping[str, Mapping[bytes, bytes]]) -> bytes:
    """As `dump`, without a check of the keys: a key that begins with 0xff is stored as it is."""
    with patch("kstore.tables._stored", lambda rows: [list(rows)]):
        return dump(content)


def long_value(key: bytes, value: bytes) -> bytes:
    """The value of a row with a long key."""
    return len(key).to_bytes(4, "little") + key + value


def load(data: bytes) -> dict[str, Table]:
    return tables.load(data, lambda name, rows: dict(rows))
