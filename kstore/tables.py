"""Sorted tables in one LMDB file, made and read as bytes.

LMDB trusts the file it maps: a truncated one kills the process with SIGBUS, and on a network filesystem
mapping is unsafe altogether. So a file is built in a memfd and read from one, private to this process and
on no disk that could be full, after a look at its pages; what is shared is only ever plain bytes.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import lmdb

from kstore.digest import digest_of
from kstore.errors import IntegrityError, KstoreError
from kstore.pages import check_pages

Table = dict[bytes, bytes]

MAX_KEY = 511
"""Bytes. LMDB's own limit on a key."""
_LONG = b"\xff"
_MAX_TABLES = 4096
_FORMAT = 0
"""LMDB 0.9's file format; py-lmdb 3 can also write one that older readers refuse."""


def dump(tables: Mapping[str, Mapping[bytes, bytes]]) -> bytes:
    """Return an LMDB file holding `tables`. The same tables give the same bytes.

    Raises:
        KstoreError: there is no memory for it.
    """
    try:
        with _memory_file() as fd:
            _build(fd, tables)
            with open(fd, "rb", closefd=False) as file:
                return file.read()
    except (lmdb.Error, OSError) as error:
        rows = sum(map(len, tables.values()))
        raise KstoreError(
            f"cannot build a table file of {rows} rows in memory: {error}; see how much memory this process may take"
        ) from error


def load(data: bytes) -> dict[str, Table]:
    """Return the tables in `data`.

    Raises:
        IntegrityError: it is not such a file.
        OSError: this process has no memory, or no file descriptor, for it.
    """
    check_pages(data)
    try:
        with _memory_file() as fd:
            _write_all(fd, data)
            with _environment(fd, readonly=True) as env:
                return {name.decode(): _load_table(env, name) for name in _names(env)}
    except (lmdb.Error, UnicodeDecodeError) as error:
        what = f"a table file of {len(data)} bytes cannot be read: {error}"
        raise OSError(code, what) if (code := _errno(error)) > 0 else IntegrityError(what) from error


def _errno(error: Exception) -> int:
    """What the operating system said, which says nothing of the file; LMDB's own codes are negative."""
    return int(getattr(error, "code", errno.ENOMEM if isinstance(error, lmdb.MemoryError) else 0))


@contextmanager
def _memory_file() -> Iterator[int]:
    fd = os.memfd_create("kstore", os.MFD_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def _build(fd: int, tables: Mapping[str, Mapping[bytes, bytes]]) -> None:
    with _environment(fd, map_size=_room_for(tables)) as env:
        for name in sorted(tables):
            database = env.open_db(name.encode())
            with env.begin(write=True) as txn, txn.cursor(database) as cursor:
                cursor.putmulti(_stored(tables[name]), append=True)


@contextmanager
def _environment(fd: int, *, readonly: bool = False, map_size: int = 1 << 20) -> Iterator[lmdb.Environment]:
    env = lmdb.open(
        f"/proc/self/fd/{fd}", subdir=False, lock=False, readonly=readonly, max_dbs=_MAX_TABLES, map_size=map_size,
        sync=False, metasync=False, lib_version=_FORMAT,
    )  # fmt: skip
    with env:
        yield env


def _room_for(tables: Mapping[str, Mapping[bytes, bytes]]) -> int:
    """Generous: LMDB's overhead is under a factor of three, and unused room takes no space in the file."""
    content = sum(32 * len(t) + sum(map(len, t)) + sum(map(len, t.values())) for t in tables.values())
    page = os.sysconf("SC_PAGE_SIZE")
    return (4 * content // page + 16 * (len(tables) + 16)) * page


def _stored(table: Mapping[bytes, bytes]) -> list[tuple[bytes, bytes]]:
    if max(map(len, table), default=0) <= MAX_KEY and max(table, default=b"") < _LONG:
        return sorted(table.items())
    return sorted(_store_row(key, value) for key, value in table.items())


def _store_row(key: bytes, value: bytes) -> tuple[bytes, bytes]:
    """A key over LMDB's limit is stored under its digest, in full before its value."""
    if len(key) <= MAX_KEY and not key.startswith(_LONG):
        return key, value
    return _LONG + digest_of(key), struct.pack("<I", len(key)) + key + value


def _load_row(key: bytes, value: bytes) -> tuple[bytes, bytes]:
    if not key.startswith(_LONG):
        return key, value
    end = 4 + int.from_bytes(value[:4], "little")
    return value[4:end], value[end:]


def _load_table(env: lmdb.Environment, name: bytes) -> Table:
    database = env.open_db(name, create=False)
    with env.begin(db=database) as txn:
        table = dict(txn.cursor())
    for key in [key for key in table if key >= _LONG] if max(table, default=b"") >= _LONG else ():
        long_key, value = _load_row(key, table.pop(key))
        table[long_key] = value
    return table


def _names(env: lmdb.Environment) -> list[bytes]:
    with env.begin() as txn:
        return list(txn.cursor().iternext(keys=True, values=False))


def _write_all(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]
