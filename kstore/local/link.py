"""How a file gets from the store to the cache root: as a clone, a hard link, or a copy.

The best way that works is found by trying, once per store and cache root. An error that says that a way cannot
work here ends it; one that concerns a single file costs that file a copy.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import NamedTuple

from kstore.blobs.loose import bears_stamp, is_published, stamp
from kstore.calls import CHANGED, link_first, link_unchanged, times
from kstore.digest import digest_of
from kstore.files import READ
from kstore.published.manifest import Entry

_FICLONE = 0x40049409
_OWNER_CAN_WRITE = 0o600
_NOT_HERE = {
    errno.EXDEV, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOTTY, errno.EINVAL, errno.EBADF,
}  # fmt: skip
_NOT_THIS_FILE = {
    errno.EAGAIN, errno.EMLINK, errno.EPERM, errno.EACCES, errno.ETXTBSY,
    # Its blob has gone or cannot be read. If it is the target's folder that has gone, the copy fails for that.
    errno.ENOENT, errno.ESTALE, errno.EIO, errno.ELOOP,
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

    blob: str
    """Path of the blob's file, which is linked if it is as it was published."""
    target: str
    entry: Entry
    """The artifact's. A clone has its mode, a hard link the blob's."""


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
            is_made = reflink(link)
        except OSError as error:
            if error.errno not in _NOT_THIS_FILE:
                raise
            refused(error)
            is_made = False
        modes.append(LinkMode.REFLINK if is_made else LinkMode.COPY)


def _hardlink_all(links: Sequence[Link], modes: list[LinkMode], refused: Refused) -> None:
    while links:
        looks = ((link.entry.size, stamp(link.entry.digest)) for link in links)
        made, code = link_unchanged([link.blob for link in links], [link.target for link in links], looks)
        modes += [LinkMode.HARDLINK] * made
        if made < len(links):
            modes.append(_hardlink_after(links[made], code, refused))
        links = links[made + 1 :]


def _hardlink_after(link: Link, code: int, refused: Refused) -> LinkMode:
    """What becomes of one that was not made, for that error."""
    if code == CHANGED:
        if not is_published(link.blob, link.entry.digest, link.entry.size):
            return LinkMode.COPY
        _, code = link_first([link.blob], [link.target])
    if not code:
        return LinkMode.HARDLINK
    error = OSError(code, os.strerror(code), link.target)
    if code not in _NOT_THIS_FILE:
        raise error
    refused(error)
    return LinkMode.COPY


def _copy_all(links: Sequence[Link], modes: list[LinkMode], refused: Refused) -> None:
    modes += [LinkMode.COPY] * len(links)


_WAYS = {LinkMode.REFLINK: _reflink_all, LinkMode.HARDLINK: _hardlink_all, LinkMode.COPY: _copy_all}


def reflink(link: Link) -> bool:
    """Create the target as a clone of the blob (FICLONE, ioctl_ficlone(2)); False if that is not as it was published.
    A failed one leaves no file.

    Raises:
        OSError: it cannot be cloned.
    """
    blob_fd = os.open(link.blob, READ)
    try:
        found = os.fstat(blob_fd)
        if not _is_unchanged(found, link.entry) and not is_published(link.blob, link.entry.digest, link.entry.size):
            return False
        _clone(blob_fd, link, found.st_mtime_ns)
    finally:
        os.close(blob_fd)
    return True


def _is_unchanged(found: os.stat_result, entry: Entry) -> bool:
    """The same as `link_unchanged` asks."""
    is_same = stat.S_ISREG(found.st_mode) and found.st_size == entry.size
    return is_same and bears_stamp(found.st_mtime_ns, entry.digest)


def _clone(blob_fd: int, link: Link, mtime_ns: int) -> None:
    target_fd = os.open(link.target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, local_mode(link.entry))
    try:
        fcntl.ioctl(target_fd, _FICLONE, blob_fd)
        os.utime(target_fd, ns=times(mtime_ns))
    except OSError:
        with suppress(FileNotFoundError):
            os.unlink(link.target)
        raise
    finally:
        os.close(target_fd)


def local_mode(entry: Entry) -> int:
    """The permission bits of an artifact that is no hard link. Never setuid, whatever a manifest says."""
    return entry.mode & 0o777 | _OWNER_CAN_WRITE


def probe(source: str, target: str) -> Linker:
    """Find the best way by linking one non-empty file; ZFS clones an empty file where it cannot clone another."""
    linker, data = Linker(), Path(source).read_bytes()
    try:
        linker.link_many([Link(source, target, Entry(digest_of(data), len(data), 0, 0o600, 0, 0))])
    finally:
        with suppress(FileNotFoundError):
            os.unlink(target)
    return linker
