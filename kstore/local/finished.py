"""Whether an artifact is finished, or somebody is still writing it."""

from __future__ import annotations

import ast
import errno
import fcntl
import json
import os
import stat
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar

from kstore.batches import batches
from kstore.calls import Status, open_unnoticed, read_each
from kstore.digest import digest_of, digests_of
from kstore.files import READ, read_all
from kstore.threads import map_ahead

_ELF = b"\x7fELF"
_ELF64 = 2
_SECTION_TABLE = struct.Struct("<Q")
_SECTION_COUNTS = struct.Struct("<HH")
_WRITING_TIME = 3600.0
_LOCK = "lock"
_BATCH = 1 << 20
"""Bytes of files that are read in one go: with fewer, two threads would wait for each other's turn too often."""
_COUNT = 256
"""Files however small they are: nothing is done with the first of them before the last is read."""
_AHEAD = 4
"""Batches that are read before they are asked for: who takes them waits for a frame of four to be compressed."""
_PARSERS: dict[str, Callable[[bytes], object]] = {
    "json_union": json.loads,
    "literal_union": lambda data: ast.parse(data.decode(), mode="eval"),
}
"""By the merger of files that are dictionaries: each fails on the beginning of one."""
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
    """Of each, read while nobody changed it; nothing of one whose status has an error. None once it is not needed."""
    statuses: Sequence[Status]
    digests: Sequence[bytes]
    """Of the contents."""


class Unfinished(Exception):
    """The file is not finished, for the reason given; the next commit looks again."""


def read_finished(path: str) -> Content:
    """Read a whole file.

    Raises:
        Unfinished: it changed while it was read, has gone, or has become something else.
        OSError: it cannot be read.
    """
    try:
        fd = open_unnoticed(path, READ)
    except FileNotFoundError as error:
        raise Unfinished("it has gone") from error
    try:
        before = os.fstat(fd)
        if not stat.S_ISREG(before.st_mode):
            raise Unfinished("it is no regular file")
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
    """Read small files in order, each given as whatever it stands for, with its size in bytes; `paths_of` says where
    they are.

    `read_finished` is to read, or says what is wrong with, what has an error: a large one, or one that has changed.
    While one batch is made use of, a thread reads the next ones. With something else to be done `then` with each, two
    threads read, and do that.
    """

    def read(batch: list[tuple[Item, int]]) -> Batch[Item]:
        found = _read_batch(paths_of, batch)
        return then(found) if then else found

    return map_ahead(read, batches(files, _BATCH, _COUNT), _AHEAD, threads=2 if then else 1)


def _read_batch(paths_of: Callable[[Sequence[Item]], Sequence[str]], batch: list[tuple[Item, int]]) -> Batch[Item]:
    items, sizes = zip(*batch, strict=True)
    if sum(sizes) > _BATCH:  # It is one by itself.
        return Batch(items, [b""], [_TOO_LARGE], [b""])
    contents, statuses = read_each(paths_of(items), sizes)
    return Batch(items, contents, statuses, digests_of(contents))


def check_unlocked(lock: str) -> None:
    """Torch's compilers write an `.so` straight to its name, under a lock (`CppCodeCache`, `cpp_extension`).

    Raises:
        Unfinished: somebody holds the lock.
    """
    try:
        fd = os.open(lock, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # nobody waits for the writer of a pipe
    except FileNotFoundError:
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(fd, fcntl.LOCK_UN)  # a child that is forked in between has it open for as long as it lives
    except BlockingIOError:
        raise Unfinished("a compiler holds its lock") from None
    finally:
        os.close(fd)


def check_whole_object(data: bytes) -> None:
    """A linker that was killed leaves an object file cut short, which every later import would fail on.

    Raises:
        Unfinished: `data` is not an ELF file with all of its sections.
    """
    if not data.startswith(_ELF):
        raise Unfinished("it is no object file")
    if len(data) >= 64 and data[4] == _ELF64:
        (table,) = _SECTION_TABLE.unpack_from(data, 0x28)
        entry_size, entries = _SECTION_COUNTS.unpack_from(data, 0x3A)
        if table and table + entry_size * entries <= len(data):
            return
    raise Unfinished("it is cut short")


def check_whole_text(merger: str, data: bytes) -> None:
    """A file that is merged by meaning may be written in its place: who is killed then leaves nothing, zeros, or the
    beginning of a dictionary, on which its every reader fails. What has another form, as a later version's, is whole.

    Raises:
        Unfinished: `data` is such.
    """
    if not data.strip(b"\0"):
        raise Unfinished("it is empty")
    parse = _PARSERS.get(merger)
    if parse and data.lstrip().startswith(b"{"):
        try:
            parse(data)
        except (ValueError, SyntaxError) as error:
            raise Unfinished("it is cut short") from error
        except (RecursionError, MemoryError):
            pass


def is_at_work(path: str) -> bool:
    """Whether what shows that a group is being written is not what somebody left there.

    The lock of a torch extension stays from torch 2.14 on, and who builds holds it (`FileLock`). Before, it was there
    only while somebody built, and executable (`FileBaton`), which the other never is.
    """
    try:
        if os.path.basename(path) != _LOCK or os.lstat(path).st_mode & 0o111:
            return is_recent(path)
        check_unlocked(path)
    except Unfinished:
        return True
    except OSError:
        return is_recent(path)
    return False


def is_recent(path: str) -> bool:
    """A writer that was killed leaves its temporary name for ever; no file takes an hour to write."""
    try:
        return time.time() - os.lstat(path).st_mtime < _WRITING_TIME
    except OSError:
        return False
