"""Which files of a cache root were hashed and have not changed since: they need not be read again.

A file whose status is unchanged is taken to be unchanged. A file that was so young when it was hashed that a later
change could have left the same time on it (git's racy rule) is not recorded, and is hashed again.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, chain, islice, pairwise
from typing import NamedTuple

from kstore.calls import Status
from kstore.errors import IntegrityError, described
from kstore.published.byfolder import ByFolder, Form
from kstore.published.manifest import BELOW, ENTRY_FORMAT, ENTRY_SIZE, Entry

_MAGIC = b"kstore index 4\n"
_COUNTS = struct.Struct("<2Q")
"""How many files and how many folders there are."""
KNOWN_RECORD = struct.Struct(f"{ENTRY_FORMAT}QQ")
"""That of the entry, and then the file's own size and inode."""
_ONLY_ENTRY, _ONLY_STATUS = struct.Struct(f"{ENTRY_FORMAT}16x"), struct.Struct(f"<{ENTRY_SIZE}xQQ")
_FOLDER = struct.Struct("<qqII")
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


def _pack_known(known: Iterable[Known]) -> Iterator[bytes]:
    return (KNOWN_RECORD.pack(*entry, size, inode) for entry, size, inode in known)


def _unpack_known(records: bytes | bytearray) -> Iterator[Known]:
    both = zip(_unpack_entries(records), _ONLY_STATUS.iter_unpack(records), strict=True)
    return (Known(entry, size, inode) for entry, (size, inode) in both)


def _pack_entries(entries: Iterable[Entry]) -> Iterator[bytes]:
    return (KNOWN_RECORD.pack(*entry, 0, 0) for entry in entries)


def _unpack_entries(records: bytes | bytearray) -> Iterator[Entry]:
    return map(partial(tuple.__new__, Entry), _ONLY_ENTRY.iter_unpack(records))


KNOWN = Form(KNOWN_RECORD.size, _pack_known, _unpack_known)
_ONLY_ENTRIES = Form(KNOWN_RECORD.size, _pack_entries, _unpack_entries)


def compact_known(items: Iterable[tuple[str, Known]] = ()) -> ByFolder[Known]:
    """What is known of files, in little memory: there may be a hundred thousand."""
    return ByFolder(KNOWN, items)


def entries_of(known: ByFolder[Known]) -> ByFolder[Entry]:
    """The entry of each."""
    return known.seen_as(_ONLY_ENTRIES)


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

    files: ByFolder[Known] = field(default_factory=compact_known)
    folders: dict[str, KnownFolder] = field(default_factory=dict)

    def dump(self) -> Iterator[bytes]:
        """Yield the file's bytes in pieces: files, folders, and all names. It is only read in full."""
        files, folders = self.files, self.folders.values()
        yield _MAGIC + _COUNTS.pack(len(files), len(folders))
        yield from _joined(files.records())
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
            records, folders, text = _sections(data)
            names, files = _names(text), compact_known()
            for at in range(0, len(records), _SOME * KNOWN_RECORD.size):
                some = bytes(records[at : at + _SOME * KNOWN_RECORD.size])
                files.put_records(_take(names, len(some) // KNOWN_RECORD.size), some)
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


def _joined(records: Iterator[bytes | bytearray]) -> Iterator[bytes]:
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
    columns = files * KNOWN_RECORD.size, folders * _FOLDER.size
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
