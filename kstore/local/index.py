"""Which files of a cache root were hashed and have not changed since: they need not be read again.

A file whose status is unchanged is taken to be unchanged. A file that was so young when it was hashed that a later
change could have left the same time on it (git's racy rule) is not recorded, and is hashed again.
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
from kstore.published.manifest import BELOW, ENTRY_SIZE, Entry, pack_entries, unpack_entries

_MAGIC = b"kstore index 3\n"
_COUNTS = struct.Struct("<2Q")
"""How many files and how many folders there are."""
_STATUS = struct.Struct("<QQ")
_FOLDER = struct.Struct("<qqII")
_ENTRY, _LOOK = attrgetter("entry"), attrgetter("size", "inode")
_END = "\0"
_SOME = 4096
"""How many records or names are written at once."""
_TICK_NS = 100_000_000
_COARSE_TICK_NS = 2_000_000_000


class Known(NamedTuple):
    """A file that was hashed, with its status at that time."""

    entry: Entry
    size: int
    """Bytes of the file; `entry.size` is the size of its blob."""
    inode: int

    @classmethod
    def placed(cls, entry: Entry, status: Status) -> Known:
        """A file that was made of this entry's blob. Which store had that says nothing about what a commit finds."""
        return cls(entry._replace(mtime_ns=status.mtime_ns, flags=entry.flags & ~BELOW), status.size, status.inode)

    def still_is(self, found: Status) -> bool:
        """Whether the file has not been touched since."""
        return found.mtime_ns == self.entry.mtime_ns and found.size == self.size and found.inode == self.inode


class KnownFolder(NamedTuple):
    """A folder in which files are only ever created or replaced: while its times are unchanged, so are the files."""

    mtime_ns: int
    ctime_ns: int
    """Time of the last status change. A cleaner that removes a file and resets `mtime_ns` still changes this one."""
    folders: tuple[str, ...]
    """Names of its subfolders."""
    files: tuple[str, ...]
    """Names of its artifacts."""

    def still_is(self, found: Status) -> bool:
        """Whether nothing in it has been created, removed or replaced since."""
        return found.mtime_ns == self.mtime_ns and found.ctime_ns == self.ctime_ns


@dataclass(slots=True)
class Index:
    """Paths are artifact paths, `<component>/…`."""

    files: dict[str, Known] = field(default_factory=dict)
    folders: dict[str, KnownFolder] = field(default_factory=dict)

    def dump(self) -> Iterator[bytes]:
        """Yield the file's bytes in pieces: entries, statuses, folders, and all names. It is only read in full."""
        files, folders = self.files.values(), self.folders.values()
        yield _MAGIC + _COUNTS.pack(len(files), len(folders))
        yield from _joined(pack_entries(map(_ENTRY, files)))
        yield from _joined(starmap(_STATUS.pack, map(_LOOK, files)))
        yield from _joined(_FOLDER.pack(f.mtime_ns, f.ctime_ns, len(f.folders), len(f.files)) for f in folders)
        below = ((path, *folder.folders, *folder.files) for path, folder in self.folders.items())
        yield from _encoded(chain(self.files, chain.from_iterable(below)))

    @classmethod
    def load(cls, data: bytes) -> Index:
        """Read what `dump` wrote.

        Raises:
            IntegrityError: it is damaged.
        """
        try:
            entries, statuses, folders, text = _sections(data)
            names = _names(text)
            pairs = zip(unpack_entries(entries), _STATUS.iter_unpack(statuses), strict=True)
            known = [Known(entry, size, inode) for entry, (size, inode) in pairs]
            files = dict(zip(_take(names, len(known)), known, strict=True))
            index = cls(files, dict(_take_folder(names, *found) for found in _FOLDER.iter_unpack(folders)))
            if next(names, None) is not None:
                raise ValueError("it has more names than files and folders")
            return index
        except (ValueError, struct.error) as error:
            raise IntegrityError(f"a local index of {len(data)} bytes cannot be read: {described(error)}") from error


def is_settled(mtime_ns: int, now_ns: int | None = None) -> bool:
    """Whether a later change is certain to leave another time than `mtime_ns`.

    Linux stamps files with a clock that ticks every few milliseconds, some filesystems every second or two. A time
    before 1970 is no clock's.
    """
    tick = _TICK_NS if mtime_ns % 1_000_000 else _COARSE_TICK_NS
    return 0 <= mtime_ns < (time.time_ns() if now_ns is None else now_ns) - tick


def settled_before(now_ns: int) -> int:
    """A time such that all earlier ones since 1970 are settled, however coarse the filesystem's times are."""
    return now_ns - _COARSE_TICK_NS


def _joined(records: Iterator[bytes]) -> Iterator[bytes]:
    while some := b"".join(islice(records, _SOME)):
        yield some


def _encoded(names: Iterator[str]) -> Iterator[bytes]:
    """The names as text, each terminated by a NUL."""
    while some := list(islice(names, _SOME)):
        yield (_END.join(some) + _END).encode("utf-8", "surrogateescape")


def _sections(data: bytes) -> list[memoryview]:
    start = len(_MAGIC) + _COUNTS.size
    if not data.startswith(_MAGIC) or len(data) < start:
        raise ValueError("it is not an index, or is from another kstore")
    files, folders = _COUNTS.unpack_from(data, len(_MAGIC))
    columns = files * ENTRY_SIZE, files * _STATUS.size, folders * _FOLDER.size
    ends = [*accumulate(columns, initial=start), len(data)]
    if ends[-2] > ends[-1]:
        raise ValueError("it is cut short")
    return [memoryview(data)[start:end] for start, end in pairwise(ends)]


def _names(text: memoryview) -> Iterator[str]:
    *names, rest = str(text, "utf-8", "surrogateescape").split(_END)
    if rest:
        raise ValueError("it is cut short")
    return iter(names)


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
