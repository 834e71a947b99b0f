"""What was hashed in a cache root and has not changed since: saves reading it again.

A file whose status is the same is taken to be the same, unless it was so young when it was hashed that a later
change could have left the same time on it (git's racy rule): such a file is not recorded, and hashed again.
"""

from __future__ import annotations

import os
import struct
import time
from dataclasses import dataclass, field
from typing import NamedTuple

from kstore import tables
from kstore.errors import IntegrityError
from kstore.published.manifest import Entry, pack_files, unpack_files

_STATUS = struct.Struct("<QQ")
_TIMES = struct.Struct("<qq")
_FOLDERS = "folders and their times"
"""An index whose folders are under another name is one of an older kstore, and cannot be read."""
_SEPARATOR = "\0"
_TICK_NS = 100_000_000
_COARSE_TICK_NS = 2_000_000_000


class Known(NamedTuple):
    """A file that was hashed, and how it looked then."""

    entry: Entry
    size: int
    """Bytes of the file; `entry.size` is the blob's."""
    inode: int

    def still_is(self, found: os.stat_result) -> bool:
        """Whether the file has not been touched since."""
        return found.st_mtime_ns == self.entry.mtime_ns and found.st_size == self.size and found.st_ino == self.inode


class KnownFolder(NamedTuple):
    """A folder in which files are only ever created or replaced: while its own times stand, so do they."""

    mtime_ns: int
    ctime_ns: int
    """Of its last status change: a cleaner that removes a file and sets the other time back leaves another one."""
    folders: tuple[str, ...]
    """Names of its subfolders."""
    files: tuple[str, ...]
    """Names of its artifacts."""

    def still_is(self, found: os.stat_result) -> bool:
        """Whether nothing has come, gone or been replaced in it since."""
        return found.st_mtime_ns == self.mtime_ns and found.st_ctime_ns == self.ctime_ns


@dataclass(slots=True)
class Index:
    """Paths are artifact paths, `<component>/…`."""

    files: dict[str, Known] = field(default_factory=dict)
    folders: dict[str, KnownFolder] = field(default_factory=dict)

    def dump(self) -> bytes:
        """As the bytes of an LMDB file."""
        status = {
            path.encode("utf-8", "surrogateescape"): _STATUS.pack(known.size, known.inode)
            for path, known in self.files.items()
        }
        entries = pack_files({path: known.entry for path, known in self.files.items()})
        return tables.dump({"entries": entries, "status": status, _FOLDERS: _pack_folders(self.folders)})

    @classmethod
    def load(cls, data: bytes) -> Index:
        """Read what `dump` wrote.

        Raises:
            IntegrityError: it is damaged.
        """
        found = tables.load(data, is_own=True)
        try:
            entries = unpack_files(found["entries"])
            status = map(_STATUS.unpack, found["status"].values())
            return cls(
                files={
                    path: Known(entry, size, inode)
                    for (path, entry), (size, inode) in zip(entries.items(), status, strict=True)
                },
                folders=_unpack_folders(found[_FOLDERS]),
            )
        except (KeyError, ValueError, struct.error) as error:
            raise IntegrityError(f"a local index of {len(data)} bytes cannot be read: {error!r}") from error


def is_settled(mtime_ns: int, now_ns: int | None = None) -> bool:
    """Whether a later change is certain to leave another time than `mtime_ns`.

    Linux stamps files with a clock that ticks every few milliseconds, some filesystems every second or two. A time
    before 1970 is no clock's.
    """
    tick = _TICK_NS if mtime_ns % 1_000_000 else _COARSE_TICK_NS
    return 0 <= mtime_ns < (now_ns or time.time_ns()) - tick


def _pack_folders(folders: dict[str, KnownFolder]) -> tables.Table:
    return {
        path.encode("utf-8", "surrogateescape"): _TIMES.pack(folder.mtime_ns, folder.ctime_ns)
        + _SEPARATOR.join((str(len(folder.folders)), *folder.folders, *folder.files)).encode("utf-8", "surrogateescape")
        for path, folder in folders.items()
    }


def _unpack_folders(table: tables.Table) -> dict[str, KnownFolder]:
    return {key.decode("utf-8", "surrogateescape"): _unpack_folder(row) for key, row in table.items()}


def _unpack_folder(row: bytes) -> KnownFolder:
    mtime_ns, ctime_ns = _TIMES.unpack_from(row)
    count, *names = row[_TIMES.size :].decode("utf-8", "surrogateescape").split(_SEPARATOR)
    return KnownFolder(mtime_ns, ctime_ns, tuple(names[: int(count)]), tuple(names[int(count) :]))
