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
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice

from kstore.blobs import BlobStore
from kstore.blobs.loose import stamp
from kstore.deadline import Waiting
from kstore.errors import CacheRootError
from kstore.files import NewFile, write_files
from kstore.folders import make_folder
from kstore.local.cacheroot import CacheRoot
from kstore.local.index import Known, is_settled
from kstore.local.link import Blob, Link, Linker, LinkMode
from kstore.local.move import Mover
from kstore.local.relocate import to_local
from kstore.local.scan import Skipped
from kstore.local.state import StateFolder
from kstore.manifest import Files, Flag, unit_of
from kstore.progress import Progress
from kstore.threads import Pool, submit

_THREADS = 2
"""More of them only wait for each other, in the filesystem and for the interpreter."""
_BATCH_SIZE = 2 << 20
_BATCH_COUNT = 128
_SECOND = 1_000_000_000
_GROUP, _LINK = int(Flag.GROUP), int(Flag.LINK)
_MTIME, _RELOCATE = int(Flag.MTIME), int(Flag.RELOCATE)
_OWNER_CAN_WRITE = 0o600

Batch = list[tuple[bytes, memoryview]]
"""(digest, bytes) of blobs."""


@dataclass(slots=True)
class Placed:
    """What arrived."""

    paths: set[str] = field(default_factory=set)
    known: dict[str, Known] = field(default_factory=dict)
    """The artifacts that bear no stamp, for the index."""
    skipped: list[Skipped] = field(default_factory=list)
    occupied: set[str] = field(default_factory=set)
    """Paths where something else is, which stays."""
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
            self.occupied |= {p for p in self.paths if p == path or p.startswith(f"{path}/")}
        self.paths -= self.occupied
        self.known = {p: file for p, file in self.known.items() if p in self.paths}


