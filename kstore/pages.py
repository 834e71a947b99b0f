"""Whether LMDB may be given the bytes of a file.

LMDB trusts every number in the file that it maps: one page number or offset that points elsewhere ends the process
(SIGBUS, SIGSEGV, or an assertion's SIGABRT). A digest says that the bytes are those that somebody named, not that
they meant well. So each page that a reader of the tables would reach is looked at first.

The format is that of LMDB 0.9 (`MDB_page`, `MDB_node`, `MDB_db` and `MDB_meta` in its mdb.c), on 64-bit machines.
"""

from __future__ import annotations

import struct

from kstore.errors import IntegrityError

_PAGE_SIZES = {1 << shift for shift in range(9, 17)}
_PAGE = struct.Struct("<QHHHH")
"""Its own number, unused, what it is, where its pointers end, where its nodes begin."""
_NODE = struct.Struct("<HHHH")
"""Size of the data, low and high, flags, and size of the key. In a branch the first three are a page number."""
_DATABASE = struct.Struct("<IHHQQQQQ")
"""Page size in a meta page, flags, depth, four counts, and the page of the root."""
_LAST_AND_TRANSACTION = struct.Struct("<QQ")
_FREE_AT, _MAIN_AT, _LAST_AT = 40, 88, 136
"""Offsets in a meta page."""
_BRANCH, _LEAF = 1, 2
_BIG, _TABLE = 1, 2
_NO_PAGE = 2**64 - 1
_META_PAGES = 2
_MAX_DEPTH = 32


def check_pages(data: bytes) -> None:
    """Look at every page of every table.

    Raises:
        IntegrityError: it is no LMDB file, is cut short, or would lead LMDB astray.
    """
    try:
        _File(data).check()
    except (struct.error, _Astray) as error:
        raise IntegrityError(f"a table file of {len(data)} bytes is cut short or not an LMDB file: {error}") from None


class _Astray(Exception):
    """What is wrong."""


class _File:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._size = self._page_size(0)
        self._count = 0
        """Pages that LMDB maps."""
        self._seen: set[int] = set()

    def check(self) -> None:
        if self._size not in _PAGE_SIZES or self._page_size(self._size) != self._size:
            raise _Astray(f"pages of {self._size} bytes")
        metas = [_LAST_AND_TRANSACTION.unpack_from(self._data, meta + _LAST_AT) for meta in (0, self._size)]
        if len(self._data) % self._size or (max(last for last, _ in metas) + 1) * self._size > len(self._data):
            raise _Astray("it ends before its last page")
        # Of the two meta pages, LMDB takes the one of the later transaction, and maps no page behind the last it names.
        newest = int(metas[1][1] > metas[0][1])
        self._count = metas[newest][0] + 1
        for table in self._walk(newest * self._size + _MAIN_AT, _TABLE):
            for _ in self._walk(table, 0):
                raise _Astray("a table in a table")

    def _page_size(self, meta: int) -> int:
        return int(_DATABASE.unpack_from(self._data, meta + _FREE_AT)[0])

    def _walk(self, database: int, kind: int) -> list[int]:
        """Look at the tree of the database whose record is at `database`; returns where the records are in it.

        `kind` is what all of its nodes are: `_TABLE`, or 0 for keys and values.
        """
        _, flags, depth, *_, root = _DATABASE.unpack_from(self._data, database)
        if flags or depth > _MAX_DEPTH:
            raise _Astray(f"a tree with flags {flags} and depth {depth}")
        level = [] if root == _NO_PAGE else [root]
        for _ in range(depth - 1):
            level = [child for page in level for child in self._branch(page)]
        return [found for page in level for found in self._leaf(page, kind)]

    def _branch(self, page: int) -> list[int]:
        """The pages below."""
        pointers = self._pointers(page, _BRANCH)
        if len(pointers) < 2:
            raise _Astray(f"page {page} branches to nowhere")
        start, children = page * self._size, []
        for pointer in pointers:
            low, middle, high, key = _NODE.unpack_from(self._data, start + pointer)
            if pointer + _NODE.size + key > self._size:
                raise _Astray(f"page {page} has a key beyond its end")
            children.append(low | middle << 16 | high << 32)
        return children

    def _leaf(self, page: int, kind: int) -> list[int]:
        """The tables' records, if `kind` says that there are any."""
        data, start, limit, head = self._data, page * self._size, self._size, _NODE.size
        total, found = 0, []
        for pointer in self._pointers(page, _LEAF):
            low, high, flags, key = _NODE.unpack_from(data, start + pointer)
            size = low | high << 16
            if flags != kind:
                if kind or flags != _BIG:
                    raise _Astray(f"page {page} has a node with flags {flags}")
                self._overflow(start + pointer + head + key, size)
                size = 8
            end = pointer + head + key + size
            total += end - pointer
            if end > limit or total > limit:
                raise _Astray(f"page {page} has a node beyond its end")
            if kind:
                if size != _DATABASE.size:
                    raise _Astray(f"page {page} has a table of {size} bytes")
                found.append(start + pointer + head + key)
        return found

    def _pointers(self, page: int, kind: int) -> tuple[int, ...]:
        """Where the nodes of a page are in it."""
        self._visit(page)
        number, _, flags, lower, _ = _PAGE.unpack_from(self._data, page * self._size)
        count = (lower - _PAGE.size) // 2
        if (number, flags) != (page, kind) or count < 1 or lower != _PAGE.size + 2 * count or lower > self._size:
            raise _Astray(f"page {page} is not what it should be")
        pointers = struct.unpack_from(f"<{count}H", self._data, page * self._size + _PAGE.size)
        if min(pointers) < lower or max(pointers) + _NODE.size > self._size:
            raise _Astray(f"page {page} has a node outside of it")
        return pointers

    def _overflow(self, at: int, size: int) -> None:
        """A value too large for its page has pages of its own; their number is at `at`."""
        (first,) = struct.unpack_from("<Q", self._data, at)
        for page in range(first, first + (_PAGE.size - 1 + size) // self._size + 1):
            self._visit(page)

    def _visit(self, page: int) -> None:
        """No page is reached twice: the time and memory that a file takes are limited by its size."""
        if not _META_PAGES <= page < self._count or page in self._seen:
            raise _Astray(f"page {page} is elsewhere")
        self._seen.add(page)
