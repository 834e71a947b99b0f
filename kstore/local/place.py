"""Puts artifacts into a cache root: all are built in a staging folder and then moved, so that each appears whole.

What is moved is the highest folder that is not there yet: in a fresh root that is each component, with one rename.
A group's folder is always moved whole. A file that goes into a folder that exists is moved by itself.

An artifact that is never changed in place gets its blob's stamp as the fraction of its modification time, however
it came here. The next scan knows it by that, without a hash and without a word in the index.
"""

from __future__ import annotations

import os
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TypeVar

from kstore.blobs import BlobStore
from kstore.blobs.loose import stamp
from kstore.errors import CacheRootError
from kstore.local.cacheroot import CacheRoot
from kstore.local.folders import make_folder
from kstore.local.index import Known, is_settled
from kstore.local.link import Linker, LinkMode
from kstore.local.move import Mover
from kstore.local.relocate import to_local
from kstore.local.scan import Skipped
from kstore.local.state import StateFolder
from kstore.manifest import Entry, Files, Flag, unit_of

_WRITERS = 2
"""Threads that write files. More of them only wait for each other, in the filesystem and for the interpreter."""
_BYTES_AT_ONCE = 2 << 20
_SECOND = 1_000_000_000
_GROUP, _LINK = int(Flag.GROUP), int(Flag.LINK)
_MTIME, _RELOCATE = int(Flag.MTIME), int(Flag.RELOCATE)
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_OWNER_CAN_WRITE = 0o600

Item = TypeVar("Item")