class Placer:
    """Places artifacts into one cache root."""

    def __init__(
        self,
        root: CacheRoot,
        state: StateFolder,
        blobs: BlobStore,
        linker: Linker,
        progress: Progress,
        waiting: Waiting,
    ) -> None:
        self._progress = progress
        self._waiting = waiting
        self._root = root
        self._state = state
        self._blobs = blobs
        self._linker = linker

    def place(self, wanted: Files, packs: Sequence[str], folders: Collection[str]) -> Placed:
        """Place `wanted`; `folders` are the folders, as artifact paths, that exist already.

        A blob that is missing or damaged costs its group, or itself if it is in none.

        Raises:
            CacheRootError: the cache root cannot be written.
            Abandoned: nobody waits any more; nothing was placed.
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
            stages, unusable = self._stages(wanted, stack)
            wanted = {path: entry for path, entry in wanted.items() if path.partition("/")[0] in stages}
            staging = _Staging(self._root, self._blobs, self._linker, stages, wanted)
            placed = staging.fill(packs, self._progress)
            staging.drop_incomplete(placed)
            mover = Mover(staging.staged, self._root.local_path, wanted)
            with self._waiting.visible():
                mover.move(placed.paths, set(folders) | self._own_folders(wanted))
            placed.forget(mover.occupied)
        placed.skipped += unusable
        return placed

    def _stages(self, wanted: Files, stack: ExitStack) -> tuple[dict[str, str], list[Skipped]]:
        """A staging folder for each component, on the filesystem that it is on; and those that can have none."""
        shared = stack.enter_context(self._state.staging())
        stages = dict.fromkeys(_components(wanted), shared)
        unusable = []
        for component in self._own_folders(wanted):
            folder = self._root.folders[component]
            try:
                stages[component] = stack.enter_context(self._state.staging(folder))
            except OSError as error:
                del stages[component]
                unusable.append(Skipped(component, f"{folder} cannot be written: {error.strerror}"))
        return stages, unusable

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

    def fill(self, packs: Sequence[str], progress: Progress) -> Placed:
        """Link what is loose, and copy the rest in the order in which the store has it."""
        progress.total = len(self.wanted)
        packed = self._blobs.digests_in(packs) if packs else frozenset()
        linkable = {p: e for p, e in self.wanted.items() if e.flags & _LINK and e.digest not in packed}
        placed = Placed()
        with Pool(_THREADS) as pool:
            folders = submit(pool, self._make_folders)
            blobs = self._blobs.loose.untouched_many(linkable.values()) if linkable else []
            if any(blobs):
                folders.result()
                self._link(linkable, blobs, placed, pool)
            for part in self._copy(packs, placed, pool, folders):
                placed.add(part)
                progress.done = len(placed.paths)
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

    def _make_folders(self) -> None:
        for folder in sorted({path[: path.rindex("/")] for path in self.wanted}):
            make_folder(self.staged(folder))

    def _link(self, wanted: Files, blobs: Sequence[Blob | None], placed: Placed, pool: Pool) -> None:
        links = [
            Link(blob, self.staged(path), entry.mode, path)
            for (path, entry), blob in zip(wanted.items(), blobs, strict=False)
            if blob
        ]
        # The first link finds out which way works; the others then follow side by side.
        middle = len(links) // 2
        self._add_links(links[:1], self._linker.link_many(links[:1]), placed)
        halves = links[1:middle], links[max(middle, 1) :]
        linking = [submit(pool, self._linker.link_many, half) for half in halves]
        for half, modes in zip(halves, linking, strict=True):
            self._add_links(half, modes.result(), placed)

    def _add_links(self, links: list[Link], modes: list[LinkMode], placed: Placed) -> None:
        placed.modes.update(modes)
        placed.paths.update(link.path for link, mode in zip(links, modes, strict=True) if mode is not LinkMode.COPY)

    def _copy(self, packs: Sequence[str], placed: Placed, pool: Pool, folders: Future[None]) -> Iterator[Placed]:
        paths: dict[bytes, list[str]] = defaultdict(list)
        for path, entry in self.wanted.items():
            if path not in placed.paths:
                paths[entry.digest].append(path)

        def write(batch: Batch) -> Placed:
            folders.result()
            return self._write_batch(batch, paths)

        contents = _in_batches(self._blobs.fetch_many(paths, packs)) if paths else ()
        return _map_ahead(pool, write, contents)

    def _write_batch(self, batch: Batch, paths: dict[bytes, list[str]]) -> Placed:
        contents = {path: data for digest, data in batch for path in paths[digest]}
        files = (self._new_file(path, data) for path, data in contents.items())
        # One blob may have any number of paths, and all files of a chunk are open together.
        while chunk := list(islice(files, _BATCH_COUNT)):
            write_files(chunk)
        placed = Placed(paths=set(contents))
        placed.modes[LinkMode.COPY] = len(contents)
        for path in contents:
            if not self.wanted[path].flags & _LINK:
                placed.known[path] = self._known(path)
        return placed

    def _new_file(self, path: str, data: memoryview) -> NewFile:
        entry = self.wanted[path]
        mtime = None
        if entry.flags & _LINK:
            mtime = self._now + stamp(entry.digest)
        elif entry.flags & _MTIME:
            mtime = entry.mtime_ns
        content: bytes | memoryview = data
        if entry.flags & _RELOCATE:
            content = to_local(bytes(data), self._root.folders[path.partition("/")[0]])
        return NewFile(self.staged(path), content, entry.mode & 0o777 | _OWNER_CAN_WRITE, mtime)

    def _known(self, path: str) -> Known:
        status = os.stat(self.staged(path))
        return Known(self.wanted[path]._replace(mtime_ns=status.st_mtime_ns), status.st_size, status.st_ino)


def keep_settled(known: dict[str, Known]) -> dict[str, Known]:
    """What the index may vouch for: what is replaced but never changed in place, and what is old enough."""
    return {
        path: file for path, file in known.items() if file.entry.flags & _RELOCATE or is_settled(file.entry.mtime_ns)
    }


def _components(paths: Iterable[str]) -> set[str]:
    return {path.partition("/")[0] for path in paths}


def _in_batches(contents: Iterable[tuple[bytes, memoryview]]) -> Iterator[Batch]:
    """Blobs in batches worth handing to a thread, and small enough for all threads to get one."""
    batch: Batch = []
    size = 0
    for digest, data in contents:
        batch.append((digest, data))
        size += len(data)
        if size >= _BATCH_SIZE or len(batch) >= _BATCH_COUNT:
            yield batch
            batch, size = [], 0
        del data  # or a large blob would be held while the next one is read
    yield batch


def _map_ahead(pool: Pool, function: Callable[[Batch], Placed], batches: Iterable[Batch]) -> Iterator[Placed]:
    """As `pool.map`, but holding no more batches in memory than the threads can work on, or one large blob."""
    waiting: deque[Future[Placed]] = deque()
    for batch in batches:
        is_large = sum(len(data) for _, data in batch) > 2 * _BATCH_SIZE
        waiting.append(submit(pool, function, batch))
        del batch
        while waiting and (is_large or len(waiting) > _THREADS):
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()
