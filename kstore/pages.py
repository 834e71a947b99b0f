"""Reads the tables of an LMDB file that is given as bytes, without LMDB.

LMDB trusts every number in the file that it maps: one page number or offset that points elsewhere ends the process
(SIGBUS, SIGSEGV, or an assertion's SIGABRT). A digest says that the bytes are those that somebody named, not that
they meant well. So nothing here is taken from a page before it is looked at, and nothing is mapped or copied whole.

The format is that of LMDB 0.9 (`MDB_page`, `MDB_node`, `MDB_db` and `MDB_meta` in its mdb.c), on 64-bit machines.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

from kstore.digest import Bytes
from kstore.errors import IntegrityError

Row = tuple[bytes, bytes]
"""Key and value."""

_PAGE_SIZES = {1 << shift for shift in range(9, 16)}
_PAGE = struct.Struct("<QHHHH")
"""Its own number, unused, what it is, where its pointers end, where its nodes begin."""
_NODE = struct.Struct("<HHHH")
"""Size of the data, low and high, flags, and size of the key. In a branch the first three are a page number."""
_DATABASE = struct.Struct("<IHHQQQQQ")
"""Page size in a meta page, flags, depth, four counts, and the page of the root."""
_MAGIC = struct.pack("<II", 0xBEEFC0DE, 1)
"""LMDB's, and the version of its format."""
_LAST_AND_TRANSACTION = struct.Struct("<QQ")
_MAGIC_AT, _FREE_AT, _MAIN_AT, _LAST_AT = 16, 40, 88, 136
"""Offsets in a meta page."""
_BRANCH, _LEAF = 1, 2
_BIG, _TABLE = 1, 2
_POINTER = struct.Struct("<Q")
_NO_PAGE = 2**64 - 1
_META_PAGES = 2
_MAX_DEPTH = 32


class TableFile:
    """The bytes of one file, which is read from the front once: no page may be reached twice."""

    def __init__(self, data: Bytes) -> None:
        """Raises:
        IntegrityError: it is no LMDB file, or ends before its last page.
        struct.error: it is too short for one.
        """
        self._data = data
        self._size = self._page_size(0)
        """Bytes of a page."""
        self._seen: set[int] = set()
        if self._size not in _PAGE_SIZES or self._page_size(self._size) != self._size:
            raise IntegrityError(f"pages of {self._size} bytes")
        if not all(self._starts_with_magic(meta) for meta in (0, self._size)):
            raise IntegrityError("another magic number, or another version of the format")
        metas = [_LAST_AND_TRANSACTION.unpack_from(data, meta + _LAST_AT) for meta in (0, self._size)]
        if len(data) % self._size or (max(last for last, _ in metas) + 1) * self._size > len(data):
            raise IntegrityError("it ends before its last page")
        # Of the two meta pages, LMDB takes the later transaction's, and knows no page behind the last it names.
        newest = int(metas[1][1] > metas[0][1])
        self._count = metas[newest][0] + 1
        self._main = newest * self._size + _MAIN_AT

    def _page_size(self, meta: int) -> int:
        return int(_DATABASE.unpack_from(self._data, meta + _FREE_AT)[0])

    def _starts_with_magic(self, meta: int) -> bool:
        return self._data[meta + _MAGIC_AT : meta + _MAGIC_AT + len(_MAGIC)] == _MAGIC

    def tables(self) -> Iterator[tuple[bytes, Iterator[list[Row]]]]:
        """The name of each table, and its rows in the order of their keys, a page at a time.

        Raises:
            IntegrityError, struct.error: it would lead a reader astray. Some rows may have been read already.
        """
        main = _DATABASE.unpack_from(self._data, self._main)
        for page in self._rows(main, _TABLE):
            for name, record in page:
                yield name, self._rows(_DATABASE.unpack(record), 0)

    def _rows(self, database: tuple[int, ...], kind: int) -> Iterator[list[Row]]:
        """What the leaves of a tree hold, given its record: nodes that are `_TABLE`s, or 0 for keys and values."""
        _, flags, depth, *_, root = database
        if flags or depth > _MAX_DEPTH:
            raise IntegrityError(f"a tree with flags {flags} and depth {depth}")
        level = [] if root == _NO_PAGE else [root]
        self._visit(level)
        for _ in range(depth - 1):
            level = [child for page in level for child in self._branch(page)]
        return (self._leaf(page, kind) for page in level)

    def _branch(self, page: int) -> list[int]:
        """The pages below."""
        pointers = self._pointers(page, _BRANCH)
        if len(pointers) < 2:
            raise IntegrityError(f"page {page} branches to nowhere")
        nodes = [_NODE.unpack_from(self._data, page * self._size + pointer) for pointer in pointers]
        children = [low | middle << 16 | high << 32 for low, middle, high, _ in nodes]
        self._visit(children)
        return children

    def _leaf(self, page: int, kind: int) -> list[Row]:
        start, limit, head, unpack = page * self._size, self._size, _NODE.size, _NODE.unpack_from
        data, total, rows = bytes(self._data[start : start + limit]), 0, list[Row]()
        for pointer in self._pointers(page, _LEAF):
            low, high, flags, length = unpack(data, pointer)
            value, size = pointer + head + length, low | high << 16
            end = value + (_POINTER.size if flags == _BIG else size)
            total += end - pointer
            if end > limit or total > limit:
                raise IntegrityError(f"page {page} has a node beyond its end")
            if flags == kind:
                rows.append((data[pointer + head : value], data[value:end]))
            elif flags == _BIG and not kind:
                rows.append((data[pointer + head : value], self._overflow(data[value:end], size)))
            else:
                raise IntegrityError(f"page {page} has a node with flags {flags}")
        return rows

    def _pointers(self, page: int, kind: int) -> tuple[int, ...]:
        """Where the nodes of a page are in it."""
        number, _, flags, lower, _ = _PAGE.unpack_from(self._data, page * self._size)
        count = (lower - _PAGE.size) // 2
        if (number, flags) != (page, kind) or count < 1 or lower != _PAGE.size + 2 * count:
            raise IntegrityError(f"page {page} is not what it should be")
        pointers = struct.unpack_from(f"<{count}H", self._data, page * self._size + _PAGE.size)
        if min(pointers) < lower or max(pointers) + _NODE.size > self._size:
            raise IntegrityError(f"page {page} has a node outside of it")
        return pointers

    def _overflow(self, pointer: bytes, size: int) -> bytes:
        """A value too large for its page has pages of its own, and `pointer` in its place."""
        (first,) = _POINTER.unpack(pointer)
        self._visit(range(first, first + (_PAGE.size - 1 + size) // self._size + 1))
        start = first * self._size + _PAGE.size
        return bytes(self._data[start : start + size])

    def _visit(self, pages: Iterable[int]) -> None:
        """No page is led to twice: the time and memory that a file takes are limited by its size."""
        for page in pages:
            if not _META_PAGES <= page < self._count or page in self._seen:
                raise IntegrityError(f"page {page} is elsewhere")
            self._seen.add(page)
