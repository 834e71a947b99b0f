"""Imports an archive that another tool made of a cache folder: a zip, or a tar, with or without gzip.

An archive is a folder as it was at one moment on an unknown host. So its contents are unpacked into a private temporary
cache root and committed from there like a worker's own: what is stored already is not stored again, and what is
published stays. Inductor and Triton name their entries by what they were compiled from and with, so an entry of another
version is never found. Objects of a C++ compiler are not named that way: they are left behind.
"""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from kstore.components import Component, load_table
from kstore.components.table import KSTORE_FOLDER, table_version
from kstore.errors import ArchiveError, FileError, reason_of
from kstore.folders import make_folder
from kstore.freespace import free_bytes
from kstore.integrations.members import DAMAGED, LIMIT, MAX_READ, Member, members
from kstore.integrations.unpacked import CLASHES, temporary_root
from kstore.local.cacheroot import CacheRoot
from kstore.local.found import Skipped
from kstore.published.manifest import HOST
from kstore.published.ref import RefState
from kstore.report import CommitReport, CommitStatus
from kstore.settings import Mode
from kstore.storage import reporting_trouble
from kstore.worker import Worker

if TYPE_CHECKING:
    from kstore.store import Store

_MAX_FILES = 1_000_000
_MAX_DEPTH = 64
_MAX_NAME = 1024
_MOST_BYTES = 8 << 30
"""Where a filesystem has no size: several times what a large model leaves, and less than a host's memory."""
_BLOCK = 4096
"""Bytes that a file or a folder takes beside its contents, more or less."""
_KERNELS = "triton-of-devices"
"""Where Triton's kernels are kept until it is known which device's kernels are taken."""
_OF_CONTENTS = CLASHES | {errno.ENAMETOOLONG, errno.EINVAL}
"""Errors that an archive is to blame for: its names, or a place in it that no file can have."""


def adopt(store: Store, key: str, archive: Path, *, built_under: Path, component: str = "inductor") -> CommitReport:
    """Publish under `key` what `archive` holds, for the GPU and the environment of `store`.

    The archive's top folder is an Inductor cache folder, as TORCHINDUCTOR_CACHE_DIR names it, which was at
    `built_under` where it was made; Triton's kernels are in `triton/<device>/` in it, or in `triton/`. It may be the
    folder of another `component` instead, which is taken as it is. The report lists under `skipped` what was left
    behind. Nothing is done if the mode is `read`.

    Raises:
        ArchiveError: it is not an archive, is damaged, or leaves its folder, or there is no room for the contents that
            it declares.
        FileError: it cannot be read, or there is no room for its contents.
        KstoreError: the store cannot be used.
        UsageError: the key is malformed.
    """
    from kstore.operations.commit import commit

    scope = store.scope(key)
    if store.settings.mode is Mode.READ:
        return CommitReport(CommitStatus.READ_ONLY, key, store=store.location)
    with temporary_root(str(archive)) as folder:
        left = unpack(archive, Path(folder), component, store.waiting.check)
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
            is_temporary=True,
            built_under={"cache_root": str(built_under), "folders": {component: str(built_under)}},
        )
        with reporting_trouble(store.location, "import into"):
            os.makedirs(worker.root.state, mode=0o700)
            store.storage.open()
            report = commit(worker)
    return replace(report, cache_root="", skipped=(*report.skipped, *left))


def settled(store: Store, key: str) -> bool | None:
    """Whether something of a key is published; None if an archive of it may be taken, because nothing was ever
    published or it is lost. What was forgotten or quarantined must not come back.
    """
    newest = store.newest(store.scope(key))
    if newest is None or newest.state is RefState.LOST:
        return None
    return newest.state is RefState.LIVE


def unpack(archive: Path, root: Path, component: str, check: Callable[[], None]) -> list[Skipped]:
    """Unpack a component's folder into the components of the cache root `root`; returns what was left out.

    `check` is called before each member, and may raise to end it.

    Raises:
        ArchiveError, FileError: as `adopt` does.
    """
    try:
        unpacking = _Unpacking(root, component, check, _room(root))
        with ExitStack() as stack:
            for member in members(archive, stack, unpacking.room):
                check()
                unpacking.take(member)
        unpacking.choose_kernels()
    except DAMAGED as error:
        raise ArchiveError(f"{archive} cannot be unpacked: {reason_of(error)}") from error
    except OSError as error:
        if error.errno in _OF_CONTENTS:
            raise ArchiveError(f"{archive} cannot be unpacked: {error}") from error
        raise FileError(
            f"{archive} cannot be unpacked: {error}; check whether it can be read, or set TMPDIR to a folder with room"
        ) from error
    except ArchiveError as error:
        raise ArchiveError(f"{archive} is refused: {error}") from None
    return [*unpacking.left.values()]


