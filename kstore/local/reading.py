"""Reads files of a cache root, one or many: each in one piece, while nobody changes it."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar

from kstore.batches import batches
from kstore.calls import Status, open_unnoticed, read_each
from kstore.digest import digest_of, digests_of
from kstore.files import READ, read_all
from kstore.local.finished import Unfinished
from kstore.threads import map_ahead

_BATCH = 1 << 20
"""Bytes of files that are read in one go: with fewer, two threads would wait for each other's turn too often."""
_COUNT = 256
"""Files in one batch, however small: nothing is done with the first before the last is read."""
_AHEAD = 4
"""Batches that are read before they are requested: the caller waits while a frame of four is compressed."""
_TOO_LARGE = Status(errno.EFBIG, 0, 0, 0, 0, 0)

Item = TypeVar("Item")


class Content(NamedTuple):
    """A file read in one piece while nobody changed it."""

    data: bytes
    status: Status
    digest: bytes
    """Of the data."""


class Batch(NamedTuple, Generic[Item]):
    """Files that were read together."""

    items: Sequence[Item]
    """What each stands for."""
    contents: Sequence[bytes | None]
    """Of each, read while nobody changed it; empty if its status has an error. None once it is no longer needed."""
    statuses: Sequence[Status]
    digests: Sequence[bytes]
    """Of the contents."""


def read_finished(path: str) -> Content:
    """Read a whole file.

    Raises:
        Unfinished: it changed while it was read, is gone, or has become something else.
        OSError: it cannot be read.
    """
    try:
        fd = open_unnoticed(path, READ)
    except FileNotFoundError as error:
        raise Unfinished("it is gone") from error
    try:
        before = os.fstat(fd)
        if not stat.S_ISREG(before.st_mode):
            raise Unfinished("it is not a regular file")
        data = read_all(fd, before.st_size)
        after = os.fstat(fd)
    finally:
        os.close(fd)
    if len(data) != before.st_size or before.st_mtime_ns != after.st_mtime_ns or after.st_size != len(data):
        raise Unfinished("it changed while it was read")
    return Content(data, Status.of(after), digest_of(data))


def read_in_batches(
    files: Iterable[tuple[Item, int]],
    paths_of: Callable[[Sequence[Item]], Sequence[str]],
    then: Callable[[Batch[Item]], Batch[Item]] | None = None,
) -> Iterator[Batch[Item]]:
    """Read small files in order, each given as whatever it stands for, with its size in bytes.

    `paths_of` says where they are. A file whose status has an error, because it is large or has changed, is left to
    `read_finished`, which reads it or says what is wrong. While the caller uses one batch, a thread reads the next
    ones. With `then` there are two such threads, which also call `then` with each batch.
    """

    def read(batch: list[tuple[Item, int]]) -> Batch[Item]:
        found = _read_batch(paths_of, batch)
        return then(found) if then else found

    return map_ahead(read, batches(files, _BATCH, _COUNT), _AHEAD, threads=2 if then else 1)


def _read_batch(paths_of: Callable[[Sequence[Item]], Sequence[str]], batch: list[tuple[Item, int]]) -> Batch[Item]:
    items, sizes = zip(*batch, strict=True)
    if sum(sizes) > _BATCH:  # It is a single file.
        return Batch(items, [b""], [_TOO_LARGE], [b""])
    contents, statuses = read_each(paths_of(items), sizes)
    return Batch(items, contents, statuses, digests_of(contents))
