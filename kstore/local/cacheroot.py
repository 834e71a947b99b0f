"""The cache root: the node-local folder that holds every component of one worker."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import NamedTuple

from kstore.components.table import KSTORE_FOLDER, Table
from kstore.errors import CacheRootError
from kstore.folders import make_folder

_ROOM = 1 << 16
"""Bytes that must fit in a cache root. Compilers need more, but less than this is of no use to any job."""


class CacheRoot(NamedTuple):
    """A local folder, and where each component is. A component is elsewhere if the user set its variable."""

    path: str
    folders: Mapping[str, str]
    """Component name → absolute folder of its artifacts."""
    variables: Mapping[str, str]
    """The variables that must be in the environment, without those that the user set."""
    notes: tuple[str, ...] = ()
    """What about the environment is worth telling the user."""

    @property
    def state(self) -> str:
        """kstore's own folder: see `kstore.local.state`."""
        return os.path.join(self.path, KSTORE_FOLDER)

    @property
    def outside(self) -> dict[str, str]:
        """Component → its folder, for those that are not below the root."""
        return {name: folder for name, folder in self.folders.items() if not folder.startswith(f"{self.path}/")}

    def local_path(self, path: str) -> str:
        """Where the artifact or folder `path`, `<component>/…`, is on this worker."""
        component, slash, rest = path.partition("/")
        return self.folders[component] + slash + rest

    def others_in(self, component: str, stores: Sequence[str]) -> set[str]:
        """Folders that may be in a component's folder but are no part of it.

        These are other components' folders, and those of the `stores` that are in it, by the names that lead to them
        from there. A store that hangs must not be looked at if all folders are the root's own.
        """
        folder = self.folders[component]
        others = {other for other in self.folders.values() if other != folder}
        if component in self.outside:
            top = f"{os.path.realpath(folder)}/"
            below = (store.removeprefix(top) for store in map(os.path.realpath, stores) if store.startswith(top))
            others |= {f"{folder}/{inside}" for inside in below}
        return others


def make_usable(root: CacheRoot, table: Table, store: str, *, before_import: bool) -> None:
    """Make a root usable before any variable points at it: a compiler that cannot write its cache fails the job.

    The root must have room `before_import`; a commit is not to be lost for want of room.

    Raises:
        CacheRootError: it cannot be made or written, or is in the folder of the `store`.
    """
    check_outside(store, root.path)
    try:
        os.makedirs(root.state, mode=0o700, exist_ok=True)
        _make_folders_of_files(root, table)
    except OSError as error:
        raise CacheRootError(
            f"the cache root {root.path} cannot be made, or written: {error.strerror}; "
            "set KSTORE_CACHE_ROOT to a local folder that can"
        ) from error
    if not os.access(root.state, os.W_OK | os.X_OK):
        raise CacheRootError(
            f"the cache root {root.path} cannot be written; set KSTORE_CACHE_ROOT to a local folder that can"
        )
    if root.variables and is_noexec(root.state):
        raise CacheRootError(
            f"the cache root {root.path} is mounted noexec, and compilers load what they build there; "
            "set KSTORE_CACHE_ROOT to a local folder from which programs may be loaded"
        )
    if before_import:
        _check_room(root)


def is_noexec(folder: str) -> bool:
    """Whether no program may be loaded from there; False if the filesystem does not say."""
    with suppress(OSError):
        return bool(os.statvfs(folder).f_flag & os.ST_NOEXEC)
    return False


def check_room(folder: str) -> None:
    """Find out by writing whether there is room: nothing else reveals a full disk or a quota.

    Raises:
        OSError: nothing can be written there, or next to nothing.
    """
    with TemporaryFile(dir=folder, buffering=0) as probe:
        left = _ROOM
        while left:  # After a write that was cut short comes the error that says why.
            left -= os.write(probe.fileno(), bytes(left))


def _check_room(root: CacheRoot) -> None:
    try:
        check_room(root.state)
    except OSError as error:
        raise CacheRootError(
            f"the cache root {root.path} cannot be written: {error.strerror}; set KSTORE_CACHE_ROOT to a local folder "
            "that can, and has room"
        ) from error


def check_outside(store: str, path: str | Path) -> None:
    """Check a path before anything is made there: a folder that holds something else is no store.

    Raises:
        CacheRootError: `path` is in the folder of the `store`.
    """
    if f"{path}/".startswith(f"{store}/"):
        raise CacheRootError(
            f"the cache root {path} is in the store at {store}, which may hold nothing else; "
            "set KSTORE_CACHE_ROOT to a local folder"
        )


def _make_folders_of_files(root: CacheRoot, table: Table) -> None:
    """Make folders that no compiler makes: those of the single files that one is told to write (TunableOp)."""
    for component in table.values():
        if not component.is_folder and component.variable in root.variables:
            make_folder(root.folders[component.name])
