"""Takes over an archive that another tool made of a cache folder: a zip, or a tar, compressed with gzip or not.

An archive is a folder as it was at one moment on a host that nobody knows. So what it holds is unpacked into a
private temporary cache root and committed from there as a worker's own would be: what is stored already is not stored
again, and what is published stays. Inductor and Triton name their entries by what they were compiled from and with, so
that an entry of another version is never found. Objects of a C++ compiler are not so named: they are left behind.
"""

from __future__ import annotations

import errno
import gzip
import os
import shutil
import stat
import struct
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple, cast

from kstore.components import Component, load_table
from kstore.components.table import KSTORE_FOLDER, table_version
from kstore.errors import ArchiveError, FileError
from kstore.folders import make_folder
from kstore.local.cacheroot import CacheRoot
from kstore.local.found import Skipped
from kstore.published.manifest import Flag
from kstore.published.ref import RefState
from kstore.report import CommitReport, CommitStatus
from kstore.settings import Mode
from kstore.storage import reporting_trouble
from kstore.worker import Worker

if TYPE_CHECKING:
    from kstore.store import Store

_HOST = int(Flag.HOST)
_MAX_FILES = 1_000_000
_MAX_DEPTH = 64
_ZIP, _GZIP = (b"PK\x03\x04", b"PK\x05\x06"), b"\x1f\x8b"
"""How they begin. That something in it ends like a zip does not make a tar one."""
_MAX_READ = 4 << 20
"""Bytes that are read at once: no header is longer."""
_DAMAGED = (
    zipfile.BadZipFile, tarfile.TarError, zlib.error, struct.error, EOFError, NotImplementedError, OverflowError,
    RuntimeError, ValueError, gzip.BadGzipFile,
)  # fmt: skip

_CLASHES = {errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG}
"""Of names, in an archive that no compiler's folder is in."""


def adopt(store: Store, key: str, archive: Path, *, built_under: Path, component: str = "inductor") -> CommitReport:
    """Publish under `key` what `archive` holds, for the GPU and the environment that `store` is for.

    The archive's own top folder is an Inductor cache folder, as TORCHINDUCTOR_CACHE_DIR names it, and was at
    `built_under` where it was made; Triton's kernels are in `triton/<device>/` in it, or in `triton/`. It may be the
    folder of another `component` instead, which is taken as it is. The report says under `skipped` what was left
    behind. Nothing is done where the mode is `read`.

    Raises:
        ArchiveError: it is no archive, is damaged, or leaves its folder, or what it says it holds does not fit.
        FileError: it cannot be read, or there is no room for what it holds.
        KstoreError: the store cannot be used.
        UsageError: the key is malformed.
    """
    from kstore.operations.commit import commit

    scope = store.scope(key)
    if store.settings.mode is Mode.READ:
        return CommitReport(CommitStatus.READ_ONLY, key, store=store.location)
    with _temporary_folder() as folder:
        left = unpack(archive, Path(folder), component)
        worker = Worker(
            storage=store.storage,
            scope=scope,
            environment=store.environment,
            environ=store.environ,
            root=CacheRoot(folder, {name: f"{folder}/{name}" for name in (component, "triton")}, {}),
            table=load_table(),
            rules=table_version(),
            layout=store.settings.layout,
            progress=store.progress,
            waiting=store.waiting,
            origin={"cache_root": str(built_under), "folders": {component: str(built_under)}},
        )
        os.makedirs(worker.root.state, mode=0o700)
        with reporting_trouble(store.location, "import into"):
            store.storage.open()
            report = commit(worker)
    return replace(report, cache_root="", skipped=(*report.skipped, *left))


def settled(store: Store, key: str) -> bool | None:
    """Whether there is something of a key; None if an archive of it may be taken: nothing was ever published, or it is
    lost. What was forgotten or quarantined must not come back.
    """
    newest = store.newest(store.scope(key))
    if newest is None or newest.state is RefState.LOST:
        return None
    return newest.state is RefState.LIVE


