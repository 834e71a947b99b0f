"""How a file gets from the store to the cache root: as a clone, a hard link, or a copy.

The best way that works is found by trying, once per store and cache root. An error that says that a way cannot
work here ends it; one that concerns a single file costs that file a copy.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import StrEnum
from functools import partial
from typing import NamedTuple

from kstore.blobs.loose import BlobFile
from kstore.calls import link_first, times

_FICLONE = 0x40049409
_NOT_HERE = {
    errno.EXDEV, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOTTY, errno.EINVAL, errno.EBADF,
}  # fmt: skip
_NOT_THIS_FILE = {
    errno.EAGAIN, errno.EMLINK, errno.EPERM, errno.EACCES, errno.ETXTBSY,
    # Its blob has gone or cannot be read. If it is the target's folder that has gone, the copy fails for that.
    errno.ENOENT, errno.ESTALE, errno.EIO,
    errno.EMFILE, errno.ENFILE,  # Who copies waits until others have closed theirs.
}  # fmt: skip


Refused = Callable[[OSError], None]
"""Told of each error that costs one file a copy."""


class LinkMode(StrEnum):
    """Best first."""

    REFLINK = "reflink"
    """Shares blocks; a change to either is private (XFS, Btrfs, ZFS, bcachefs)."""
    HARDLINK = "hardlink"
    """Shares the inode: only for what nobody changes in place."""
    COPY = "copy"


class Link(NamedTuple):
    """One file to be made."""

    blob: BlobFile
    target: str
    mode: int
    """Permission bits, for a clone; a hard link has the blob's."""
    path: str
    """The artifact's."""


class Linker:
    """Links blobs into one cache root."""

    def __init__(self, best: LinkMode = LinkMode.REFLINK) -> None:
        self.mode = best
        """The best way not yet ruled out."""
        self.why = ""
        """What ruled out the better ones, here or for some files."""
        self._lock = threading.Lock()

    def link_many(self, links: Sequence[Link]) -> list[LinkMode]:
        """Make every target; returns how each was made, `COPY` for those that must be copied. Any thread may.

        Raises:
            OSError: a target cannot be made at all (ENOSPC, EROFS, EDQUOT …).
        """
        modes: list[LinkMode] = []
        while len(modes) < len(links):
            way, rest = self.mode, links[len(modes) :]
            try:
                _WAYS[way](rest, modes, partial(self._add_reason, f"no {way} of some files"))
            except OSError as error:
                if error.errno not in _NOT_HERE:
                    raise
                self._give_up(way, error)
        return modes

    def _give_up(self, way: LinkMode, error: OSError) -> None:
        with self._lock:
            if self.mode is way:
                self._add_reason(f"no {way}", error)
                self.mode = LinkMode.HARDLINK if way is LinkMode.REFLINK else LinkMode.COPY

    def _add_reason(self, what: str, error: OSError) -> None:
        reason = f"{what}: {error.strerror}"
        if reason not in self.why:
            self.why = f"{self.why}; {reason}" if self.why else reason


def _reflink_all(links: Sequence[Link], modes: list[LinkMode], refused: Refused) -> None:
    for link in links:
        try:
            reflink(link.blob, link.target, link.mode)
            modes.append(LinkMode.REFLINK)
        except OSError as error:
            if error.errno not in _NOT_THIS_FILE:
                raise
            refused(error)
            modes.append(LinkMode.COPY)


def _hardlink_all(links: Sequence[Link], modes: list[LinkMode], refused: Refused) -> None:
    while links:
        made, code = link_first([link.blob.path for link in links], [link.target for link in links])
        modes += [LinkMode.HARDLINK] * made
        links = links[made:]
        if not code:
            return
        error = OSError(code, os.strerror(code), links[0].target)
        if code not in _NOT_THIS_FILE:
            raise error
        refused(error)
        modes.append(LinkMode.COPY)
        links = links[1:]


def _copy_all(links: Sequence[Link], modes: list[LinkMode], refused: Refused) -> None:
    modes += [LinkMode.COPY] * len(links)


_WAYS = {LinkMode.REFLINK: _reflink_all, LinkMode.HARDLINK: _hardlink_all, LinkMode.COPY: _copy_all}


def reflink(source: BlobFile, target: str, mode: int) -> None:
    """Create `target` as a clone of `source` (FICLONE, ioctl_ficlone(2)). A failed one leaves no file.

    Raises:
        OSError: it cannot be cloned.
    """
    source_fd = os.open(source.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        target_fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        try:
            fcntl.ioctl(target_fd, _FICLONE, source_fd)
            os.utime(target_fd, ns=times(source.mtime_ns))
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
        linker.link_many([Link(BlobFile(source, os.stat(source).st_mtime_ns), target, 0o600, "")])
    finally:
        with suppress(FileNotFoundError):
            os.unlink(target)
    return linker
