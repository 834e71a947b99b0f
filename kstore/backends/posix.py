"""A store in a folder: local disk, NFS, Lustre, GlusterFS, a FUSE mount that has hard links.

Everything is written in `tmp/`, many objects at once without a name there, and then hard-linked to its name. Unlike a
replacing rename, a link fails for all writers but one, and leaves alone the inode that other clients hold open. On NFS,
a rename over a file gives them ESTALE (cvmfs#559).
"""

from __future__ import annotations

import errno
import os
import secrets
import socket
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from kstore.backends.base import STAGING, Child, NewObject, StagingLost, Stat, check_name, check_names
from kstore.backends.publishing import FILE_MODE, publish_file
from kstore.backends.reading import OpenedFile, read_part
from kstore.calls import Status, bounded, link_first, read_each, stat_each, times, unlink_each, write_all
from kstore.files import READ, NewFile, publish_files, write_files
from kstore.folders import make_folder
from kstore.threads import begin

_NO_NAMELESS = {errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL}
_GONE = {errno.ENOENT, errno.ESTALE}
_LEADS_NOWHERE = {errno.ELOOP, errno.ENOTDIR, errno.ENAMETOOLONG}
"""What is said of a link to itself, to something inside a file, or to what cannot be a name."""
_STALE_RETRIES = 9
_PATIENCE = 5.0
"""Seconds to wait for what was begun ahead."""
_SECOND = 1_000_000_000
Made = TypeVar("Made")


