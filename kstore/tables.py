"""Sorted tables in one LMDB file, made and read as bytes.

LMDB trusts the file it maps: a truncated one kills the process with SIGBUS, and on a network filesystem mapping is
unsafe altogether. So a file is built in a memfd, private to this process and on no disk that could be full; what is
shared is only ever plain bytes, and `pages` reads those.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import chain, islice, starmap
from operator import itemgetter
from typing import TypeVar

import lmdb

from kstore.aside import MANY, Aside, Kept, pieces_of_file
from kstore.calls import write_all
from kstore.digest import Bytes, digest_of
from kstore.errors import IntegrityError, KstoreError
from kstore.pages import Row, TableFile

Taken = TypeVar("Taken")

MAX_KEY = 511
"""Bytes. LMDB's own limit on a key."""
_LONG = b"\xff"
_MAX_TABLES = 4096
_CLOSE_ON_EXEC = 1
"""MFD_CLOEXEC, memfd_create(2)."""
_FORMAT = 0
"""LMDB 0.9's file format; py-lmdb 3 can also write one that older readers refuse."""
_PAGE_SIZE = 4096
"""Bytes. Left alone, LMDB goes by the size of memory pages, which is 64 KiB on some ARM servers: the same tables would
give other bytes there, and a few rows many of them.
"""
_META_PAGE = struct.Struct("<QHHIIIQQIHHQQQQQIHHQQQQQQQ")
"""`MDB_page` and `MDB_meta` in LMDB's mdb.c."""
_EMPTY_TREE = 0, 0, 0, 0, 0, 2**64 - 1
_WRITE_COUNT = 16384
"""Rows after which LMDB lets go of the pages that it has written."""


def dump(tables: Mapping[str, Iterable[Row]], size: int) -> bytes:
    """Return an LMDB file holding `tables`, the rows of each in the order of their keys. The same tables give the same
    bytes.

    `size` is the most that all keys and values have, in bytes. Only some of them are in memory at once.

    Raises:
        KstoreError: there is no memory for it.
    """
    return _dumped(tables, size, _read)


def dump_aside(tables: Mapping[str, Iterable[Row]], size: int, folder: str) -> Kept:
    """The same, but if it is much, it is put aside in `folder`, and never in memory as a whole."""

    def keep(descriptor: int) -> Kept:
        length = os.fstat(descriptor).st_size
        if length >= MANY:
            with suppress(OSError):
                return Aside(pieces_of_file(descriptor, length), folder)
        return _read(descriptor)

    return _dumped(tables, size, keep)


def _dumped(tables: Mapping[str, Iterable[Row]], size: int, take: Callable[[int], Taken]) -> Taken:
    """What `take` makes of an open file with these tables."""
    try:
        with _memory_file() as fd:
            _build(fd, tables, size)
            return take(fd)
    except (lmdb.Error, OSError) as error:
        advice = "; check how much memory this process may take" if _errno(error) == errno.ENOMEM else ""
        raise KstoreError(f"cannot build a file of {size} bytes of rows in memory: {error}{advice}") from error


def _read(descriptor: int) -> bytes:
    with open(descriptor, "rb", closefd=False) as file:
        file.seek(0)
        return file.read()


def load(data: Bytes, take: Callable[[str, Iterator[Row]], Taken]) -> dict[str, Taken]:
    """Return what `take` makes of each of the tables in `data`, given by its name and its rows.

    Raises:
        IntegrityError: it is not such a file. `take` may have been given rows before that.
        OSError: this process has no memory for it.
    """
    loaded: dict[str, Taken] = {}
    try:
        for name, pages in TableFile(data).tables():
            if (text := name.decode()) in loaded:
                raise IntegrityError(f"table {text} occurs twice")
            loaded[text] = take(text, chain.from_iterable(map(_loaded, pages)))
    except (IntegrityError, struct.error, UnicodeDecodeError) as error:
        raise IntegrityError(f"a table file of {len(data)} bytes is cut short or not an LMDB file: {error}") from error
    except MemoryError as error:
        raise OSError(errno.ENOMEM, f"there is no memory for a table file of {len(data)} bytes") from error
    return loaded


