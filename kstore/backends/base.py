"""The interface that a store's storage offers. Names are relative POSIX paths such as `blobs/ab/abcd…`.

Contract, checked by the conformance tests that every backend runs:

- what `get`, `stat` or `list` shows is complete: no reader ever sees half of a `put` or an upload;
- `put_if_absent` and `Upload.publish` succeed for exactly one of several writers of a name;
- a name that does not exist raises FileNotFoundError, other trouble another OSError.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol, runtime_checkable

from kstore.errors import UsageError

STAGING = "tmp"
"""Where an upload is from its beginning until it is published or discarded, under a name that is never used again."""
NEAR = 0.001
"""Seconds that opening and reading a small object, or beginning to list, takes at most without a network in between."""


class StagingLost(OSError):
    """What was being written was gone before it got its name: gc took its writer for dead. It must be begun again."""


class Stat(NamedTuple):
    """What is known about one stored object."""

    size: int
    """Bytes."""
    mtime_ns: int
    """When it was last written, by the storage's own clock, in nanoseconds since 1970. It must never be compared with
    another clock.
    """
    inode: int = 0
    """Tells an object from one that took its name later; 0 where the storage has nothing like it."""


class NewObject(NamedTuple):
    """An object to be created."""

    name: str
    data: bytes | memoryview
    fraction_ns: int | None = None
    """Fraction of a second, in nanoseconds, that its modification time gets.

    A backend without such times ignores it.
    """


class Child(NamedTuple):
    """One entry of a folder."""

    name: str
    """The last part of its name."""
    is_folder: bool


class Opened(Protocol):
    """An object that is being read, as it was when it was opened. Any thread may use it.

    It is closed when nobody holds it any more, if nobody has closed it before.
    """

    @property
    def size(self) -> int:
        """Bytes of the whole object."""

    def read(self, offset: int, length: int) -> bytes:
        """Return `length` bytes (fewer at the end) from `offset`."""

    def close(self) -> None:
        """Close it once no thread reads it any more: an error keeps the frames that raised it, and so keeps it open."""


class Upload(Protocol):
    """An object being written under no name yet. Leaving its context unpublished discards it."""

    def write(self, data: bytes | memoryview) -> object:
        """Append `data`."""

    def publish(self, name: str, fraction_ns: int | None = None) -> bool:
        """Make it appear as `name`, whole. False if that name is taken; the object there stays.

        `fraction_ns` is as in a `NewObject`.

        Raises:
            StagingLost: somebody has removed it from `STAGING` for good: it never gets the name.
        """


class Backend(Protocol):
    """Storage for one store."""

    def get(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        """Return `length` bytes (fewer at the end) from `offset`, all of them by default."""

    def get_many(self, wanted: Sequence[tuple[str, int]]) -> list[bytes | None]:
        """All bytes of many small objects, by their names and sizes in bytes; None for each that is left to `get`.

        Such an object does not exist, has another size, or cannot be read.
        """

    def open(self, name: str) -> Opened:
        """Open an object to read parts of it: that costs less than a `get` for each."""

    def put(self, name: str, data: bytes, fraction_ns: int | None = None) -> None:
        """Create or replace a small object: marks and settings, and a loose blob that a crash has cut short.

        What is published whole is never replaced. `fraction_ns` is as in a `NewObject`.
        """

    def touch(self, name: str) -> bool:
        """Give an object the present time, by the storage's own clock; False if it does not exist.

        Raises:
            OSError: it may not be touched, or the storage has other trouble.
        """

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Create an object. False if that name is taken; the object there stays."""

    def write_out(self, name: str) -> None:
        """Make an object survive a power cut of the storage, as soon as that can be done without waiting."""

    def put_many(self, objects: Sequence[NewObject]) -> list[bool]:
        """`put_if_absent` for many small objects, a few hundred at most; True for each that was created."""

    def upload(self) -> AbstractContextManager[Upload]:
        """Start writing an object whose name is known only at its end. It is in `STAGING` when this returns."""

    def rely_on(self, name: str) -> None:
        """Take this object for a sign that the storage is present; "" if none is known.

        Writing where it is gone raises an OSError: a volume that is unmounted leaves a folder, and what is put there is
        lost.
        """

    def look_ahead(self, names: Sequence[str]) -> None:
        """Announce that these will be requested soon. If finding them takes long, that begins now, without waiting."""

    def make_ahead(self, folder: str) -> Callable[[], None]:
        """Announce that objects will be made in this folder soon. If the folder must be made first, that begins now.

        Returns a function that waits until it is done, if that does not take long.
        """

    def stat(self, name: str) -> Stat:
        """Size and time of one object."""

    def stat_many(self, names: Sequence[str]) -> list[Stat | None]:
        """Size and time of many objects; None for each that does not exist."""

    def list(self, folder: str) -> Iterator[Child]:
        """The direct children of `folder`, "" for the root; nothing if there is no such folder. Names with a
        leading "." are left out: NFS leaves `.nfsXXXX` for open files that were deleted.
        """

    def list_made(self, folder: str) -> Iterator[Child]:
        """The same for a folder that was made. Nothing in kstore removes one: if it is not found, that is trouble.

        Raises:
            OSError: it cannot be listed, or is not there.
        """

    def delete(self, name: str) -> None:
        """Remove one object; no error if it is gone already."""

    def move(self, name: str, target: str) -> None:
        """Rename one object to a name that nobody else uses, in one step."""

    def clock(self) -> int:
        """The time by the storage's own clock, in nanoseconds, even where there is no room for an object.

        Raises:
            OSError: it cannot be told.
        """


@runtime_checkable
class LocalPaths(Protocol):
    """A backend whose objects are files that can be linked."""

    def path(self, name: str) -> str:
        """Absolute path of the file that holds `name`."""


_NO_PARTS = {"", ".", ".."}
_STAGED = re.compile(r"[^\0/\ud800-\udc7f\udd00-\udfff]{1,128}-[0-9a-f]{16}(\.[0-9]{1,9})?")
"""A host, whatever it is called, and a process; a nonce; and a number if there are several."""
_MOST_DIGITS = 18


def is_staged(name: str) -> bool:
    """Whether a name in `STAGING` is one that a writer has made there: nobody may delete anything else."""
    return _STAGED.fullmatch(name) is not None


def numbers_in(names: Iterable[str]) -> list[int]:
    """The numbers from 1 on among names, as kstore writes them: `07`, or an endless one, names nothing of ours."""
    decimal = (name for name in names if name.isascii() and name.isdecimal() and len(name) <= _MOST_DIGITS)
    return [int(name) for name in decimal if name[0] != "0"]


def check_name(name: str) -> str:
    """Return `name` if it stays inside the store.

    Raises:
        UsageError: it is absolute, empty, or climbs.
    """
    if not _is_inside(name):
        raise UsageError(f"{name!r} is not a relative name inside a store")
    return name


def check_names(names: Sequence[str]) -> Sequence[str]:
    """The same for many names. They are looked at as one: there are ten thousand, and next to none is wrong."""
    if names and not _is_inside("/".join(names)):
        return [*map(check_name, names)]
    return names


def _is_inside(name: str) -> bool:
    return _NO_PARTS.isdisjoint(name.split("/")) and "\0" not in name