class PosixBackend:
    """Objects are files under `root`. Safe for any number of processes and hosts at once."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(os.path.abspath(root))
        self._prefix = f"{self.root}/"
        self._anchor = ""
        self._has_nameless = True
        """Whether the filesystem has files without a name (O_TMPFILE, open(2)), as far as is known."""
        self._writer = f"{socket.gethostname()}-{os.getpid()}"

    def path(self, name: str) -> str:
        """Absolute path of the file that holds `name`."""
        return self._prefix + check_name(name)

    def paths(self, names: Sequence[str]) -> list[str]:
        """The same for many names."""
        return [*map(self._prefix.__add__, check_names(names))]

    def get(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        """Return `length` bytes from `offset`, all of them by default."""
        path = self.path(name)
        for _ in range(_STALE_RETRIES):
            try:
                return read_part(path, offset, length)
            except OSError as error:
                # Another NFS client has replaced the file, or removed it: the name leads to what is there now.
                if error.errno != errno.ESTALE:
                    raise
        return read_part(path, offset, length)

    def get_many(self, wanted: Sequence[tuple[str, int]]) -> list[bytes | None]:
        """All bytes of many small objects, by their names and sizes in bytes; None for each that is left to `get`."""
        contents, statuses = read_each(self.paths([name for name, _ in wanted]), [size for _, size in wanted])
        return [None if status.error else data for data, status in zip(contents, statuses, strict=True)]

    def open(self, name: str) -> OpenedFile:
        """Open an object to read parts of it."""
        return OpenedFile(self, name)

    def put(self, name: str, data: bytes, fraction_ns: int | None = None) -> None:
        """Create or replace a small object."""
        with self.upload() as upload:
            upload.write(data)
            upload.replace(name, fraction_ns)

    def touch(self, name: str) -> bool:
        """Give an object the present time; False if it does not exist. The client names no time."""
        try:
            os.utime(self.path(name), follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Create an object; False if the name is taken.

        It has a name in `tmp/` first: gc, which writes its lists this way, sees on NFS who else has one there. An empty
        object is whole at once.
        """
        return self._put_staged([NewObject(name, data)])[0] if data else self._put_empty(self.path(name))

    def write_out(self, name: str) -> None:
        """Begin to write an object to the disk.

        Ext4, for one, makes a name last within seconds, and what it leads to half a minute later. Waiting for the disk
        (fsync) would hold up everything that is written meanwhile.
        """
        with suppress(OSError):
            fd = os.open(self.path(name), READ)
            try:
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)  # Linux writes what is dirty, mm/fadvise.c
            finally:
                os.close(fd)

    def _put_empty(self, path: str) -> bool:
        try:
            os.close(self.create_file(path))
        except FileExistsError:
            return False
        return True

    def put_many(self, objects: Sequence[NewObject]) -> list[bool]:
        """Create many small objects; True for each whose name was free."""
        created = self._put_nameless(objects) if self._has_nameless else []
        left = objects[len(created) :]
        # With a name in `tmp/` they can be made, or the error says why not.
        return created + self._put_staged(left) if left else created

    def _put_nameless(self, objects: Sequence[NewObject]) -> list[bool]:
        """Create the first ones, without a name in `tmp/`, which saves two changes of a folder.

        Returns an answer for each that could be tried this way.
        """
        staging, files = f"{self._prefix}{STAGING}", _new_files(objects, self.paths([item.name for item in objects]))
        answers, error = publish_files(staging, files)
        created = [not answer for answer in answers]
        if error == errno.ENOENT:  # A new store has no folder for any of them.
            for folder in (staging, os.path.dirname(files[len(created)].path)):
                self.make_folder(folder)
            answers, error = publish_files(staging, files[len(created) :])
            created += [not answer for answer in answers]
        self._has_nameless = error not in _NO_NAMELESS
        return created

    def _put_staged(self, objects: Sequence[NewObject]) -> list[bool]:
        path = self.staging_path()
        staged = _new_files(objects, (f"{path}.{number}" for number in range(len(objects))))
        try:
            self.in_folder(staged[0].path, partial(write_files, staged))
            return self._publish_each([file.path for file in staged], [item.name for item in objects])
        finally:
            unlink_each([file.path for file in staged])  # What is published stays so, whatever is left in tmp/.

    def _publish_each(self, staged: Sequence[str], names: Sequence[str]) -> list[bool]:
        targets = self.paths(names)
        created: list[bool] = []
        while (at := len(created)) < len(staged):
            done, error = link_first(staged[at:], targets[at:])
            created += [True] * done
            if error:  # The name is taken, its folder is missing, or something else is wrong.
                created.append(self.publish(staged[at + done], names[at + done]))
        return created

    def create_file(self, path: str) -> int:
        """Create a file, open for writing."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        return self.in_folder(path, partial(os.open, path, flags, FILE_MODE))

    def in_folder(self, path: str, make: Callable[[], Made]) -> Made:
        """Return what `make` returns, which makes `path`; it is called again if the folder had to be made first."""
        try:
            return make()
        except FileNotFoundError:
            self.make_folder(os.path.dirname(path))
            return make()

    def upload(self) -> PosixUpload:
        """Start writing an object whose name is known only at its end."""
        return PosixUpload(self)

    def publish(self, staged: str, name: str) -> bool:
        """Link a finished file to its name; False if that is taken."""
        target = self.path(name)
        try:
            return publish_file(staged, target)
        except FileNotFoundError:
            self.make_folder(os.path.dirname(target))
        try:
            return publish_file(staged, target)
        except OSError as error:
            if error.errno in _GONE and not os.path.exists(staged):
                raise StagingLost(error.errno, "gc took this writer for dead, after a long pause", name) from error
            raise

    def look_ahead(self, names: Sequence[str]) -> None:
        """Let the kernel learn the way to these names: over a network, it asks for each folder on the way."""
        begin(stat_each, self.paths(names))

    def rely_on(self, name: str) -> None:
        """Look for it before any folder is made. An empty mount point lacks every folder, `tmp/` first of all."""
        self._anchor = name

    def make_folder(self, path: str) -> None:
        """Make a folder that turned out to be missing, and what is missing above it."""
        if self._anchor and not os.path.exists(self.path(self._anchor)):
            raise OSError(errno.ENODEV, "the store is gone", path)
        make_folder(path)

    def make_ahead(self, folder: str) -> Callable[[], None]:
        """Begin to make a folder: over a network, each one on the way to it takes as long as making an object."""
        made = begin(self.make_folder, self.path(folder))

        def wait() -> None:
            with suppress(OSError):  # Making an object there says what is wrong; or it takes too long.
                made.result(_PATIENCE)

        return wait

    def stat(self, name: str) -> Stat:
        """Size and time of one object."""
        found = os.stat(self.path(name))
        if not stat.S_ISREG(found.st_mode):
            raise FileNotFoundError(errno.ENOENT, "not a regular file", self.path(name))
        return Stat(found.st_size, bounded(found.st_mtime_ns), found.st_ino)

    def stat_many(self, names: Sequence[str]) -> list[Stat | None]:
        """Size and time of many objects; None for each that does not exist."""
        paths = self.paths(names)
        return [_stat_of(path, found) for path, found in zip(paths, stat_each(paths, follows=True), strict=True)]

    def list(self, folder: str) -> Iterator[Child]:
        """The direct children of `folder`. NFS leaves `.nfsXXXX` for open files that were deleted: not ours."""
        with suppress(FileNotFoundError, NotADirectoryError):
            yield from self.list_made(folder)

    def list_made(self, folder: str) -> Iterator[Child]:
        """The same for a folder that was made."""
        with os.scandir(self.path(folder) if folder else self._prefix) as entries:
            for entry in entries:
                if not entry.name.startswith("."):
                    yield Child(entry.name, _is_folder(entry))

    def delete(self, name: str) -> None:
        """Remove one object; no error if it is gone already."""
        with suppress(FileNotFoundError):
            os.unlink(self.path(name))

    def move(self, name: str, target: str) -> None:
        """Rename one object to a name that nobody else uses."""
        source, to = self.path(name), self.path(target)
        self.in_folder(to, partial(os.rename, source, to))

    def clock(self) -> int:
        """The time by the filesystem's clock, which a folder shows when it is touched: the client names no time."""
        folder = f"{self._prefix}{STAGING}"
        try:
            os.utime(folder)
        except FileNotFoundError:  # Tools that copy a store may leave out what is empty.
            self.make_folder(folder)
        return os.stat(folder).st_mtime_ns

    def staging_path(self) -> str:
        """A name under `tmp/` that no other writer on any host uses."""
        return f"{self._prefix}{STAGING}/{self._writer}-{secrets.token_hex(8)}"


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError as error:
        if error.errno not in _LEADS_NOWHERE:
            raise
        return False  # Such a link is an object that cannot be read, and no reason not to list the others.


