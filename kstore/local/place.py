"""Puts artifacts into a cache root: all are built in a staging folder and then moved, so that each appears whole.

What is moved is the highest folder that is not there yet: in a fresh root that is each component, with one rename.
A group's folder is always moved whole. A file that goes into a folder that exists is moved by itself.
"""

from __future__ import annotations

import errno
import os
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field

from kstore.blobs import BlobStore
from kstore.local.cacheroot import CacheRoot
from kstore.local.index import Known, is_settled
from kstore.local.link import Linker, LinkMode
from kstore.local.relocate import to_local
from kstore.local.scan import Skipped
from kstore.local.state import StateFolder
from kstore.manifest import Entry, Files, Flag, unit_of

_GROUP, _LINK = int(Flag.GROUP), int(Flag.LINK)
_MTIME, _RELOCATE = int(Flag.MTIME), int(Flag.RELOCATE)
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_OWNER_CAN_WRITE = 0o600
_OCCUPIED = {errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, errno.EISDIR}


@dataclass(slots=True)
class Placed:
    """What arrived."""

    known: dict[str, Known] = field(default_factory=dict)
    """Every artifact placed, for the index."""
    skipped: list[Skipped] = field(default_factory=list)
    copied: int = 0
    """Bytes that were written, not linked."""


class Placer:
    """Places artifacts into one cache root."""

    def __init__(self, root: CacheRoot, state: StateFolder, blobs: BlobStore, linker: Linker) -> None:
        self._root = root
        self._state = state
        self._blobs = blobs
        self._linker = linker

    def place(self, wanted: Files, packs: Sequence[str], folders: Collection[str]) -> Placed:
        """Place `wanted`; `folders` are the folders, as artifact paths, that exist already.

        A blob that is missing or damaged costs its group, or itself if it is in none.

        Raises:
            OSError: the cache root cannot be written.
        """
        placed = Placed()
        with ExitStack() as stack:
            stages = self._stages(wanted, stack)
            staged = {path: f"{stages[path.partition('/')[0]]}/{path}" for path in wanted}
            _make_folders(staged.values())
            linked = self._link(wanted, packs, staged, placed)
            self._copy({p: e for p, e in wanted.items() if p not in linked}, packs, staged, placed)
            self._drop_incomplete(wanted, staged, placed)
            self._move(wanted, staged, set(folders) | self._own_folders(wanted), placed)
        return placed

    def _stages(self, wanted: Files, stack: ExitStack) -> dict[str, str]:
        """A staging folder for each component, on the filesystem that it is on."""
        shared = stack.enter_context(self._state.staging())
        stages = {}
        for component in {path.partition("/")[0] for path in wanted}:
            folder = self._root.folders[component]
            inside = folder.startswith(f"{self._root.path}/")
            stages[component] = shared if inside else stack.enter_context(self._state.staging(folder))
        return stages

    def _own_folders(self, wanted: Files) -> set[str]:
        """Components outside the cache root: staging made their folder."""
        components = {path.partition("/")[0] for path in wanted}
        return {c for c in components if not self._root.folders[c].startswith(f"{self._root.path}/")}

    def _link(self, wanted: Files, packs: Sequence[str], staged: dict[str, str], placed: Placed) -> Collection[str]:
        """Link what may be linked and is loose; what is in a pack has to be copied out."""
        packed = self._blobs.digests_in(packs) if packs else frozenset()
        link, untouched, linker = self._linker.link, self._blobs.loose.untouched, self._linker
        for path, entry in wanted.items():
            if linker.mode is LinkMode.COPY:
                break
            if not entry.flags & _LINK or entry.digest in packed:
                continue
            blob = untouched(entry.digest, entry.size)
            if blob and link(blob[0], staged[path], entry.mode):
                placed.known[path] = _known_link(entry, staged[path], blob[1], linker.mode)
        return placed.known.keys()

    def _copy(self, wanted: Files, packs: Sequence[str], staged: dict[str, str], placed: Placed) -> None:
        paths: dict[bytes, list[str]] = defaultdict(list)
        for path, entry in wanted.items():
            paths[entry.digest].append(path)
        for digest, data in self._blobs.fetch_many(paths, packs):
            for path in paths[digest]:
                placed.known[path] = self._write(path, wanted[path], data, staged[path])
                placed.copied += len(data)
                self._linker.used[LinkMode.COPY] += 1

    def _write(self, path: str, entry: Entry, data: memoryview, target: str) -> Known:
        if entry.flags & _RELOCATE:
            data = memoryview(to_local(bytes(data), self._root.folders[path.partition("/")[0]]))
        fd = os.open(target, _CREATE, entry.mode & 0o777 | _OWNER_CAN_WRITE)
        try:
            written = os.write(fd, data)
            while written < len(data):
                written += os.write(fd, data[written:])
            if entry.flags & _MTIME:
                os.utime(fd, ns=(entry.mtime_ns, entry.mtime_ns))
            status = os.fstat(fd)
        finally:
            os.close(fd)
        return Known(entry._replace(mtime_ns=status.st_mtime_ns), status.st_size, status.st_ino)

    def _drop_incomplete(self, wanted: Files, staged: dict[str, str], placed: Placed) -> None:
        lost = {path: entry for path, entry in wanted.items() if path not in placed.known}
        units = {unit_of(path, entry) for path, entry in lost.items() if entry.flags & _GROUP}
        for path, entry in lost.items():
            placed.skipped.append(Skipped(path, f"blob {entry.digest.hex()} is missing or damaged"))
        if not units:
            return
        for path, entry in wanted.items():
            if path in placed.known and unit_of(path, entry) in units:
                del placed.known[path]
                os.unlink(staged[path])

    def _move(self, wanted: Files, staged: dict[str, str], folders: set[str], placed: Placed) -> None:
        tops = {_top(path, wanted[path], folders): path for path in placed.known}
        for top, path in tops.items():
            source = staged[path][: len(staged[path]) - len(path)] + top
            target = self._target(top)
            if top == path:
                os.rename(source, target)
            elif top in folders:
                _swap_folder(source, target)
            else:
                _move_folder(source, target, top, placed)

    def _target(self, top: str) -> str:
        return self._root.local_path(top) if "/" in top else self._root.folders[top]


