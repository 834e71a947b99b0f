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
from kstore.calls import CHANGED, link_each, link_first, times
from kstore.digest import digest_of
from kstore.files import NO_FILE, READ
from kstore.published.manifest import Entry

_FICLONE = 0x40049409
_OWNER_CAN_WRITE = 0o600
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
        modes = self._reflink(links) if self.mode is LinkMode.REFLINK else []
        if self.mode is LinkMode.HARDLINK:
            modes += self._hardlink(links[len(modes) :])
        return modes + [LinkMode.COPY] * (len(links) - len(modes))

    def _reflink(self, links: Sequence[Link]) -> list[LinkMode]:
        """The first ones, as far as that works here."""
        modes: list[LinkMode] = []
        for link in links:
            try:
                is_made = reflink(link, partial(self._add_reason, LinkMode.REFLINK))
            except OSError as error:
                if not self._may_go_on(LinkMode.REFLINK, error):
                    break
                is_made = False
            modes.append(LinkMode.REFLINK if is_made else LinkMode.COPY)
        return modes

    def _hardlink(self, links: Sequence[Link]) -> list[LinkMode]:
        looks = ((link.entry.size, stamp(link.entry.digest)) for link in links)
        errors = link_each([link.blob for link in links], [link.target for link in links], looks)
        return [
            self._hardlink_after(*each) if each[1] else LinkMode.HARDLINK for each in zip(links, errors, strict=True)
        ]

    def _hardlink_after(self, link: Link, code: int) -> LinkMode:
        """What becomes of one that was not made, for that error."""
        if code == CHANGED:
            if not is_published(link.blob, link.entry.digest, link.entry.size):
                return LinkMode.COPY
            _, code = link_first([link.blob], [link.target])
        if not code:
            return LinkMode.HARDLINK
        self._may_go_on(LinkMode.HARDLINK, OSError(code, os.strerror(code), link.target))
        return LinkMode.COPY

    def _may_go_on(self, way: LinkMode, error: OSError) -> bool:
        """Whether what kept one target from being made concerns that one alone, and not a way, which is given up.

        Raises:
            OSError: no way would make it.
        """
        if error.errno in _NOT_HERE:
            self._give_up(way, error)
            return False
        if error.errno not in _NOT_THIS_FILE:
            raise error
        self._add_reason(way, error)
        return True

    def _give_up(self, way: LinkMode, error: OSError) -> None:
        with self._lock:
            if self.mode is way:
                self._say(f"no {way}", error)
                self.mode = LinkMode.HARDLINK if way is LinkMode.REFLINK else LinkMode.COPY

    def _add_reason(self, way: LinkMode, error: OSError) -> None:
        self._say(f"no {way} of some files", error)

    def _say(self, what: str, error: OSError) -> None:
        reason = f"{what}: {error.strerror}"
        if reason not in self.why:
            self.why = f"{self.why}; {reason}" if self.why else reason


def reflink(link: Link, refused: Refused) -> bool:
    """Create the target as a clone of the blob (FICLONE, ioctl_ficlone(2)); False if that is not as it was published,
    or cannot be opened. A failed one leaves no file.

    Raises:
        OSError: it cannot be cloned.
    """
    try:
        blob_fd = os.open(link.blob, READ)
    except OSError as error:
        if error.errno not in NO_FILE:
            refused(error)
        return False
    try:
        found = os.fstat(blob_fd)
        if not _is_unchanged(found, link.entry) and not is_published(link.blob, link.entry.digest, link.entry.size):
            return False
        _clone(blob_fd, link, found.st_mtime_ns)
    finally:
        os.close(blob_fd)
    return True


def _is_unchanged(found: os.stat_result, entry: Entry) -> bool:
    """The same as `link_each` asks."""
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
