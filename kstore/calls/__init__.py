"""System calls for many files at once, without a step of the interpreter between two of them.

`native` makes them without the interpreter's lock, so that threads can make them side by side. If it could not be
compiled when kstore was installed, `plain` does the same with Python's own functions.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import starmap
from typing import NamedTuple

from kstore.calls.plain import CHANGED, LOOK, NO_FILE, SKIPPED, Look, bounded, open_unnoticed, times, write_all

_FORM = 11
try:
    from kstore.calls import native as _calls

    if getattr(_calls, "FORM", 0) != _FORM:
        raise ImportError("it was compiled from different source")
except ImportError:
    from kstore.calls import plain as _calls  # type: ignore[no-redef]

__all__ = [
    "CHANGED", "IS_COMPILED", "NO_FILE", "SKIPPED", "Listing", "Look", "NewFile", "Status", "bounded", "clone_each",
    "link_each", "link_first", "link_rows", "list_each", "mkdir_each", "open_unnoticed", "publish_first", "read_each",
    "stat_each", "times", "times_below", "unlink_each", "utime_each", "write_all", "write_first", "write_rows",
]  # fmt: skip

IS_COMPILED = _calls.__name__.endswith(".native")
"""Whether `native` makes the calls."""
_STATUS = struct.Struct("=5qQ")


class NewFile(NamedTuple):
    """A file to be made."""

    path: str
    data: bytes | memoryview
    mode: int
    """Permission bits."""
    mtime_ns: int | None
    """Modification time, in nanoseconds since 1970; None for now."""


class Status(NamedTuple):
    """What the system says about a file."""

    error: int
    """Why it says nothing; 0 if it does."""
    mode: int
    """Type and permission bits."""
    size: int
    """Bytes."""
    mtime_ns: int
    """Nanoseconds since 1970, as `bounded`."""
    ctime_ns: int
    inode: int

    @classmethod
    def of(cls, found: os.stat_result) -> Status:
        """Make one from what Python's own functions say."""
        times = bounded(found.st_mtime_ns), bounded(found.st_ctime_ns)
        return cls(0, found.st_mode, found.st_size, *times, found.st_ino)

    def as_error(self) -> OSError:
        """Why the system says nothing."""
        return OSError(self.error, os.strerror(self.error))


class Listing(NamedTuple):
    """What is in a folder."""

    names: bytes
    statuses: bytes

    @property
    def status(self) -> Status:
        """The folder's own status, from before it was listed; its error says why it was not."""
        return Status._make(_STATUS.unpack_from(self.statuses))

    def entries(self) -> Iterator[tuple[str, Status]]:
        """Each name, and what it is; links are not followed."""
        names = os.fsdecode(self.names).split("\0")
        names.pop()
        return zip(names, _statuses(memoryview(self.statuses)[_STATUS.size :]), strict=True)


def link_first(sources: Sequence[str], targets: Sequence[str]) -> tuple[int, int]:
    """Make hard links until one fails; returns how many were made, and the error number of the failed one, or 0."""
    return _calls.link_first(sources, targets)


def link_each(sources: Sequence[str], targets: Sequence[str], looks: Iterable[Look]) -> memoryview:
    """Make a hard link of each regular file that, just before, still is what its look says.

    Returns an error number for each: 0 if the link was made, `CHANGED` if the file is no longer that.
    """
    return memoryview(_calls.link_each(sources, targets, _pack(looks))).cast("i")


def clone_each(sources: Sequence[str], targets: Sequence[str], looks: Iterable[Look]) -> memoryview:
    """The same with clones (FICLONE, ioctl_ficlone(2)), which get their source's time. A failed one leaves no file."""
    return memoryview(_calls.clone_each(sources, targets, _pack(looks))).cast("i")


def link_rows(
    paths: Sequence[str], records: bytes, blobs: str, stage: str, *, needed: int, refused: int, clones: bool
) -> memoryview:
    """Link, or clone, the loose blobs of a manifest's rows, which are paths with a record each, into a folder.

    Returns an error number for each, as `link_each` does; `SKIPPED` for a row that lacks a flag of `needed` or has one
    of `refused`. `blobs` is the folder of the loose blobs. No path leads out of `stage`, and the folders of the new
    files exist.
    """
    return memoryview(_calls.link_rows(paths, records, blobs, stage, needed, refused, clones)).cast("i")