def _known_link(entry: Entry, staged: str, blob: os.stat_result, mode: LinkMode) -> Known:
    status = blob if mode is LinkMode.HARDLINK else os.stat(staged)
    return Known(entry._replace(mtime_ns=status.st_mtime_ns), status.st_size, status.st_ino)


def _make_folders(paths: Iterable[str]) -> None:
    """Parents before children, each once; a folder of `paths` may be the parent of another."""
    made: set[str] = set()
    for parent in sorted({path.rpartition("/")[0] for path in paths}):
        _make_folder(parent, made)


def _make_folder(path: str, made: set[str]) -> None:
    if path in made:
        return
    try:
        os.mkdir(path)
    except FileNotFoundError:
        _make_folder(path.rpartition("/")[0], made)
        os.mkdir(path)
    except FileExistsError:
        pass
    made.add(path)


def _top(path: str, entry: Entry, folders: set[str]) -> str:
    """What to move to bring `path`: the highest folder that is missing, its group's, or the file itself."""
    end = path.find("/")
    while end > 0:
        if path[:end] not in folders:
            return path[:end]
        end = path.find("/", end + 1)
    return unit_of(path, entry) if entry.flags & _GROUP else path


def _swap_folder(source: str, target: str) -> None:
    """Replace a group that is there: for an instant it is absent, never mixed."""
    old = f"{source}.old"
    with suppress(FileNotFoundError):
        os.rename(target, old)
    os.rename(source, target)


def _move_folder(source: str, target: str, path: str, placed: Placed) -> None:
    """Move a folder to where none was; if a compiler has made one meanwhile, its files stay and ours fill the gaps."""
    try:
        os.rename(source, target)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        _move_folder(source, target, path, placed)
    except OSError as error:
        if error.errno not in _OCCUPIED:
            raise
        _fill_folder(source, target, path, placed)


def _fill_folder(source: str, target: str, path: str, placed: Placed) -> None:
    unit = next((e for e in (placed.known.get(f"{path}/{n}") for n in os.listdir(source)) if e), None)
    if os.path.islink(target) or not os.path.isdir(target) or (unit and unit.entry.flags & _GROUP):
        placed.skipped.append(Skipped(path, "something else is in its place"))
        for lost in [known for known in placed.known if known.startswith(f"{path}/")]:
            del placed.known[lost]
        return
    with os.scandir(source) as entries:
        for entry in entries:
            name, sub = f"{target}/{entry.name}", f"{path}/{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                _move_folder(entry.path, name, sub, placed)
            else:
                with suppress(FileExistsError):
                    os.link(entry.path, name)


def keep_settled(known: dict[str, Known]) -> dict[str, Known]:
    """What the index may vouch for: what is never changed in place, and what is old enough."""
    never = _LINK | _RELOCATE
    return {path: file for path, file in known.items() if file.entry.flags & never or is_settled(file.entry.mtime_ns)}
