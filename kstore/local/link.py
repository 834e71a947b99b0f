"""How a file gets from the store to the cache root: as a clone, a hard link, or a copy.

The best way that works is found by trying, once per store and cache root. An error which says that a way cannot work
here rules the way out; any other one means that this file is copied.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from kstore.blobs.loose import is_published, stamp
from kstore.calls import CHANGED, Look, clone_each, link_each
from kstore.digest import digest_of
from kstore.published.manifest import Entry

_SECOND = 1_000_000_000
_OWNER_CAN_WRITE = 0o600
_NOT_HERE = {
    errno.EXDEV, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOTTY, errno.EINVAL, errno.EBADF,
}  # fmt: skip
_NOT_AT_ALL = {errno.ENOSPC, errno.EDQUOT, errno.EROFS}
"""A copy would not survive them either. Everything else may be the blob's trouble, and costs it a copy: it is gone, its
server is, it has too many names or belongs to somebody else, or others have too many files open just now.
"""


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
    """Path of the blob's file, which is linked if it is still as it was published."""
    target: str
    entry: Entry
    """The artifact's entry. A clone has its mode, a hard link the blob's."""


class Linker:
    """Links blobs into one cache root."""

    def __init__(self, best: LinkMode = LinkMode.REFLINK) -> None:
        self.mode = best
        """The best way not yet ruled out."""
        self.why = ""
        """What ruled out the better ways, here or for some files."""
        self._lock = threading.Lock()

    def link_many(self, links: Sequence[Link]) -> list[LinkMode]:
        """Make every target; returns how each was made, `COPY` if it must be copied. Any thread may call it.

        Raises:
            OSError: a target cannot be made at all (ENOSPC, EDQUOT, EROFS).
        """
        modes = self._make(LinkMode.REFLINK, links) if self.mode is LinkMode.REFLINK else [LinkMode.COPY] * len(links)
        if self.mode is LinkMode.HARDLINK:
            left = [link for link, mode in zip(links, modes, strict=True) if mode is LinkMode.COPY]
            others = iter(self._make(LinkMode.HARDLINK, left))
            modes = [next(others) if mode is LinkMode.COPY else mode for mode in modes]
        return modes

    def _make(self, way: LinkMode, links: Sequence[Link]) -> list[LinkMode]:
        looks = ((link.entry.size, stamp(link.entry.digest), local_mode(link.entry)) for link in links)
        errors = _make_each(way, links, looks)
        return [self._after(way, link, code) if code else way for link, code in zip(links, errors, strict=True)]

    def _after(self, way: LinkMode, link: Link, code: int) -> LinkMode:
        """What becomes of a link that was not made because of this error."""
        if code == CHANGED and (look := _read_look(link)):
            (code,) = _make_each(way, [link], [look])
        if code and code != CHANGED:
            self._give_up_if_useless(way, OSError(code, os.strerror(code), link.target))
        return LinkMode.COPY if code else way

    def _give_up_if_useless(self, way: LinkMode, error: OSError) -> None:
        """Give up a way if the error does not concern one target alone.

        Raises:
            OSError: no way would make the target.
        """
        if error.errno in _NOT_AT_ALL:
            raise error
        if error.errno in _NOT_HERE:
            self._give_up(way, error)
        else:
            self._say(f"no {way} of some files", error)

    def _give_up(self, way: LinkMode, error: OSError) -> None:
        with self._lock:
            if self.mode is way:
                self._say(f"no {way}", error)
                self.mode = LinkMode.HARDLINK if way is LinkMode.REFLINK else LinkMode.COPY

    def _say(self, what: str, error: OSError) -> None:
        reason = f"{what}: {error.strerror}"
        if reason not in self.why:
            self.why = f"{self.why}; {reason}" if self.why else reason


def _make_each(way: LinkMode, links: Sequence[Link], looks: Iterable[Look]) -> memoryview:
    make = clone_each if way is LinkMode.REFLINK else link_each
    return make([link.blob for link in links], [link.target for link in links], looks)


def _read_look(link: Link) -> Look | None:
    """The look of a blob's file that has lost its stamp but still has its bytes; None if not, or it cannot be read."""
    with suppress(OSError):
        found = os.lstat(link.blob)
        if is_published(link.blob, link.entry.digest, link.entry.size):
            return found.st_size, found.st_mtime_ns % _SECOND, local_mode(link.entry)
    return None


def local_mode(entry: Entry) -> int:
    """The permission bits of an artifact that is not a hard link. Never setuid, whatever a manifest says."""
    return entry.mode & 0o777 | _OWNER_CAN_WRITE


def probe(source: str, target: str) -> Linker:
    """Find the best way by linking one non-empty file: ZFS clones an empty file even where it cannot clone others."""
    linker, data = Linker(), Path(source).read_bytes()
    try:
        linker.link_many([Link(source, target, Entry(digest_of(data), len(data), 0, 0o600, 0, 0))])
    finally:
        with suppress(FileNotFoundError):
            os.unlink(target)
    return linker