@contextmanager
def _temporary_folder() -> Iterator[str]:
    try:
        folder = tempfile.TemporaryDirectory(prefix="kstore-archive-")
    except OSError as error:
        raise FileError(f"an archive cannot be unpacked: {error}; set TMPDIR to another folder") from error
    with folder as path:
        yield path


class _Member(NamedTuple):
    name: str
    size: int
    """Bytes, as declared."""
    is_file: bool
    """Whether it is a plain file: no link, no device."""
    is_folder: bool
    open: Callable[[], IO[bytes]]
    link: str = ""
    """Of a second name, the first one: tar has the bytes of a file once, as where a restore has linked it twice."""


def unpack(archive: Path, root: Path, component: str = "inductor") -> list[Skipped]:
    """Unpack a component's folder into the components of the cache root `root`; returns what was left out.

    Raises:
        ArchiveError, FileError: as `adopt` does.
    """
    unpacking = _Unpacking(root, component, shutil.disk_usage(root).free // 2)
    try:
        with ExitStack() as stack:
            for member in _members(archive, stack, unpacking.room):
                unpacking.take(member)
    except _DAMAGED as error:
        raise ArchiveError(f"{archive} cannot be unpacked: {error}") from error
    except OSError as error:
        if error.errno in _CLASHES:
            raise ArchiveError(f"{archive} cannot be unpacked: {error}") from error
        raise FileError(
            f"{archive} cannot be unpacked: {error}; see whether it can be read, or set TMPDIR to a folder with room"
        ) from error
    except ArchiveError as error:
        raise ArchiveError(f"{archive} is refused: {error}") from None
    return unpacking.left


@dataclass(slots=True)
class _Unpacking:
    root: Path
    component: str
    """Whose folder the archive is of."""
    room: int
    """Bytes that may still be unpacked: a job needs the other half of the disk."""
    files: int = 0
    left: list[Skipped] = field(default_factory=list)
    devices: dict[str, str] = field(default_factory=dict)
    """Kernel → folder of the device that it is taken from: the files of two must not mix."""

    def take(self, member: _Member) -> None:
        """Write one file, or leave it out."""
        if member.link:
            member = self._linked(member)
        self.room -= member.size
        self.files += 1
        if member.size < 0 or self.room < 0 or self.files > _MAX_FILES:
            raise ArchiveError("what it says it holds is more than half of the free space, or a million files")
        if member.is_folder:
            return
        parts = _parts(member.name)
        name, path = self._sort(parts)
        component = load_table()[name]
        if not path or KSTORE_FOLDER in parts or _is_ignored(component, path):
            return
        if not member.is_file:
            self.left.append(Skipped(f"{name}/{path}", "it is no regular file"))
        elif component.kind(path, 0, 0).flags & _HOST:
            self.left.append(Skipped(f"{name}/{path}", "nobody knows which host it was built on"))
        else:
            _write(member, self.root / name / path)

    def _linked(self, member: _Member) -> _Member:
        """With the bytes that were unpacked under its first name; no file, if none were."""
        name, path = self._sort(_parts(member.link))
        source = self.root / name / path
        if not (path and source.is_file()):
            return member
        return member._replace(size=source.stat().st_size, is_file=True, open=lambda: source.open("rb"))

    def _sort(self, parts: list[str]) -> tuple[str, str]:
        """Component and path. Inductor keeps Triton's kernels for each device apart; the first that has one counts."""
        if self.component != "inductor" or parts[0] != "triton" or len(parts) < 3:
            return self.component, "/".join(parts)
        device, kernel = ("", parts[1:]) if len(parts) == 3 else (parts[1], parts[2:])
        if self.devices.setdefault(kernel[0], device) != device:
            return "triton", ""
        return "triton", "/".join(kernel)


def _parts(name: str) -> list[str]:
    """Of a path in the archive.

    Raises:
        ArchiveError: it leaves the archive's folder, or no compiler would write it.
    """
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts or "\0" in name or not parts:
        raise ArchiveError(f"it holds {name!r}, which leaves its folder")
    if len(parts) > _MAX_DEPTH or not name.isprintable():
        raise ArchiveError(f"it holds {name!r}, which no compiler writes")
    return parts


def _is_ignored(component: Component, path: str) -> bool:
    parts = path.split("/")
    folders = ("/".join(parts[:depth]) + "/" for depth in range(1, len(parts)))
    return component.ignores(path) or any(map(component.ignores, folders))


def _write(member: _Member, target: Path) -> None:
    """To a name that is free: an archive that holds a name twice is refused."""
    make_folder(str(target.parent))
    left = member.size
    with member.open() as source, target.open("xb") as file:
        while left and (data := source.read(min(left, _MAX_READ))):
            file.write(data)
            left -= len(data)
        if left or source.read(1):
            raise ArchiveError(f"{member.name!r} is not as long as it says")


def _members(archive: Path, stack: ExitStack, room: int) -> Iterator[_Member]:
    """Each as it is read. No more than `room` bytes are uncompressed."""
    file = stack.enter_context(archive.open("rb"))
    start = file.read(4)
    file.seek(0)
    if start in _ZIP:
        return _of_zip(stack.enter_context(zipfile.ZipFile(file)))
    plain = stack.enter_context(gzip.GzipFile(fileobj=file)) if start.startswith(_GZIP) else file
    bounded = _Bounded(plain, room + _MAX_READ)
    return _of_tar(stack.enter_context(tarfile.open(fileobj=cast("IO[bytes]", bounded), mode="r:")), bounded)


def _of_zip(archive: zipfile.ZipFile) -> Iterator[_Member]:
    for info in archive.infolist():
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ArchiveError(f"{info.filename!r} is compressed in another way than by deflate")
        kind = stat.S_IFMT(info.external_attr >> 16)
        is_file = kind in (0, stat.S_IFREG)
        yield _Member(info.filename, info.file_size, is_file, info.is_dir(), partial(archive.open, info))


def _of_tar(archive: tarfile.TarFile, file: _Bounded) -> Iterator[_Member]:
    while info := archive.next():
        archive.members.clear()  # type: ignore[attr-defined]  # It remembers every one.
        is_file = info.isreg() and not info.issparse()
        link = info.linkname if info.islnk() else ""
        yield _Member(info.name, info.size, is_file, info.isdir(), partial(_open_member, archive, info), link)
    if file.last != bytes(tarfile.BLOCKSIZE):  # A header that it does not understand is an end for tarfile.
        raise ArchiveError("it is damaged, or cut short")
    while file.read(_MAX_READ):
        pass  # gzip's checksum of all of it comes last.


def _open_member(archive: tarfile.TarFile, info: tarfile.TarInfo) -> IO[bytes]:
    file = archive.extractfile(info)
    assert file
    return file


class _Bounded:
    """A file of which only so much is read: tarfile takes a header of any length into memory."""

    def __init__(self, file: IO[bytes] | gzip.GzipFile, room: int) -> None:
        self._file = file
        self._room = room
        self.last = b""
        """What was read last."""

    def read(self, size: int = -1) -> bytes:
        """As of a file."""
        if not 0 <= size <= _MAX_READ:
            raise ArchiveError("a header in it is too long")
        self.last = self._file.read(size)
        self._check()
        return self.last

    def seek(self, position: int) -> int:
        """Forwards, at the most to where reading ends."""
        if position > self._room:
            raise ArchiveError("what it says it holds is more than half of the free space")
        return self._file.seek(position)

    def tell(self) -> int:
        """As of a file."""
        return self._file.tell()

    def _check(self) -> None:
        if self._file.tell() > self._room:
            raise ArchiveError("it is longer than half of the free space")