@dataclass(slots=True)
class Placed:
    """What arrived."""

    paths: set[str] = field(default_factory=set)
    known: dict[str, Known] = field(default_factory=dict)
    """The artifacts that bear no stamp, for the index."""
    skipped: list[Skipped] = field(default_factory=list)
    modes: Counter[LinkMode] = field(default_factory=Counter)
    """How many artifacts came which way."""

    def add(self, other: Placed) -> None:
        """Take over what another thread placed."""
        self.paths |= other.paths
        self.known |= other.known
        self.modes += other.modes

    def forget(self, occupied: Iterable[str]) -> None:
        """Leave out what had to stay away from its place, a file or a folder."""
        for path in occupied:
            self.skipped.append(Skipped(path, "something else is in its place"))
            self.paths = {p for p in self.paths if p != path and not p.startswith(f"{path}/")}
            self.known = {p: file for p, file in self.known.items() if p in self.paths}


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
            CacheRootError: the cache root cannot be written.
        """
        try:
            return self._place(wanted, packs, folders)
        except OSError as error:
            raise CacheRootError(
                f"cannot write {error.filename or self._root.path}: {error.strerror}; check the space, inodes and "
                f"permissions of the cache root {self._root.path}, or set KSTORE_CACHE_ROOT to another folder"
            ) from error

    def _place(self, wanted: Files, packs: Sequence[str], folders: Collection[str]) -> Placed:
        with ExitStack() as stack:
            staging = _Staging(self._root, self._blobs, self._linker, self._stages(wanted, stack), wanted)
            placed = staging.fill(packs)
            staging.drop_incomplete(placed)
            mover = Mover(staging.staged, self._root.local_path, wanted)
            mover.move(placed.paths, set(folders) | self._own_folders(wanted))
            placed.forget(mover.occupied)
        return placed

    def _stages(self, wanted: Files, stack: ExitStack) -> dict[str, str]:
        """A staging folder for each component, on the filesystem that it is on."""
        shared = stack.enter_context(self._state.staging())
        own = self._own_folders(wanted)
        return {
            component: stack.enter_context(self._state.staging(self._root.folders[component]))
            if component in own
            else shared
            for component in _components(wanted)
        }

    def _own_folders(self, wanted: Files) -> set[str]:
        """Components outside the cache root: staging makes their folder."""
        inside = f"{self._root.path}/"
        return {c for c in _components(wanted) if not self._root.folders[c].startswith(inside)}


class _Staging:
    """The artifacts on their way, in folders that nobody else looks into."""

    def __init__(
        self, root: CacheRoot, blobs: BlobStore, linker: Linker, stages: dict[str, str], wanted: Files
    ) -> None:
        self._root = root
        self._blobs = blobs
        self._linker = linker
        self._stages = stages
        self._now = time.time_ns() // _SECOND * _SECOND
        self.wanted = wanted

    def staged(self, path: str) -> str:
        """Where an artifact, or a folder of them, is being built."""
        return f"{self._stages[path.partition('/')[0]]}/{path}"

    def fill(self, packs: Sequence[str]) -> Placed:
        """Link what is loose, folder by folder, and copy the rest in the order in which the store has it."""
        packed = self._blobs.digests_in(packs) if packs else frozenset()
        to_copy: dict[bytes, list[str]] = defaultdict(list)
        folder, placed = "", Placed()
        for path, entry in self.wanted.items():
            if not path.startswith(folder) or "/" in path[len(folder) :] or not folder:
                folder = path[: path.rfind("/") + 1]
                make_folder(self.staged(folder[:-1]))
            if entry.digest in packed or not self._link(path, entry, placed):
                to_copy[entry.digest].append(path)
        if to_copy:
            self._copy(to_copy, packs, placed)
        return placed

    def drop_incomplete(self, placed: Placed) -> None:
        """A group with a missing file is not placed at all."""
        lost = self.wanted.keys() - placed.paths
        units = {unit_of(path, self.wanted[path]) for path in lost if self.wanted[path].flags & _GROUP}
        for path in sorted(lost):
            placed.skipped.append(Skipped(path, f"blob {self.wanted[path].digest.hex()} is missing or damaged"))
        for path in [path for path in placed.paths if units and unit_of(path, self.wanted[path]) in units]:
            placed.paths.discard(path)
            placed.known.pop(path, None)
            os.unlink(self.staged(path))

    def _link(self, path: str, entry: Entry, placed: Placed) -> bool:
        if not entry.flags & _LINK or self._linker.mode is LinkMode.COPY:
            return False
        blob = self._blobs.loose.untouched(entry.digest, entry.size)
        mode = self._linker.link(blob, self.staged(path), entry.mode) if blob else None
        if mode is None:
            return False
        placed.paths.add(path)
        placed.modes[mode] += 1
        return True

    def _copy(self, paths: dict[bytes, list[str]], packs: Sequence[str], placed: Placed) -> None:
        contents = _by_size(self._blobs.fetch_many(paths, packs))
        with ThreadPoolExecutor(_WRITERS) as pool:
            for part in _map_ahead(pool, lambda batch: self._write_batch(batch, paths), contents):
                placed.add(part)

    def _write_batch(self, batch: list[tuple[bytes, memoryview]], paths: dict[bytes, list[str]]) -> Placed:
        placed = Placed()
        for digest, data in batch:
            for path in paths[digest]:
                self._write(path, self.wanted[path], data, self.staged(path), placed)
        return placed

    def _write(self, path: str, entry: Entry, data: memoryview, target: str, placed: Placed) -> None:
        if entry.flags & _RELOCATE:
            data = memoryview(to_local(bytes(data), self._root.folders[path.partition("/")[0]]))
        fd = os.open(target, _CREATE, entry.mode & 0o777 | _OWNER_CAN_WRITE)
        try:
            written = os.write(fd, data)
            while written < len(data):
                written += os.write(fd, data[written:])
            if entry.flags & _LINK:
                mtime = self._now + stamp(entry.digest)
                os.utime(fd, ns=(mtime, mtime))
            else:
                placed.known[path] = _known(fd, entry)
        finally:
            os.close(fd)
        placed.paths.add(path)
        placed.modes[LinkMode.COPY] += 1


def _known(fd: int, entry: Entry) -> Known:
    if entry.flags & _MTIME:
        os.utime(fd, ns=(entry.mtime_ns, entry.mtime_ns))
    status = os.fstat(fd)
    return Known(entry._replace(mtime_ns=status.st_mtime_ns), status.st_size, status.st_ino)


def keep_settled(known: dict[str, Known]) -> dict[str, Known]:
    """What the index may vouch for: what is replaced but never changed in place, and what is old enough."""
    return {
        path: file for path, file in known.items() if file.entry.flags & _RELOCATE or is_settled(file.entry.mtime_ns)
    }


def _components(paths: Iterable[str]) -> set[str]:
    return {path.partition("/")[0] for path in paths}


def _by_size(contents: Iterable[tuple[bytes, memoryview]]) -> Iterator[list[tuple[bytes, memoryview]]]:
    """Blobs in batches worth handing to a thread."""
    batch: list[tuple[bytes, memoryview]] = []
    size = 0
    for digest, data in contents:
        batch.append((digest, data))
        size += len(data)
        if size >= _BYTES_AT_ONCE:
            yield batch
            batch, size = [], 0
    yield batch


def _map_ahead(pool: ThreadPoolExecutor, function: Callable[[Item], Placed], items: Iterable[Item]) -> Iterator[Placed]:
    """As `pool.map`, but taking no more of `items` than the threads can work on: each holds blobs in memory."""
    waiting: deque[Future[Placed]] = deque()
    for item in items:
        waiting.append(pool.submit(function, item))
        if len(waiting) > _WRITERS:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()
