"""A set of digests on local disk: a store may have more blobs than memory should hold."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import takewhile
from operator import methodcaller
from typing import Self, TypeVar

import lmdb

from kstore.errors import FileError
from kstore.lazy import cached_property

_MAP_SIZE = 1 << 20
"""Bytes of address space at first. That is doubled when full, because a process may be allowed only a few GiB."""
T = TypeVar("T")


class DigestSet:
    """Digests, each with a few bytes as its value, in local temporary storage. It is gone when its context is left.

    Raises, from every method that adds:
        FileError: there is no room for them, or not enough address space.
    """

    def __enter__(self) -> Self:
        self._open = ExitStack()
        return self

    @cached_property
    def _env(self) -> lmdb.Environment:
        """The table, made when it is first needed: many sets stay empty."""
        with _telling(), _temporary_file() as path:
            env = lmdb.open(
                os.fsencode(path), subdir=False, map_size=_MAP_SIZE, sync=False, metasync=False, lock=False,
                readahead=False,
            )  # fmt: skip
        return self._open.enter_context(env)

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def add(self, digests: Iterable[bytes]) -> list[bytes]:
        """Add digests; returns those that were not in it."""
        names = sorted(digests)
        if not names:
            return []
        return self._write(lambda txn: [digest for digest in names if txn.put(digest, b"", overwrite=False)])

    def remove(self, digests: Iterable[bytes]) -> None:
        """Take out those that are in it."""
        names = list(digests) if len(self) else []
        if names:
            self._write(lambda txn: [txn.delete(digest) for digest in names])

    def update(self, values: Mapping[bytes, bytes]) -> None:
        """Add digests with these values, whatever they had."""
        self._write(partial(_put_all, sorted(values.items())))

    def _write(self, change: Callable[[lmdb.Transaction], T]) -> T:
        """Return what `change` returns; it is called again, from the start, if there was no room in the map."""
        env = self._env
        with _telling():
            while True:
                try:
                    with env.begin(write=True) as txn:
                        return change(txn)
                except lmdb.MapFullError:
                    env.set_mapsize(2 * env.info()["map_size"])

    def value(self, digest: bytes) -> bytes | None:
        """What a digest was added with; None if it is not in the set."""
        if not len(self):
            return None
        with self._env.begin() as txn:
            found: bytes | None = txn.get(digest)
            return found

    def absent(self, digests: Iterable[bytes]) -> list[bytes]:
        """Those of `digests` that are not in the set."""
        if not len(self):
            return list(digests)
        with self._env.begin() as txn:
            return [digest for digest in digests if txn.get(digest) is None]

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """Digests and their values, in order. The set must not be changed meanwhile."""
        with self._env.begin() as txn, txn.cursor() as cursor:
            yield from cursor.iternext()

    def beginning(self, prefixes: Iterable[bytes]) -> list[bytes]:
        """The digests in the set that begin with any of these."""
        found: list[bytes] = []
        with self._env.begin() as txn, txn.cursor() as cursor:
            for prefix in prefixes:
                names = cursor.iternext(values=False) if cursor.set_range(prefix) else iter(())
                found += takewhile(methodcaller("startswith", prefix), names)
        return found

    def __len__(self) -> int:
        return int(self._env.stat()["entries"]) if "_env" in vars(self) else 0

    def __contains__(self, digest: bytes) -> bool:
        return self.value(digest) is not None


def _put_all(items: list[tuple[bytes, bytes]], txn: lmdb.Transaction) -> None:
    with txn.cursor() as cursor:
        cursor.putmulti(items)


@contextmanager
def _temporary_file() -> Iterator[str]:
    """The path of a new file that loses its name after the block, because a gc may be killed. On NFS that leaves
    another name, which goes when the file is closed.
    """
    fd, path = tempfile.mkstemp(prefix="kstore-gc-")
    os.close(fd)
    try:
        yield path
    finally:
        with suppress(OSError):
            os.unlink(path)


@contextmanager
def _telling() -> Iterator[None]:
    """Turn an error of LMDB or of its folder into one that says what to do: it is no trouble with the store."""
    try:
        yield
    except (lmdb.Error, OSError) as error:
        where = tempfile.tempdir or "temporary storage"  # nobody knows where that is if no folder can be written
        raise FileError(
            f"cannot keep a table of digests in {where}: {error}; make room there, or set TMPDIR to a "
            "folder that has some, or allow this process more memory (ulimit -v)"
        ) from error
