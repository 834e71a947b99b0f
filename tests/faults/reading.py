"""Makes one object of every store unreadable, as many times as a test wants."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import pytest

from kstore.backends import PosixBackend
from kstore.backends.base import Child
from kstore.backends.reading import OpenedFile

AWAY = OSError(errno.EIO, os.strerror(errno.EIO))


def raising(error: BaseException) -> Callable[..., Any]:
    """What takes the place of a call that fails."""

    def fail(*_: object) -> NoReturn:
        raise error

    return fail


def unlistable(patch: pytest.MonkeyPatch, folder: str, trouble: OSError = AWAY) -> None:
    """Listing a folder of every store fails."""
    listed = PosixBackend.list_made

    def list_one(self: PosixBackend, asked: str) -> Iterator[Child]:
        if asked == folder:
            raise trouble
        return listed(self, asked)

    patch.setattr(PosixBackend, "list_made", list_one)


def trouble_with(patch: pytest.MonkeyPatch, name: str, trouble: Exception = AWAY, times: int = 1000) -> None:
    """Reading it fails `times` times."""
    get, get_many, opened, left = PosixBackend.get, PosixBackend.get_many, PosixBackend.open, [trouble] * times

    def get_one(self: PosixBackend, asked: str, *where: Any) -> bytes:
        if asked == name and left:
            raise left.pop()
        return get(self, asked, *where)

    def get_others(self: PosixBackend, wanted: Sequence[tuple[str, int]]) -> list[bytes | None]:
        read = get_many(self, wanted)
        return [None if asked == name else data for (asked, _), data in zip(wanted, read, strict=True)]

    def open_one(self: PosixBackend, asked: str) -> OpenedFile:
        if asked == name and left:
            raise left.pop()
        return opened(self, asked)

    patch.setattr(PosixBackend, "get", get_one)
    patch.setattr(PosixBackend, "open", open_one)
    patch.setattr(PosixBackend, "get_many", get_others)


def cut_short(patch: pytest.MonkeyPatch, name: str) -> None:
    """Reads of a file of every store end in its middle, though its size is what it was."""
    pread = os.pread

    def read(fd: int, length: int, offset: int) -> bytes:
        if os.readlink(f"/proc/self/fd/{fd}").endswith(f"/{name}"):
            length = min(length, max(os.fstat(fd).st_size // 2 - offset, 0))
        return pread(fd, length, offset)

    patch.setattr(os, "pread", read)
    patch.setattr(PosixBackend, "get_many", lambda self, wanted: [None] * len(wanted))
