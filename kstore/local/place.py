"""Puts artifacts into a cache root: all are built in a staging folder and then moved, so that each appears whole.

What is moved is the highest folder that is not there yet: in a fresh root that is each component, with one rename.
A group's folder is always moved whole. A file that goes into a folder that exists is moved by itself.

An artifact gets its blob's stamp as the fraction of its modification time, however it came here, but for those whose
time matters or that are written with other paths: no change leaves that time. One that is never changed in place the
next scan knows by it, without a hash and without a word in the index.
"""

from __future__ import annotations

import logging
import os
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from itertools import chain, islice
from typing import NamedTuple

from kstore.blobs import BlobStore, Part
from kstore.blobs.loose import stamp
from kstore.blobs.packindex import MAX_SHARED_FRAME
from kstore.blobs.packreader import Blob
from kstore.calls import stat_each
from kstore.deadline import Waiting
from kstore.errors import CacheRootError
from kstore.files import NewFile, write_files
from kstore.folders import make_folders
from kstore.local.cacheroot import CacheRoot
from kstore.local.found import Skipped
from kstore.local.index import Known
from kstore.local.link import Link, Linker, LinkMode, local_mode
from kstore.local.move import Mover
from kstore.local.names import refused_names
from kstore.local.pathsof import PathsOf
from kstore.local.placed import Placed
from kstore.local.relocate import to_local
from kstore.local.stages import cannot_write, clock_of, find_elsewhere, open_stages
from kstore.local.state import StateFolder
from kstore.local.untouched import mark_folders
from kstore.progress import Progress
from kstore.published.manifest import (
    NEVER_IN_PLACE,
    Entry,
    Files,
    Flag,
    folders_of,
    nearest_folders,
    parents_of,
    unit_of,
    with_parents,
)
from kstore.threads import Pool, submit

log = logging.getLogger(__name__)

_THREADS = 2
"""More of them only wait for each other, in the filesystem and for the interpreter."""
_LINK_COUNT = 512
"""Files that a thread links in one go."""
_FOLDER_COUNT = 128
"""Folders that are made before those who wait for them are told."""
_OPEN_COUNT = 128
"""Files that a thread has open at once."""
_WAITING = 2 * _THREADS
"""Parts that are being copied or wait for a thread: what is known of each is in memory."""
_SECOND = 1_000_000_000
_TICK_NS = 10_000_000
"""A file's time may be finer than the clock: later than now, by as much as that ticks."""
_GROUP, _LINK, _BELOW = int(Flag.GROUP), int(Flag.LINK), int(Flag.BELOW)
_MTIME, _RELOCATE = int(Flag.MTIME), int(Flag.RELOCATE)


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
        lists: Callable[[str], bool] = lambda path: False,
        below: Callable[[], Sequence[BlobStore]] = tuple,
    ) -> None:
        """`lists` tells whether an artifact is a list of those around it, none of which may be missing.

        `below` gives the blobs of other stores, each asked for what those before it lack.
        """
        self._progress = progress
        self._waiting = waiting
        self._root = root
        self._state = state
        self._lists = lists
        self._sources = [_Source(blobs, linker)]
        self._below = below

    @property
    def link_why(self) -> str:
        """Why no better way worked."""
        return "; ".join(dict.fromkeys(source.linker.why for source in self._sources if source.linker.why))

    def place(
        self,
        wanted: Files,
        packs: Sequence[str],
        folders: Collection[str],
        before_move: Callable[[], None],
        *,
        marks: bool = False,
    ) -> Placed:
        """Place `wanted`; `folders` are the folders, as artifact paths, that exist already.

        `before_move` is called when all is staged and nothing in its place; what it raises ends it there.
        With `marks` folders that nobody has touched will be known by their time: see `untouched`.
        A blob that is missing or damaged costs its group, or itself if it is in none.

        Raises:
            CacheRootError: the cache root cannot be written.
            Abandoned: nobody waits any more; nothing was placed.
        """
        if not wanted:
            before_move()
            return Placed()
        try:
            return self._place(wanted, packs, folders, before_move, marks=marks)
        except OSError as error:
            raise CacheRootError(cannot_write(self._root, error)) from error

    def _place(
        self,
        wanted: Files,
        packs: Sequence[str],
        folders: Collection[str],
        before_move: Callable[[], None],
        *,
        marks: bool,
    ) -> Placed:
        with ExitStack() as stack:
            holding = nearest_folders(wanted)
            needed = with_parents(holding)
            components = {folder for folder in needed if "/" not in folder}
            elsewhere = find_elsewhere(self._root, components)
            stages, unusable = open_stages(self._root, self._state, components, elsewhere, stack)
            if unusable:
                wanted = {path: entry for path, entry in wanted.items() if path.partition("/")[0] in stages}
            refused = refused_names(wanted, stages)
            if refused:
                wanted = {path: entry for path, entry in wanted.items() if path not in refused}
                marks = False
            if unusable or refused:
                holding = nearest_folders(wanted)
                needed = with_parents(holding)
            staging = _Staging(self._root, stages, wanted, needed)
            try:
                placed = staging.fill(self._sources[0], packs, self._others, self._progress, marks=marks)
            finally:
                for source in self._sources:
                    source.blobs.close()
            staging.drop_incomplete(placed, self._lists)
            before_move()
            mover = Mover(staging.staged, self._root.local_path, wanted, staging.is_since_begun)
            with self._waiting.visible():
                mover.move(placed.paths, set(folders) | elsewhere)
            placed.forget(mover.occupied, mover.refused)
            placed.bare = needed - holding
        placed.skipped += unusable
        placed.skipped += (Skipped(path, reason) for path, reason in sorted(refused.items()))
        return placed

    def _others(self) -> list[_Source]:
        if len(self._sources) == 1:
            self._sources += [_Source(blobs, Linker()) for blobs in self._below()]
        return self._sources[1:]


