"""How a file gets from the store to the cache root: as a clone, a hard link, or a copy.

The best way that works is found by trying, once per store and cache root. An error that says that a way cannot
work here ends it; one that concerns a single file costs that file a copy.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from contextlib import suppress
from enum import StrEnum
from typing import NamedTuple

_FICLONE = 0x40049409
_NOT_HERE = {
    errno.EXDEV, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOTTY, errno.EINVAL, errno.EBADF,
}  # fmt: skip
_NOT_THIS_FILE = {errno.EAGAIN, errno.EMLINK, errno.EPERM, errno.EACCES, errno.ETXTBSY}


class LinkMode(StrEnum):
    """Best first."""

    REFLINK = "reflink"
    """Shares blocks; a change to either is private (XFS, Btrfs, ZFS, bcachefs)."""
    HARDLINK = "hardlink"
    """Shares the inode: only for what nobody changes in place."""
    COPY = "copy"


class Blob(NamedTuple):
    """A loose blob's file."""

    path: str
    mtime_ns: int


class Linker:
    """Links blobs into one cache root."""

    def __init__(self, best: LinkMode = LinkMode.REFLINK) -> None:
        self.mode = best
        """The best way not yet ruled out."""
        self.why = ""
        """What ruled out the better ones."""
        self._lock = threading.Lock()

    def link(self, blob: Blob, target: str, mode: int) -> LinkMode | None:
        """Make `target` a clone or a link of `blob`; None if it must be copied. Any number of threads may.

        A clone gets the permission bits `mode` and the blob's times; a hard link has the blob's.

        Raises:
            OSError: `target` cannot be made at all (ENOSPC, EROFS, EDQUOT …).
        """
        while (way := self.mode) is not LinkMode.COPY:
            try:
                if way is LinkMode.REFLINK:
                    reflink(blob, target, mode)
                else:
                    os.link(blob.path, target)
                return way
            except OSError as error:
                if error.errno in _NOT_THIS_FILE:
                    return None
                if error.errno not in _NOT_HERE:
                    raise
                self._give_up(way, error)
        return None

    def _give_up(self, way: LinkMode, error: OSError) -> None:
        with self._lock:
            if self.mode is way:
                reason = f"no {way}: {error.strerror}"
                self.why = f"{self.why}; {reason}" if self.why else reason
                self.mode = LinkMode.HARDLINK if way is LinkMode.REFLINK else LinkMode.COPY


def reflink(source: Blob, target: str, mode: int) -> None:
    """Create `target` as a clone of `source` (FICLONE, ioctl_ficlone(2)). A failed one leaves no file.

    Raises:
        OSError: it cannot be cloned.
    """
    source_fd = os.open(source.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        target_fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        try:
            fcntl.ioctl(target_fd, _FICLONE, source_fd)
            os.utime(target_fd, ns=(source.mtime_ns, source.mtime_ns))
        except OSError:
            with suppress(FileNotFoundError):
                os.unlink(target)
            raise
        finally:
            os.close(target_fd)
    finally:
        os.close(source_fd)


def probe(source: str, target: str) -> Linker:
    """Find the best way by linking one non-empty file; ZFS clones an empty file where it cannot clone another."""
    linker = Linker()
    try:
        linker.link(Blob(source, os.stat(source).st_mtime_ns), target, 0o600)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(target)
    return linker
