"""What is in a zip, or in a tar with or without gzip: one member after the other, however it was made.

Nothing that an archive says about itself is believed: not its lengths, not its names, not that its headers end.
"""

from __future__ import annotations

import gzip
import io
import os
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import IO, NamedTuple, cast

from kstore.errors import ArchiveError

MAX_READ = 4 << 20
"""Bytes that are read at once. All headers of a member together have no more."""
DAMAGED = (
    zipfile.BadZipFile, tarfile.TarError, zlib.error, struct.error, EOFError, NotImplementedError, OverflowError,
    RuntimeError, ValueError, LookupError, gzip.BadGzipFile,
)  # fmt: skip
"""What Python's own modules raise for an archive that is damaged, or made to do harm."""
LIMIT = "half of the free space, or than 8 GiB where a filesystem has no size"
"""What an archive may take, in words."""
_MAX_DIRECTORY = 128 << 20
"""Bytes of a zip's directory: enough for a million names."""
_ZIP, _GZIP = (b"PK\x03\x04", b"PK\x05\x06"), b"\x1f\x8b"
"""How they begin. A tar does not become a zip because something in it ends like one."""


class Member(NamedTuple):
    """A file, a folder, or something else."""

    name: str
    size: int
    """Bytes, as declared."""
    is_file: bool
    """Whether it is a plain file: not a link, not a device."""
    is_folder: bool
    open: Callable[[], IO[bytes]]
    link: str = ""
    """The first name of a file that has several, as when a restore linked it: a tar has its bytes only there."""
    mode: int = 0
    """Permission bits; those of a zip are left out, as they are by programs that unpack one."""


def members(archive: Path, stack: ExitStack, room: int) -> Iterator[Member]:
    """Each member as it is read. No more than `room` bytes are uncompressed. `stack` closes what is opened.

    Raises:
        ArchiveError: it is not an archive, or longer than that.
        OSError, *DAMAGED: it cannot be read.
    """
    file = stack.enter_context(_File(io.FileIO(archive, opener=_open_at_once)))
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        raise ArchiveError("it is not a file")
    start = file.read(4)
    file.seek(0)
    if start in _ZIP:
        return _of_zip(stack.enter_context(zipfile.ZipFile(file)))
    plain = stack.enter_context(gzip.GzipFile(fileobj=file)) if start.startswith(_GZIP) else file
    bounded = _Bounded(plain, room + MAX_READ)
    return _of_tar(stack.enter_context(tarfile.open(fileobj=cast("IO[bytes]", bounded), mode="r:")), bounded)


def _open_at_once(path: str, flags: int) -> int:
    """Open a file. A pipe is opened too, without waiting for somebody to write to it."""
    return os.open(path, flags | os.O_NONBLOCK)


def _of_zip(archive: zipfile.ZipFile) -> Iterator[Member]:
    for info in archive.infolist():
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ArchiveError(f"{info.filename!r} is compressed by a method other than deflate")
        kind = stat.S_IFMT(info.external_attr >> 16)
        is_file = kind in (0, stat.S_IFREG)
        yield Member(info.filename, info.file_size, is_file, info.is_dir(), partial(archive.open, info))


def _of_tar(archive: tarfile.TarFile, file: _Bounded) -> Iterator[Member]:
    while info := file.as_header(archive.next):
        archive.members.clear()  # type: ignore[attr-defined]  # It remembers every member,
        archive.pax_headers = {}  # and what was said about all that follow.
        is_file = info.isreg() and not info.issparse()
        link = info.linkname if info.islnk() else ""
        yield Member(info.name, info.size, is_file, info.isdir(), partial(_open_member, archive, info), link, info.mode)
    if file.last != bytes(tarfile.BLOCKSIZE):  # For tarfile, a header that it does not understand is the end.
        raise ArchiveError("it is damaged, or cut short")
    while file.read(MAX_READ):
        pass  # gzip's checksum of everything comes last.


def _open_member(archive: tarfile.TarFile, info: tarfile.TarInfo) -> IO[bytes]:
    file = archive.extractfile(info)
    assert file
    return file


class _File(io.BufferedReader):
    """An archive's file: zipfile takes a directory of any length into memory, and ten times as much to describe it."""

    def read(self, size: int | None = -1, /) -> bytes:
        """As of a file."""
        if size and size > _MAX_DIRECTORY:
            raise ArchiveError("its directory is too long")
        return super().read(size)


class _Bounded:
    """A file that is read only up to a limit: tarfile takes headers of any length into memory."""

    def __init__(self, file: IO[bytes] | gzip.GzipFile, room: int) -> None:
        self._file = file
        self._room = room
        self._of_header: int | None = MAX_READ
        """Bytes that may still be read of a member's headers; None while no headers are read."""
        self.last = b""
        """What was read last."""

    def as_header(self, read: Callable[[], tarfile.TarInfo | None]) -> tarfile.TarInfo | None:
        """Return what `read` returns, which reads the headers of one member."""
        self._of_header = MAX_READ
        try:
            return read()
        finally:
            self._of_header = None

    def read(self, size: int = -1) -> bytes:
        """As of a file."""
        if not 0 <= size <= MAX_READ:
            raise ArchiveError("a header in it is too long")
        self.last = self._file.read(size)
        if self._of_header is not None:
            self._of_header -= len(self.last)
        self._check()
        return self.last

    def seek(self, position: int) -> int:
        """Seek forwards, at most to where reading must end."""
        if position < self._file.tell():
            raise ArchiveError("a member's size leads back to what was read before")
        if position > self._room:
            raise ArchiveError(f"what it declares is more than {LIMIT}")
        return self._file.seek(position)

    def tell(self) -> int:
        """As of a file."""
        return self._file.tell()

    def _check(self) -> None:
        if self._of_header is not None and self._of_header < 0:
            raise ArchiveError("a member's headers are too long")
        if self._file.tell() > self._room:
            raise ArchiveError(f"it is longer than {LIMIT}")