def write_rows(
    paths: Sequence[str], records: bytes, contents: Sequence[bytes | memoryview], stage: str, *, second_ns: int
) -> tuple[int, int]:
    """Write the contents of a manifest's rows into a folder until one fails, which leaves no file.

    Returns how many were made, and the error number of the failed one, or 0. Paths and `stage` are as in `link_rows`.
    Each file's time is `second_ns`, a whole second in nanoseconds since 1970, with its blob's stamp as the fraction.
    """
    return _calls.write_rows(paths, records, contents, stage, second_ns)


def _pack(looks: Iterable[Look]) -> bytes:
    return b"".join(starmap(LOOK.pack, looks))


def mkdir_each(paths: Sequence[str]) -> memoryview:
    """Make each folder; returns an error number for each, 0 if it was made."""
    return memoryview(_calls.mkdir_each(paths)).cast("i")


def unlink_each(paths: Sequence[str]) -> memoryview:
    """Remove each name; returns an error number for each, 0 if it existed."""
    return memoryview(_calls.unlink_each(paths)).cast("i")


def utime_each(paths: Sequence[str], atime_ns: int, mtime_ns: int) -> memoryview:
    """Give each file these times; returns an error number for each, 0 if it has them."""
    return memoryview(_calls.utime_each(paths, atime_ns, mtime_ns)).cast("i")


def stat_each(paths: Sequence[str], *, follows: bool = False) -> Iterator[Status]:
    """The status of each path; with `follows`, of what a link leads to."""
    return _statuses(_calls.stat_each(paths, follows))


def times_below(names: bytes, folder: int, *, follows: bool = False) -> memoryview | None:
    """When each name was last modified and when its status last changed, by turns; None if the system says nothing
    about one. Times are in nanoseconds since 1970.

    NULs separate the names, which are below the folder of that descriptor. There are thousands, and no object for any.
    """
    found = _calls.times_below(names, folder, follows)
    return None if found is None else memoryview(found).cast("q")


def list_each(folders: Sequence[str]) -> list[Listing]:
    """What is in each folder, or why that cannot be said."""
    return list(starmap(Listing, _calls.list_each(folders)))


def read_each(paths: Sequence[str], sizes: Sequence[int]) -> tuple[list[bytes], list[Status]]:
    """The bytes of each file, whose size is known, and the status of each, which says why there are no bytes.

    The error is EAGAIN if a file has another size, is changed while it is read, or is not a regular file. Links are not
    followed, and nobody waits for the writer of a pipe.
    """
    contents, statuses = _calls.read_each(paths, sizes)
    return contents, [*_statuses(statuses)]


def _statuses(data: bytes | memoryview) -> Iterator[Status]:
    # Status._make, without a step of the interpreter for each of ten thousand.
    return map(partial(tuple.__new__, Status), _STATUS.iter_unpack(data))


def write_first(files: Sequence[NewFile]) -> tuple[int, int]:
    """Make files, none of which exists, until there is no descriptor for the next one.

    Returns how many were made, and the error number if a lack of descriptors ended it.

    Raises:
        OSError: the next one cannot be made (ENOSPC, EROFS, EDQUOT …).
    """
    return _calls.write_first(files)


def publish_first(folder: str, files: Sequence[NewFile]) -> tuple[memoryview, int]:
    """Make files until one fails. Each is whole before it has a name, and never has another name.

    The nearest folder of each is made if it is missing. Returns an error number for each file before the failed one: 0,
    or EEXIST if the name is taken; and the failed one's, or 0. EOPNOTSUPP, EISDIR and EINVAL say that the filesystem of
    `folder`, which is the files' too, has no files without a name.
    """
    answers, error = _calls.publish_first(folder, files)
    return memoryview(answers).cast("i"), error
