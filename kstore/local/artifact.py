"""Reads one artifact: its bytes, if they are finished, in the form in which they are stored."""

from __future__ import annotations

from typing import NamedTuple

from kstore.calls import Status
from kstore.components import Component, Kind
from kstore.digest import digest_of
from kstore.local.finished import Content, Unfinished, check_unlocked, check_whole_object, read_finished
from kstore.local.index import Known
from kstore.local.relocate import to_stored
from kstore.published.manifest import NEVER_IN_PLACE, Entry, Flag

_HOST, _LINK, _RELOCATE = int(Flag.HOST), int(Flag.LINK), int(Flag.RELOCATE)
_EXECUTABLE = 0o111
_MODES = tuple(range(0o1000))
"""Of all files that have the same one, one number is in memory."""
_new = tuple.__new__
_OBJECT_FILES = (".so", ".o")


class Artifact(NamedTuple):
    """A file that was read."""

    known: Known
    stored: bytes
    """What is uploaded of it."""
    promised: tuple[str, ...] = ()
    """Names of files that it says are beside it."""
    is_displaced: bool = False
    """Whether it holds the paths of another folder than the one that it is in."""


def read_artifact(
    component: Component, folder: str, relative: str, kind: Kind, content: Content | None = None
) -> Artifact:
    """Read the file `relative` in a component's folder, which is of that kind; `content` is what was read of it.

    Raises:
        Unfinished: it is not finished, or cannot be understood.
        OSError: it cannot be read.
    """
    if kind.has_lock and (lock := component.method("lock", relative)):
        inside, _, name = relative.rpartition("/")
        check_unlocked(f"{folder}/{lock.format(stem=name.partition('.')[0], folder=inside)}")
        content = None  # Whoever held its lock then may have been writing it.
    data, status, digest = content or read_finished(f"{folder}/{relative}")
    if not data and kind.flags & NEVER_IN_PLACE:
        raise Unfinished("it is empty")
    if kind.flags & _HOST and relative.endswith(_OBJECT_FILES):
        check_whole_object(data)
    if not kind.flags & _RELOCATE:
        return Artifact(_known(digest, len(data), status, kind), data)
    try:
        stored = to_stored(component.method("relocate", relative) or "", data, relative, folder)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Unfinished(f"it cannot be understood ({error})") from error
    known = _known(digest_of(stored.data), len(stored.data), status, kind)
    return Artifact(known, stored.data, stored.children, not stored.is_local)


def _known(digest: bytes, size: int, status: Status, kind: Kind) -> Known:
    mode, flags = _MODES[status.mode & 0o777], kind.flags
    if mode & _EXECUTABLE:  # The mode belongs to the inode, and a blob's is read-only for all: it is copied.
        flags &= ~_LINK
    # Entry(…) and Known(…), with fewer steps of the interpreter: there are ten thousand.
    entry = _new(Entry, (digest, size, status.mtime_ns, mode, flags, kind.unit))
    return _new(Known, (entry, status.size, status.inode))
