"""A set of digests on local disk: a store may have more blobs than memory should hold."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from functools import cached_property, partial
from itertools import takewhile
from types import TracebackType
from typing import Self

import lmdb

_MAP_SIZE = 1 << 40
"""Address space, not memory or disk."""


class DigestSet:
    """Digests, each with a few bytes of its own. In local temporary storage, gone when its context is left."""

    def __enter__(self) -> Self:
        self._open = ExitStack()
        return self

    @cached_property
    def _env(self) -> lmdb.Environment:
        """Made when it is first needed: many a set stays empty."""
        folder = self._open.enter_context(tempfile.TemporaryDirectory(prefix="kstore-gc-"))
        env = lmdb.open(folder, map_size=_MAP_SIZE, sync=False, metasync=False, lock=False, readahead=False)
        return self._open.enter_context(env)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def add(self, digests: Iterable[bytes]) -> list[bytes]:
        """Add digests; returns those that were not in it."""
        names = sorted(digests)
        if not names:
            return []
        with self._env.begin(write=True) as txn:
            return [digest for digest in names if txn.put(digest, b"", overwrite=False)]

    def remove(self, digests: Iterable[bytes]) -> None:
        """Take out those that are in it."""
        if len(self):
            with self._env.begin(write=True) as txn:
                for digest in digests:
                    txn.delete(digest)

    def update(self, values: Mapping[bytes, bytes]) -> None:
        """Add digests with these values, whatever they had."""
        with self._env.begin(write=True) as txn, txn.cursor() as cursor:
            cursor.putmulti(sorted(values.items()))

    def value(self, digest: bytes) -> bytes | None:
        """What a digest was added with; None if it is not in the set."""
        if not len(self):
            return None
        with self._env.begin() as txn:
            found: bytes | None = txn.get(digest)
            return found

    def absent(self, digests: Iterable[bytes]) -> list[bytes]:
        """Of `digests`, those that are not in the set."""
        if not len(self):
            return list(digests)
        with self._env.begin() as txn:
            return [digest for digest in digests if txn.get(digest) is None]

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """Digests and their values, in order. The set must not be changed meanwhile."""
        with self._env.begin() as txn, txn.cursor() as cursor:
            yield from cursor.iternext()

    def beginning(self, prefixes: Iterable[bytes]) -> list[bytes]:
        """What is in the set and begins with any of these."""
        found: list[bytes] = []
        with self._env.begin() as txn, txn.cursor() as cursor:
            for prefix in prefixes:
                names = cursor.iternext(values=False) if cursor.set_range(prefix) else iter(())
                found += takewhile(partial(_begins, prefix), names)
        return found

    def __len__(self) -> int:
        return int(self._env.stat()["entries"]) if "_env" in vars(self) else 0

    def __contains__(self, digest: bytes) -> bool:
        return self.value(digest) is not None


def _begins(prefix: bytes, name: bytes) -> bool:
    return name.startswith(prefix)
