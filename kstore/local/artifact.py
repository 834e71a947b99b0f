"""Reads one artifact: its bytes, if they are finished, in the form in which they are stored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kstore.calls import Status
from kstore.components import Component, Kind
from kstore.digest import digest_of
from kstore.local.finished import (
    Unfinished,
    check_unlocked,
    check_whole_object,
    check_whole_stream,
    check_whole_text,
)
from kstore.local.index import KNOWN_RECORD
from kstore.local.reading import Content, read_finished
from kstore.local.relocate import to_stored
from kstore.published.manifest import HOST, LINK, MERGE, NEVER_IN_PLACE, RELOCATE

_LOOKED_AT = HOST | MERGE | RELOCATE
_EXECUTABLE = 0o111
_OBJECT_FILES = (".so", ".o")


class Artifact(NamedTuple):
    """A file that was read."""

    content: Content
    """What is uploaded, with the status of the file itself."""
    promised: tuple[str, ...] = ()
    """Names of files that it says are beside it."""
    is_displaced: bool = False
    """Whether it holds the paths of a folder other than its own."""


def read_artifact(component: Component, folder: str, relative: str, kind: Kind, content: Content | None) -> Artifact:
    """Read the file `relative`, of this kind, in a component's folder, unless `content` was read of it already.

    Raises:
        Unfinished: it is not finished, or cannot be understood.
        OSError: it cannot be read.
    """
    if kind.has_lock and (lock := component.method("lock", relative)):
        inside, _, name = relative.rpartition("/")
        check_unlocked(f"{folder}/{lock.format(stem=name.partition('.')[0], folder=inside)}")
        content = None  # Whoever held the lock at that time may have been writing it.
    content = content or read_finished(f"{folder}/{relative}")
    if not content.data and kind.flags in NEVER_IN_PLACE:
        raise Unfinished("it is empty")
    if kind.flags & HOST and relative.endswith(_OBJECT_FILES):
        check_whole_object(content.data)
    if kind.is_stream:
        check_whole_stream(content.data)
    if kind.flags & MERGE:
        check_whole_text(component.method("merge", relative) or "", content.data)
    if not kind.flags & RELOCATE:
        return Artifact(content)
    try:
        stored = to_stored(component.method("relocate", relative) or "", content.data, relative, folder)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Unfinished(f"it cannot be understood ({error})") from error
    content = Content(stored.data, content.status, digest_of(stored.data))
    return Artifact(content, stored.children, not stored.is_local)


def is_plain(kind: Kind, status: Status) -> bool:
    """Whether `read_artifact` would take a file as it was read: there is nothing to look at, and nothing to change."""
    return bool(status.size) and not (status.error or kind.has_lock or kind.is_stream or kind.flags & _LOOKED_AT)


def records_of(
    kinds: Sequence[Kind], stored: Sequence[bytes | None], statuses: Sequence[Status], digests: Sequence[bytes]
) -> Iterator[bytes]:
    """What is known about one or more artifacts that were read, each as a record of the index.

    Given are their kinds, the form in which they are stored (None if that is the file's own), the status of their
    files, and the digests.
    """
    _, modes, sizes, times, _, inodes = zip(*statuses, strict=True)
    modes = tuple(mode & 0o777 for mode in modes)
    # The mode belongs to the inode, and a blob's is read-only for all: what is executable is copied.
    flags = (kind.flags & ~LINK if mode & _EXECUTABLE else kind.flags for kind, mode in zip(kinds, modes, strict=True))
    both = zip(stored, sizes, strict=True)
    stored_sizes = (size if data is None else len(data) for data, size in both)
    units = (kind.unit for kind in kinds)
    columns = digests, stored_sizes, times, modes, flags, units, sizes, inodes
    return map(KNOWN_RECORD.pack, *columns)
