"""What was hashed in a cache root and has not changed since: saves reading it again.

A file whose status is the same is taken to be the same. One that was so young when it was hashed that a later change
could have left the same time on it (git's racy rule) is not recorded: it is hashed again.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate, chain, islice, pairwise, starmap
from operator import attrgetter
from typing import NamedTuple

from kstore.calls import Status
from kstore.errors import IntegrityError, described
from kstore.published.manifest import Entry, pack_entries, unpack_entries

_MAGIC = b"kstore index 2\n"
_LENGTHS = struct.Struct("<4Q")
_STATUS = struct.Struct("<QQ")
_FOLDER = struct.Struct("<qqII")
_ENTRY, _LOOK = attrgetter("entry"), attrgetter("size", "inode")
_SEPARATOR = "\0"
_NAMES = 4096
"""That are written in one go."""
_TICK_NS = 100_000_000
_COARSE_TICK_NS = 2_000_000_000


class Known(NamedTuple):
    """A file that was hashed, and how it looked then."""

    entry: Entry
    size: int
    """Bytes of the file; `entry.size` is the blob's."""
    inode: int

    def still_is(self, found: Status) -> bool:
        """Whether the file has not been touched since."""
        return found.mtime_ns == self.entry.mtime_ns and found.size == self.size and found.inode == self.inode


class KnownFolder(NamedTuple):
    """A folder in which files are only ever created or replaced: while its own times stand, so do they."""

    mtime_ns: int
    ctime_ns: int
    """Of its last status change: a cleaner that removes a file and sets the other time back leaves another one."""
    folders: tuple[str, ...]
    """Names of its subfolders."""
    files: tuple[str, ...]
    """Names of its artifacts."""

    def still_is(self, found: Status) -> bool:
        """Whether nothing has come, gone or been replaced in it since."""
        return found.mtime_ns == self.mtime_ns and found.ctime_ns == self.ctime_ns


@dataclass(slots=True)
class Index:
    """Paths are artifact paths, `<component>/…`."""

    files: dict[str, Known] = field(default_factory=dict)
    folders: dict[str, KnownFolder] = field(default_factory=dict)

    def dump(self) -> list[bytes]:
        """As bytes, in parts: entries, statuses, folders, and the names of all of them. It is only ever read whole."""
        files, folders = self.files.values(), self.folders.values()
        columns = (
            b"".join(pack_entries(map(_ENTRY, files))),
            b"".join(starmap(_STATUS.pack, map(_LOOK, files))),
            b"".join(_FOLDER.pack(f.mtime_ns, f.ctime_ns, len(f.folders), len(f.files)) for f in folders),
        )
        below = ((path, *folder.folders, *folder.files) for path, folder in self.folders.items())
        names = list(_encoded(chain(self.files, chain.from_iterable(below))))
        return [_MAGIC, _LENGTHS.pack(*map(len, columns), sum(map(len, names))), *columns, *names]

    @classmethod
    def load(cls, data: bytes) -> Index:
        """Read what `dump` wrote.

        Raises:
            IntegrityError: it is damaged.
        """
        try:
            entries, statuses, folders, text = _sections(data)
            names = iter(bytes(text).decode("utf-8", "surrogateescape").split(_SEPARATOR))
            pairs = zip(unpack_entries(entries), _STATUS.iter_unpack(statuses), strict=True)
            known = [Known(entry, size, inode) for entry, (size, inode) in pairs]
            files = dict(zip(_take(names, len(known)), known, strict=True))
            return cls(files, dict(_take_folder(names, *found) for found in _FOLDER.iter_unpack(folders)))
        except (ValueError, struct.error) as error:
            raise IntegrityError(f"a local index of {len(data)} bytes cannot be read: {described(error)}") from error


def is_settled(mtime_ns: int, now_ns: int | None = None) -> bool:
    """Whether a later change is certain to leave another time than `mtime_ns`.

    Linux stamps files with a clock that ticks every few milliseconds, some filesystems every second or two. A time
    before 1970 is no clock's.
    """
    tick = _TICK_NS if mtime_ns % 1_000_000 else _COARSE_TICK_NS
    return 0 <= mtime_ns < (now_ns or time.time_ns()) - tick


def settled_before(now_ns: int) -> int:
    """A time such that all before it, from 1970 on, are settled however coarse their filesystem's are."""
    return now_ns - _COARSE_TICK_NS


def _encoded(names: Iterator[str]) -> Iterator[bytes]:
    """Names as text, some at a time: it is not in memory twice."""
    separator = b""
    while some := list(islice(names, _NAMES)):
        yield separator + _SEPARATOR.join(some).encode("utf-8", "surrogateescape")
        separator = _SEPARATOR.encode()


def _sections(data: bytes) -> list[memoryview]:
    start = len(_MAGIC) + _LENGTHS.size
    if not data.startswith(_MAGIC) or len(data) < start:
        raise ValueError("it is none, or one of another kstore")
    ends = list(accumulate(_LENGTHS.unpack_from(data, len(_MAGIC)), initial=start))
    if ends[-1] != len(data):
        raise ValueError("it is cut short")
    return [memoryview(data)[start:end] for start, end in pairwise(ends)]


def _take(names: Iterator[str], count: int) -> tuple[str, ...]:
    taken = tuple(islice(names, count))
    if len(taken) != count:
        raise ValueError("it lacks names")
    return taken


def _take_folder(
    names: Iterator[str], mtime_ns: int, ctime_ns: int, folders: int, files: int
) -> tuple[str, KnownFolder]:
    (path,) = _take(names, 1)
    return path, KnownFolder(mtime_ns, ctime_ns, _take(names, folders), _take(names, files))