def _room(root: Path) -> int:
    """Bytes that an archive may take: a job needs the other half of the disk."""
    free = free_bytes(root)
    return _MOST_BYTES if math.isinf(free) else int(free) // 2


@dataclass(slots=True)
class _Unpacking:
    """Unpacks one archive, member by member."""

    root: Path
    component: str
    """The component whose folder the archive is of."""
    check: Callable[[], None]
    room: int
    """Bytes that may still be unpacked."""
    files: int = 0
    left: dict[str, Skipped] = field(default_factory=dict)
    """What was left out, by path: several devices may have it."""
    kernels: dict[str, dict[str, None]] = field(default_factory=dict)
    """Triton kernel → the devices that have it, in order: the files of two must not mix."""

    def take(self, member: Member) -> None:
        """Write one file, or leave it out."""
        if member.link:
            member = self._linked(member)
        self._count(1, member.size)
        if member.is_folder:
            return
        parts = _parts(member.name)
        name, path, target = self._place(parts)
        component = load_table()[name]
        if KSTORE_FOLDER in parts or _is_ignored(component, path):
            return
        if not member.is_file:
            self._leave(f"{name}/{path}", "it is not a regular file")
        elif component.kind(path, 0, 0).flags & HOST:
            self._leave(f"{name}/{path}", "nobody knows which host it was built on")
        else:
            self._write(member, target)

    def _count(self, files: int, size: int = 0) -> None:
        """Count files and folders, and the bytes in them, whether they are taken or not."""
        self.files += files
        self.room -= files * _BLOCK + size
        if size < 0 or self.room < 0 or self.files > _MAX_FILES:
            raise ArchiveError(f"what it declares is more than {LIMIT}, or more than a million files")

    def _write(self, member: Member, target: Path) -> None:
        """Write a member to a name that is free: an archive that holds a name twice is refused."""
        self._count(make_folder(str(target.parent)))
        left = member.size
        with member.open() as source, target.open("xb") as file:
            while left and (data := source.read(min(left, MAX_READ))):
                self.check()
                file.write(data)
                left -= len(data)
            if left or source.read(1):
                raise ArchiveError(f"{member.name!r} does not have the length it declares")
            if executable := member.mode & 0o111:
                os.fchmod(file.fileno(), 0o644 | executable)

    def _leave(self, path: str, why: str) -> None:
        self.left[path] = Skipped(path, why)

    def _linked(self, member: Member) -> Member:
        """The member with the bytes that were unpacked under its first name; unchanged, and no file, if none were."""
        _, _, source = self._place(_parts(member.link))
        if not source.is_file():
            return member
        return member._replace(size=source.stat().st_size, is_file=True, open=lambda: source.open("rb"))

    def _place(self, parts: list[str]) -> tuple[str, str, Path]:
        """Component, path in it, and where that is unpacked. Inductor keeps the Triton kernels of each device apart."""
        if self.component != "inductor" or parts[0] != "triton" or len(parts) < 3:
            path = "/".join(parts)
            return self.component, path, self.root / self.component / path
        device, kernel = ("-", parts[1:]) if len(parts) == 3 else (parts[1], parts[2:])
        self.kernels.setdefault(kernel[0], {}).setdefault(device)
        path = "/".join(kernel)
        return "triton", path, self.root / _KERNELS / kernel[0] / device / "/".join(kernel[1:])

    def choose_kernels(self) -> None:
        """Take each kernel from the first device that has it whole, or else from the first that has any of it."""
        for kernel, devices in self.kernels.items():
            found = [folder for device in devices if (folder := self.root / _KERNELS / kernel / device).is_dir()]
            if found:
                chosen = next(filter(_is_whole, found), found[0])
                make_folder(str(self.root / "triton"))
                chosen.rename(self.root / "triton" / kernel)


def _is_whole(kernel: Path) -> bool:
    return any(load_table()["triton"].completes(f"{kernel.parent.name}/{file.name}") for file in kernel.iterdir())


def _parts(name: str) -> list[str]:
    """The parts of a path in the archive.

    Raises:
        ArchiveError: it leaves the archive's folder, or no compiler would write it.
    """
    if len(name) > _MAX_NAME:
        raise ArchiveError(f"it holds a name of {len(name)} characters, which no compiler writes")
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts or not parts:
        raise ArchiveError(f"it holds {name!r}, which is outside its folder")
    if len(parts) > _MAX_DEPTH or not name.isprintable():
        raise ArchiveError(f"it holds {name!r}, which no compiler writes")
    return parts


def _is_ignored(component: Component, path: str) -> bool:
    parts = path.split("/")
    folders = ("/".join(parts[:depth]) + "/" for depth in range(1, len(parts)))
    return component.ignores(path) or any(map(component.ignores, folders))
