"""Whether an artifact is finished, or is still being written."""

from __future__ import annotations

import fcntl
import os
import struct

from kstore.local.streams import is_whole

_ELF = b"\x7fELF"
_ELF64 = 2
_ELF_HEADER = 64
"""Bytes, as many as each section's has."""
_NUMBER = struct.Struct("<Q")
_SECTION_COUNTS = struct.Struct("<HH")
_WRITING_TIME_NS = 3600 * 10**9
_LOCK = "lock"


class Unfinished(Exception):
    """The file is not finished, for the reason given; the next commit looks again."""


def check_unlocked(lock: str) -> None:
    """Torch's compilers hold a lock while they write an `.so` straight to its name (`CppCodeCache`, `cpp_extension`).

    Raises:
        Unfinished: somebody holds the lock.
    """
    try:
        fd = os.open(lock, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # do not wait for the writer of a pipe
    except FileNotFoundError:
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(fd, fcntl.LOCK_UN)  # a child that is forked in between keeps it open for as long as it lives
    except BlockingIOError:
        raise Unfinished("a compiler holds its lock") from None
    finally:
        os.close(fd)


def check_whole_object(data: bytes) -> None:
    """A killed linker leaves an object file cut short, and every later import would fail on it.

    Raises:
        Unfinished: `data` is not an ELF file with all of its sections.
    """
    if not data.startswith(_ELF):
        raise Unfinished("it is not an object file")
    if len(data) >= _ELF_HEADER and data[4] == _ELF64:
        (table,) = _NUMBER.unpack_from(data, 0x28)
        entry_size, entries = _SECTION_COUNTS.unpack_from(data, 0x3A)
        if not entries and table + _ELF_HEADER <= len(data):  # Too many for that field: the first section has them.
            (entries,) = _NUMBER.unpack_from(data, table + 0x20)
        if table and entries and table + entry_size * entries <= len(data):
            return
    raise Unfinished("it is cut short")


def check_whole_text(merger: str, data: bytes) -> None:
    """A file that is merged by meaning may be written in place. A killed writer leaves it empty, full of zeros or cut
    short, and every reader fails on that.

    Raises:
        Unfinished: `data` is one of these.
    """
    from kstore.components.mergers import is_cut_short  # a restore that meets no such file need not wait for this

    if not data.strip(b"\0"):
        raise Unfinished("it is empty")
    if is_cut_short(merger, data):
        raise Unfinished("it is cut short")


def check_whole_stream(data: bytes) -> None:
    """A compressed file may be written in place, too. A killed writer leaves its beginning, and nobody who finds a file
    of that name writes it again.

    Raises:
        Unfinished: `data` is not the whole stream.
    """
    if not is_whole(data):
        raise Unfinished("it is cut short")


def is_at_work(path: str, now_ns: int) -> bool:
    """Whether a file that marks a group as being written is in use, and not left behind; `now_ns` is as for
    `is_recent`.

    From torch 2.14 on, the lock of a torch extension stays, and the builder holds it (`FileLock`). Before, it existed
    only during a build and was executable (`FileBaton`), which the newer one never is.
    """
    try:
        if os.path.basename(path) != _LOCK or os.lstat(path).st_mode & 0o111:
            return is_recent(path, now_ns)
        check_unlocked(path)
    except Unfinished:
        return True
    except OSError:
        return is_recent(path, now_ns)
    return False


def is_recent(path: str, now_ns: int) -> bool:
    """Whether it changed within the last hour: no file takes longer to write, and a killed writer's stays for ever.

    `now_ns` is the time by the clock of its filesystem.
    """
    try:
        return now_ns - os.lstat(path).st_mtime_ns < _WRITING_TIME_NS
    except OSError:
        return False