def _stat_of(path: str, found: Status) -> Stat | None:
    if found.error not in (0, errno.ENOENT):
        raise OSError(found.error, os.strerror(found.error), path)
    is_object = not found.error and stat.S_ISREG(found.mode)
    return Stat(found.size, found.mtime_ns, found.inode) if is_object else None


class PosixUpload:
    """A file under `tmp/` on its way to a name."""

    def __init__(self, backend: PosixBackend) -> None:
        self._backend = backend
        self._path = backend.staging_path()
        self._fd = -1

    def __enter__(self) -> PosixUpload:
        self._fd = self._backend.create_file(self._path)
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # What is published stays so, whatever becomes of the rest.
            self._close()
        if self._path:
            with suppress(OSError):
                os.unlink(self._path)

    def write(self, data: bytes | memoryview) -> None:
        """Append `data`."""
        write_all(self._fd, data)

    def publish(self, name: str, fraction_ns: int | None = None) -> bool:
        """Link it to `name`; False if that name is taken."""
        self._finish(fraction_ns)
        return self._backend.publish(self._path, name)

    def replace(self, name: str, fraction_ns: int | None) -> None:
        """Rename it over `name`, with a modification time of that fraction of a second."""
        self._finish(fraction_ns)
        target = self._backend.path(name)
        self._backend.in_folder(target, partial(os.replace, self._path, target))
        self._path = ""

    def _finish(self, fraction_ns: int | None) -> None:
        self._close()
        if fraction_ns is not None:
            moment = time.time_ns() // _SECOND * _SECOND + fraction_ns
            os.utime(self._path, ns=times(moment))

    def _close(self) -> None:
        # NFS reports a failed write (ENOSPC, EDQUOT, EIO) only here: before the name exists.
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)


def _new_files(objects: Sequence[NewObject], paths: Iterable[str]) -> list[NewFile]:
    second = time.time_ns() // _SECOND * _SECOND
    rows = (
        (path, data, FILE_MODE, fraction_ns and second + fraction_ns)
        for path, (_, data, fraction_ns) in zip(paths, objects, strict=True)
    )
    return [*map(partial(tuple.__new__, NewFile), rows)]  # NewFile._make, without a step of the interpreter for each