class _Source(NamedTuple):
    """A store that blobs come from, and how they can be linked from it."""

    blobs: BlobStore
    linker: Linker


class _Staging:
    """The artifacts on their way, in folders that nobody else looks into."""

    def __init__(self, root: CacheRoot, stages: dict[str, str], wanted: Files, folders: Iterable[str]) -> None:
        """`folders` are all that `wanted` is in."""
        self._root = root
        self._stages = stages
        self._second = (time.time_ns() // _SECOND - 1) * _SECOND
        """That of all stamps: none is ahead of now, or the next restore would take its file for a compiler's."""
        self._begun_ns = {stage: clock_of(stage) for stage in set(stages.values())}
        self.wanted = wanted
        self._folders = sorted(folders)
        self.folders = [self.staged(folder) for folder in self._folders]
        """Where all is being built, each after those above it."""
        self._made: list[Future[None]]
        """Done when so many of them are there; `fill` has it begun."""

    def staged(self, path: str) -> str:
        """Where an artifact, or a folder of them, is being built."""
        return f"{self._stages[path.partition('/')[0]]}/{path}"

    def is_since_begun(self, path: str, moment_ns: int) -> bool:
        """Whether a time is between when staging began and now. A later one is of before a clock was set back."""
        stage = self._stages[path.partition("/")[0]]
        return self._begun_ns[stage] < moment_ns and moment_ns <= clock_of(stage) + _TICK_NS

    def fill(
        self,
        main: _Source,
        packs: Sequence[str],
        others: Callable[[], list[_Source]],
        progress: Progress,
        *,
        marks: bool,
    ) -> Placed:
        """Take all from the store that has it; the others are asked for what they are known to have, and what lacks.

        With `marks` the folders are marked, once all is there.
        """
        progress.total = len(self.wanted)
        placed = Placed()
        with Pool(1) as maker, Pool(_THREADS) as pool:
            # By one thread: they are in each other's, where two would wait for one another.
            some = (self.folders[at : at + _FOLDER_COUNT] for at in range(0, len(self.folders), _FOLDER_COUNT))
            self._made = [submit(maker, make_folders, folders) for folders in some]
            below = {path: entry for path, entry in self.wanted.items() if entry.flags & _BELOW}
            for source in others() if below else ():
                self._fill(below, source, source.blobs.packs_listed(), placed, pool, progress)
            self._fill(self.wanted, main, packs, placed, pool, progress)
            for source in others() if len(placed.paths) < len(self.wanted) else ():
                self._fill(self.wanted, source, source.blobs.packs_listed(), placed, pool, progress)
            self._wait()  # or an exception of a signal's handler might stay in it
            if marks and len(placed.paths) == len(self.wanted):
                placed.marked_ns, placed.folders = mark_folders(self.folders, pool), self._folders
        return placed

    def _fill(
        self, among: Files, source: _Source, packs: Sequence[str], placed: Placed, pool: Pool, progress: Progress
    ) -> None:
        """Link what is loose, and side by side copy the rest in the order in which the store has it."""
        wanted = {path: e for path, e in among.items() if path not in placed.paths} if placed.paths else among
        if not wanted:
            return
        blobs = source.blobs
        others, linking = self._start_links(wanted, source, packs, placed, pool)
        paths = PathsOf(others, placed.paths)
        copying = self._copy(paths, blobs.parts(paths.sizes(), packs), pool)
        for part in chain(copying, (part.result() for part in linking)):
            placed.add(part)
            progress.done = len(placed.paths)
        if placed.paths.issuperset(wanted):
            return
        # What cannot be linked, is damaged, or is not where the ref says.
        left = PathsOf(wanted, placed.paths)
        for blob in _readable(blobs.fetch_many(left.sizes(), packs)):
            placed.add(self._write([blob], left))
            del blob  # or a large one would be held while the next one is read

    def _start_links(
        self, among: Files, source: _Source, packs: Sequence[str], placed: Placed, pool: Pool
    ) -> tuple[Files, list[Future[Placed]]]:
        """Link what is loose: returns the others, with the threads' work on it. What is done at once is `placed`."""
        packed = source.blobs.digests_in(packs)
        loose = [path for path, e in among.items() if e.flags & _LINK and e.digest not in packed]
        if not loose or not source.blobs.loose.can_be_linked:
            return among, []
        others = {path: e for path, e in among.items() if not e.flags & _LINK or e.digest in packed}
        # The first finds out which way works.
        placed.add(self._link(source, loose[:1]))
        if source.linker.mode is LinkMode.COPY:
            return among, []
        some = (loose[at : at + _LINK_COUNT] for at in range(1, len(loose), _LINK_COUNT))
        return others, [submit(pool, self._link, source, paths) for paths in some]

    def drop_incomplete(self, placed: Placed, lists: Callable[[str], bool]) -> None:
        """A group with a missing file is not placed at all, nor is a list of files one of which is missing."""
        lost = self.wanted.keys() - placed.paths
        if not lost:
            return
        placed.missed = {self.wanted[path].digest for path in lost}
        units = {unit_of(path, self.wanted[path]) for path in lost if self.wanted[path].flags & _GROUP}
        folders = {parent for path in lost for parent in parents_of(path)}
        for path in sorted(lost):
            placed.skipped.append(Skipped(path, f"blob {self.wanted[path].digest.hex()} is missing or damaged"))
        # vLLM's list is beside what it lists, and one folder beside Inductor's cache, which older versions listed.
        useless = [path for path in placed.paths if path.rsplit("/", 2)[0] in folders and lists(path)]
        placed.skipped += (Skipped(path, "it lists a file that is missing or damaged") for path in sorted(useless))
        for path in [*useless, *(p for p in placed.paths if units and unit_of(p, self.wanted[p]) in units)]:
            placed.paths.discard(path)
            placed.known.pop(path, None)
            os.unlink(self.staged(path))
        self._drop_empty(placed)

    def _drop_empty(self, placed: Placed) -> None:
        needed = {self.staged(folder) for folder in folders_of(placed.paths)}
        for folder in reversed(self.folders):
            if folder not in needed:
                with suppress(OSError):
                    os.rmdir(folder)

    def _link(self, source: _Source, paths: Sequence[str]) -> Placed:
        """Those whose blobs are there and have not been touched since they were published."""
        entries = [self.wanted[path] for path in paths]
        blob, staged = source.blobs.loose.path, self.staged
        links = [Link(blob(e.digest), staged(path), e) for path, e in zip(paths, entries, strict=True)]
        self._wait(paths)
        modes = source.linker.link_many(links)
        placed = Placed({path for path, mode in zip(paths, modes, strict=True) if mode is not LinkMode.COPY})
        for mode in set(modes) - {LinkMode.COPY}:
            placed.modes[mode] = modes.count(mode)
        return placed

    def _wait(self, paths: Collection[str] | None = None) -> None:
        """Until the folders of these artifacts are there; without any, until all are."""
        needed = len(self._made)
        if paths:
            last = max(path.rpartition("/")[0] for path in paths)
            needed = bisect_left(self._folders, last) // _FOLDER_COUNT + 1
        for made in self._made[:needed]:
            made.result()

    def _copy(self, paths: PathsOf, parts: Iterable[Part], pool: Pool) -> Iterator[Placed]:
        def write(part: Part) -> Placed:
            return self._write(part.load(), paths)

        return _map_parts(pool, write, parts)

    def _write(self, blobs: Iterable[tuple[bytes, memoryview]], paths: PathsOf) -> Placed:
        contents = {path: data for digest, data in blobs for path in paths.of(digest)}
        self._wait()
        files = (self._new_file(path, data) for path, data in contents.items())
        # One blob may have any number of paths, and all files of a chunk are open together.
        while chunk := list(islice(files, _OPEN_COUNT)):
            write_files(chunk)
        placed = Placed(set(contents))
        placed.modes[LinkMode.COPY] = len(contents)
        changing = [path for path in contents if not self.wanted[path].flags & NEVER_IN_PLACE]
        for path, found in zip(changing, stat_each([self.staged(path) for path in changing]), strict=True):
            if not found.error:
                entry = self.wanted[path]
                # Which store had its blob says nothing of what a commit finds.
                entry = entry._replace(mtime_ns=found.mtime_ns, flags=entry.flags & ~_BELOW)
                placed.known[path] = Known(entry, found.size, found.inode)
        return placed

    def _new_file(self, path: str, data: memoryview) -> NewFile:
        entry = self.wanted[path]
        content: bytes | memoryview = data
        if entry.flags & _RELOCATE:
            content = to_local(bytes(data), self._root.folders[path.partition("/")[0]])
        return NewFile(self.staged(path), content, local_mode(entry), self._time_of(entry))

    def _time_of(self, entry: Entry) -> int | None:
        """The modification time that its file gets, in nanoseconds; None for now."""
        if entry.flags & _LINK or not entry.flags & (_MTIME | _RELOCATE):
            return self._second + stamp(entry.digest)
        return entry.mtime_ns if entry.flags & _MTIME else None


def _readable(blobs: Iterator[Blob]) -> Iterator[Blob]:
    """All until there is trouble with the store: that costs what is missing then, and no more."""
    try:
        yield from blobs
    except OSError as error:
        log.warning("what is missing cannot be looked for: %s", error)


def _map_parts(pool: Pool, function: Callable[[Part], Placed], parts: Iterable[Part]) -> Iterator[Placed]:
    """As `pool.map`, but a large blob is in memory by itself."""
    waiting: deque[Future[Placed]] = deque()
    for part in parts:
        is_large = part.size > MAX_SHARED_FRAME
        while is_large and waiting:
            yield waiting.popleft().result()
        waiting.append(submit(pool, function, part))
        if is_large or len(waiting) > _WAITING:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()