def _errno(error: Exception) -> int:
    """What the operating system said, which says nothing about the file; LMDB's own codes are negative."""
    if isinstance(error, lmdb.MemoryError):
        return errno.ENOMEM
    return int(getattr(error, "code", getattr(error, "errno", None) or 0))


@contextmanager
def _memory_file() -> Iterator[int]:
    try:
        fd = _create_memory_file()
    except OSError as error:
        raise OSError(error.errno, f"cannot make a file in memory (memfd_create): {error.strerror}") from error
    try:
        yield fd
    finally:
        os.close(fd)


def _create_memory_file() -> int:
    """Pythons built for an older glibc, as uv's and conda's are, lack what this system's has (uv#15081).

    Raises:
        OSError: there can be none.
    """
    if hasattr(os, "memfd_create"):
        return os.memfd_create("kstore", _CLOSE_ON_EXEC)
    fd: int = ctypes.CDLL(None, use_errno=True).memfd_create(b"kstore", _CLOSE_ON_EXEC)
    if fd < 0:
        raise OSError(code := ctypes.get_errno(), os.strerror(code))
    return fd


def _build(fd: int, tables: Mapping[str, Iterable[Row]], size: int) -> None:
    # Generous: LMDB's overhead is under a factor of three, and unused room takes no space in the file.
    map_size = (4 * size // _PAGE_SIZE + 16 * (len(tables) + 16)) * _PAGE_SIZE
    write_all(fd, _empty_file(map_size))
    with _environment(fd, map_size) as env:
        for name in sorted(tables):
            database = env.open_db(name.encode())
            for some in _stored(tables[name]):
                with env.begin(write=True) as txn, txn.cursor(database) as cursor:
                    cursor.putmulti(some, append=True)


def _empty_file(map_size: int) -> bytes:
    """What LMDB itself makes of an empty file where memory pages have that size: it keeps to the size that it finds."""
    flags = 0x4008  # MDB_NOSUBDIR, and MDB_INTEGERKEY of the tree of free pages
    trees = _PAGE_SIZE, flags, *_EMPTY_TREE, 0, 0, *_EMPTY_TREE
    pages = [_META_PAGE.pack(number, 0, 8, 0, 0xBEEFC0DE, 1, 0, map_size, *trees, 1, 0) for number in (0, 1)]
    return b"".join(page.ljust(_PAGE_SIZE, b"\0") for page in pages)


@contextmanager
def _environment(fd: int, map_size: int) -> Iterator[lmdb.Environment]:
    env = lmdb.open(
        f"/proc/self/fd/{fd}", subdir=False, lock=False, max_dbs=_MAX_TABLES, map_size=map_size, sync=False,
        metasync=False, lib_version=_FORMAT,
    )  # fmt: skip
    with env:
        yield env


def _stored(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """The rows in the order of the keys that they are stored under, some at a time."""
    rows, long = iter(rows), list[Row]()
    while some := list(islice(rows, _WRITE_COUNT)):
        if some[-1][0] >= _LONG or max(map(len, map(itemgetter(0), some))) > MAX_KEY:
            long += starmap(_store_row, (row for row in some if _is_long(row[0])))
            some = [row for row in some if not _is_long(row[0])]
        yield some
    yield sorted(long)


def _is_long(key: bytes) -> bool:
    return len(key) > MAX_KEY or key.startswith(_LONG)


def _store_row(key: bytes, value: bytes) -> Row:
    """A key over LMDB's limit is stored under its digest, in full before its value."""
    return _LONG + digest_of(key), struct.pack("<I", len(key)) + key + value


def _load_row(key: bytes, value: bytes) -> Row:
    if not key.startswith(_LONG):
        return key, value
    end = 4 + int.from_bytes(value[:4], "little")
    return value[4:end], value[end:]


def _loaded(rows: list[Row]) -> Iterable[Row]:
    """The rows of a page as they were given to `dump`."""
    return starmap(_load_row, rows) if max(rows)[0] >= _LONG else rows
